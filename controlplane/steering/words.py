"""What policies and rules are set to, saw and did, in words: sizes, durations and shares with units. Pure functions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.steering.parameters import Flag, Knob, Number, Whole, knobs_of
from controlplane.wording import bytes_text, count_text, moment_text, plural, seconds_text, short_id, span_text

NOTHING = "none"
MOST_LISTED = 4
_SHARES = frozenset({"rate", "ratio", "share", "fragmentation"})
_ONE = {"recoveries": "recovery", "prefixes": "prefix"}
_BINARY = 1024


def label_of(name: str) -> str:
    """A name as a label: words, without the unit that its value says."""
    return name.removesuffix("_seconds").removesuffix("_s").replace("_", " ")


def field_label(name: str, knob: Knob) -> str:
    """A label for a field that a parameter is typed into: with the unit that a bare number is in."""
    match knob:
        case Whole(unit="bytes"):  # typed with a unit of its own
            return name.replace("_", " ")
        case Whole(unit=unit):
            return name.replace("_", " ") if _said(unit, name) and unit != "seconds" else f"{label_of(name)} ({unit})"
        case Number(unit=unit) if unit.startswith("as a share"):
            return f"{label_of(name)} (%)"
        case Number(unit=unit) if unit:
            return f"{label_of(name)} ({unit})"
    return name.replace("_", " ")


def parameter_text(name: str, knob: Knob | None, value: Any) -> str:
    """A parameter's value in the unit of its knob, exact; without a knob as `value_text` says it."""
    match knob:
        case Flag():
            return "yes" if value else "no"
        case Whole(unit="bytes"):
            return _exact_bytes(value)
        case Whole(unit="seconds"):
            return span_text(value)
        case Whole(unit="minutes"):
            return span_text(value * 60)
        case Whole(unit=unit):
            return count_text(value) if _said(unit, name) else f"{count_text(value)} {_counted(value, unit)}"
        case Number(unit=unit) if unit.startswith("as a share"):
            return f"{value * 100:.6g}%"
        case Number(unit=unit):
            return f"{value:g} {unit}".rstrip()
        case _:
            return value_text(name, value)


def parameters_text(rule: type | None, values: Mapping[str, Any]) -> str:
    """Parameters of a kind of rule in one line; of an unknown kind as `values_text` says them."""
    knobs = knobs_of(rule) if rule else {}
    return ", ".join(f"{label_of(name)} {parameter_text(name, knobs.get(name), values[name])}" for name in values)


def allowed_text(knob: Knob) -> str:
    """What a knob allows, in its unit."""
    match knob:
        case Whole(unit="bytes", least=least, most=most):
            return f"{_exact_bytes(least)} to {_exact_bytes(most)}"
        case Whole(unit="seconds", least=least, most=most):
            return f"{span_text(least)} to {span_text(most)}"
        case Number(unit=unit, least=least, most=most) if unit.startswith("as a share"):
            return f"{least * 100:g}% to {most * 100:g}%"
    return knob.allowed


def when_text(every_seconds: int | None, cron: str | None, time_zone: str) -> str:
    """When a policy runs by itself."""
    if cron:
        return f"{cron} ({time_zone})"
    return f"every {span_text(every_seconds)}" if every_seconds else "on events"


def values_text(values: Mapping[str, Any]) -> str:
    """Named values in one line, each in its unit."""
    return ", ".join(f"{label_of(name)} {value_text(name, value)}" for name, value in values.items())


def value_text(name: str, value: Any) -> str:
    """A value that has only its name to tell its unit: `_bytes`, `_seconds`, `_rate` and the like."""
    match value:
        case None:
            return NOTHING
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return _number(name, value)
        case str():
            return _text(value)
        case Mapping():
            return values_text(value) or NOTHING
        case Sequence():
            return _list(name, value)
    return str(value)


def proposals_text(proposed: Sequence[Mapping[str, Any]]) -> str:
    """What a policy proposed, in one line: `policy_runs.proposed`."""
    return "; ".join(_proposal(one) for one in proposed) or "nothing"


def deeds_text(did: Mapping[str, Any]) -> str:
    """What was done about it: `policy_runs.did`."""
    parts = [f"revision {number}" for number in did.get("revisions", ())]
    parts += [f"command {short_id(str(command), 8)}" for command in did.get("commands", ())]
    deleted = did.get("deleted_rows") or {}
    parts += [f"{plural(rows, 'row')} of {label_of(table)} deleted" for table, rows in deleted.items()]
    rest = {key: value for key, value in did.items() if key not in ("revisions", "commands", "deleted_rows")}
    return ", ".join([*parts, *([values_text(rest)] if rest else [])]) or "nothing"


def changes_text(changed: Mapping[str, Any]) -> str:
    """What came of it on the engines: `policy_runs.changed`."""
    parts = [f"revision {number} {_end(seen)}" for number, seen in changed.get("revisions", {}).items()]
    parts += [f"{seen.get('kind', 'command')} {_end(seen)}" for seen in changed.get("commands", {}).values()]
    rest = {key: value for key, value in changed.items() if key not in ("revisions", "commands")}
    return ", ".join([*parts, *([values_text(rest)] if rest else [])]) or "nothing"


def _proposal(one: Mapping[str, Any]) -> str:
    match one:
        case {"propose": "SetMode", "mode": mode}:
            return f"mode {mode}"
        case {"propose": "IssueCommand", "kind": kind, "arguments": arguments}:
            return f"{kind}: {values_text(arguments)}" if arguments else str(kind)
        case {"propose": "SampleCurve"}:
            return "bring its curves"
        case {"propose": "TrimHistory"}:
            return "forget old history"
    return values_text({key: value for key, value in one.items() if key not in ("engine_id", "reason")})


def _end(seen: Mapping[str, Any]) -> str:
    more = {key: value for key, value in seen.items() if key not in ("kind", "status") and value is not None}
    return f"{seen.get('status', 'waiting')}{f' ({values_text(more)})' if more else ''}"


def _number(name: str, value: float) -> str:
    parts = name.split("_")
    if "bytes" in parts:
        return bytes_text(value)
    if parts[-1] in ("seconds", "s"):
        return span_text(value) if isinstance(value, int) and value >= 0 else seconds_text(value)
    if parts[-1] in _SHARES and 0 <= value <= 1:
        return f"{value * 100:.3g}%"
    return count_text(value) if isinstance(value, int) else f"{value:,.3g}"


def _text(value: str) -> str:
    if len(value) >= 19 and value[:4].isdigit():
        try:
            at = dt.datetime.fromisoformat(value)
        except ValueError:
            return value
        return f"{moment_text(at)} UTC" if at.tzinfo else value
    return value


def _list(name: str, values: Sequence[Any]) -> str:
    if name == "prefix_ids":
        return (
            f"{len(values):,}: {', '.join(short_id(str(one), 8) for one in values[:MOST_LISTED])}" if values else "none"
        )
    shown = ", ".join(value_text(name, one) for one in values[:MOST_LISTED])
    more = f" and {len(values) - MOST_LISTED:,} more" if len(values) > MOST_LISTED else ""
    return f"{shown}{more}" or NOTHING


def _exact_bytes(value: int) -> str:
    """Rounded for reading; what the rounding hides is written beside it, since two settings must not look alike."""
    size, steps = float(value), 0
    while size >= _BINARY:
        size, steps = size / _BINARY, steps + 1
    exact = round(size, 1) * _BINARY**steps == value
    text = bytes_text(value).replace(".0 ", " ")
    return text if exact else f"{text} ({value:,} bytes)"


def _said(unit: str, name: str) -> bool:
    return unit in name.split("_")


def _counted(count: int, unit: str) -> str:
    return _ONE.get(unit, unit.removesuffix("s")) if count == 1 else unit
