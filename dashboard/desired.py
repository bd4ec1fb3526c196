"""Desired state in words: its knobs, what a form changes, and how far engines are. Pure functions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.store.queries import EngineView
from dashboard.wording import bytes_text, count_text, moment_text, parse_bytes

LABELS = {
    "mode": "Mode",
    "mode_expires_at": "Mode ends (UTC)",
    "cap_prefixes": "Prefixes",
    "cap_gpu_bytes": "GPU bytes",
    "cap_host_bytes": "Host bytes",
    "cap_disk_bytes": "Disk bytes",
    "codec": "Codec",
    "checkpoint_every_tokens": "Checkpoint tokens",
    "checkpoint_budget_ratio": "Checkpoint share",
    "pin_budget_ratio": "Pin share",
    "namespace_caps": "Namespaces",
    "admission_rule": "Admission",
    "eviction": "Eviction",
}
BYTE_KNOBS = ("cap_gpu_bytes", "cap_host_bytes", "cap_disk_bytes")
COUNT_KNOBS = ("cap_prefixes", "checkpoint_every_tokens")
SHARE_KNOBS = ("checkpoint_budget_ratio", "pin_budget_ratio")
WORD_KNOBS = ("codec", "admission_rule")
TYPED_KNOBS = (*COUNT_KNOBS, *BYTE_KNOBS, *SHARE_KNOBS, *WORD_KNOBS)
NAMESPACE_COLUMNS = {"Guaranteed": "guaranteed_bytes", "At most": "max_bytes", "Prefixes at most": "max_prefixes"}
DANGEROUS_MODES = ("bypass", "drain")
MANY_EVICTED = 100
DEFAULT_TEXT = "engine's default"


def knob_text(name: str, value: Any) -> str:
    """A knob's value as people read it; not set is the engine's own default."""
    if value is None:
        return DEFAULT_TEXT
    if name in BYTE_KNOBS:
        return bytes_text(value)
    if name == "mode_expires_at":
        return moment_text(dt.datetime.fromisoformat(str(value)))
    if name == "namespace_caps":
        return "; ".join(f"{space}: {_cap_text(cap)}" for space, cap in value.items()) or "none"
    if name in SHARE_KNOBS:
        return f"{value * 100:g}%"
    return count_text(value) if isinstance(value, int) else str(value)


def form_text(name: str, value: Any) -> str:
    """A knob's value as a form's field holds it; empty for not set."""
    if value is None:
        return ""
    if name in BYTE_KNOBS:
        return bytes_text(value)
    return f"{value:,}" if name in COUNT_KNOBS else f"{value * 100:g}%" if name in SHARE_KNOBS else str(value)


def read_knob(name: str, text: str, kept: Any) -> Any:
    """A typed knob's value: None for an empty field. Raises ValueError that says what is accepted.

    What was not touched stays `kept`: what is shown is rounded, what is kept is not.
    """
    text = text.strip()
    if text == form_text(name, kept):
        return kept
    if not text:
        return None
    try:
        if name in BYTE_KNOBS:
            return parse_bytes(text)
        if name in COUNT_KNOBS:
            return int(text.replace(",", "").replace("_", ""))
        if name in SHARE_KNOBS:
            return float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError as error:
        kinds = "a size, as 12 GiB" if name in BYTE_KNOBS else "a number" if name in COUNT_KNOBS else "a share, as 0.3"
        raise ValueError(f"{LABELS[name]}: {text!r} is not {kinds}") from error
    return text


def namespace_rows(caps: Mapping[str, Mapping[str, int]] | None) -> list[dict[str, str]]:
    """Caps by namespace as rows of texts for a table that is edited."""
    rows = []
    for space, cap in (caps or {}).items():
        sizes = {column: _namespace_text(key, cap.get(key)) for column, key in NAMESPACE_COLUMNS.items()}
        rows.append({"Namespace": space, **sizes})
    return rows


def read_namespaces(rows: Sequence[Mapping[str, Any]], kept: Mapping[str, Mapping[str, int]] | None) -> Any:
    """The edited rows as caps by namespace; None for none. Raises ValueError naming the namespace and the field."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        space = str(row.get("Namespace") or "").strip()
        texts = {key: str(row.get(column) or "").strip() for column, key in NAMESPACE_COLUMNS.items()}
        if not space and not any(texts.values()):
            continue
        if not space or space in found:
            raise ValueError(f"Namespaces: {'a row has no name' if not space else f'{space!r} is there twice'}")
        old = (kept or {}).get(space, {})
        cap = {key: _read_namespace(space, key, text, old.get(key)) for key, text in texts.items() if text}
        if not cap:
            raise ValueError(f"Namespaces: {space!r} has no limit; remove its row or give it one")
        found[space] = cap
    return found or None


def _namespace_text(key: str, value: int | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if key == "max_prefixes" else bytes_text(value)


def _read_namespace(space: str, key: str, text: str, kept: int | None) -> int:
    if text == _namespace_text(key, kept) and kept is not None:
        return kept
    try:
        value = int(text.replace(",", "")) if key == "max_prefixes" else parse_bytes(text)
    except ValueError as error:
        raise ValueError(f"Namespaces: {space}: {text!r} is not {'a number' if 'pre' in key else 'a size'}") from error
    return value or 0


def word_to_type(changes: Mapping[str, Any], evicted: int) -> str | None:
    """What must be typed before such a change: the mode that is dangerous, or "evict" for many; None for the rest."""
    if changes.get("mode") in DANGEROUS_MODES:
        return str(changes["mode"])
    return "evict" if evicted >= MANY_EVICTED else None


def _cap_text(cap: Mapping[str, int]) -> str:
    words = {"guaranteed_bytes": "guaranteed", "max_bytes": "at most", "max_prefixes": "prefixes at most"}
    shown = {key: count_text(n) if key == "max_prefixes" else bytes_text(n) for key, n in cap.items()}
    return ", ".join(f"{word} {shown[key]}" for key, word in words.items() if key in shown)


def changes_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs whose value differs; None takes a knob back to the engine's default."""
    return {name: value for name, value in after.items() if before.get(name) != value}


def diff_lines(before: Mapping[str, Any], changes: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(knob, before, after) for each change, in the order of the knobs."""
    return [
        (label, knob_text(name, before.get(name)), knob_text(name, changes[name]))
        for name, label in LABELS.items()
        if name in changes
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """How far one engine is with a revision. `state`: applied, refused, waiting, silent."""

    engine: str
    state: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """Whose desired state: one engine's, one group's, or (neither) every engine's."""

    engine: str | None = None
    group: str | None = None

    @property
    def words(self) -> str:
        """As people read it."""
        return self.engine or (f"group {self.group}" if self.group else "every engine")

    def reaches(self, engine: EngineView) -> bool:
        """Whether a document of this scope is for that engine."""
        return engine.id == self.engine if self.engine else self.group in (None, engine.group)


def how_far(engines: Sequence[EngineView], revision: int, whose: Whose) -> list[Applied]:
    """How far each engine that the revision is for has come."""
    found = []
    for engine in engines:
        if not whose.reaches(engine):
            continue
        error = engine.observed.get("error")
        if engine.observed_revision >= revision:
            state, detail = (
                ("refused", str(error)) if error else ("applied", f"runs revision {engine.observed_revision}")
            )
        elif engine.health != "live":
            state, detail = "silent", "applies it when it is heard of again"
        else:
            state, detail = "waiting", f"still runs revision {engine.observed_revision}"
        found.append(Applied(engine=engine.id, state=state, detail=detail))
    return found
