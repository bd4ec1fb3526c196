"""Desired state in words: its knobs, what a form changes, and how far engines are. Pure functions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.store.queries import EngineView
from dashboard.wording import bytes_text, count_text, moment_text

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
    "namespace_caps": "Namespaces",
    "admission_rule": "Admission",
    "eviction": "Eviction",
}
BYTE_KNOBS = ("cap_gpu_bytes", "cap_host_bytes", "cap_disk_bytes")
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
    return count_text(value) if isinstance(value, int) else str(value)


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


def how_far(engines: Sequence[EngineView], revision: int, scope: str | None) -> list[Applied]:
    """How far each engine that the revision is for has come."""
    found = []
    for engine in engines:
        if scope not in (None, engine.id):
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
