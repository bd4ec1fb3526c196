"""The reference of telemetry, written from the one registry in engine/telemetry/registry/."""

from __future__ import annotations

from engine.telemetry.registry import (
    ATTRIBUTES,
    INSTRUMENTS,
    RESOURCE,
    SCHEMA_URL,
    SCOPE_NAME,
    SCOPE_VERSION,
    SPANS,
    Attribute,
    Instrument,
    SpanKind,
)

INTRODUCTION = f"""# Telemetry

Everything an engine says: spans and metrics, over OTLP and for Prometheus. Instrumentation scope `{SCOPE_NAME}`,
version {SCOPE_VERSION}, schema URL `{SCHEMA_URL}`. No prompt text and no token id is in any of it.

How to send it to a tracing backend: [tracing backends](../howto/tracing-backends.md); to Prometheus: [Prometheus and
Grafana](../howto/prometheus.md). How the control plane takes it: [the wire](wire.md).

Stability: *stable* entries stay through every release 0.x; *experimental* ones may change with any. What is renamed,
retyped or taken away moves the number before the dot of the version.

## Spans

Status is ERROR where the table says so, else UNSET. Spans marked **always** (and every ERROR) are never dropped by
the engine and never sampled away; a full ring drops passed validations first, then requests, and counts them.
"""

LIVES = """
A **life** is one stay of a prefix in one engine, from commit or adoption to eviction; it is the wall-clock nanosecond
of its birth, so a later life has a larger number. Versions are dense from 1 inside a life. The states and what moves
between them: [states](states.md). A transition's `kvcache.objects` and `kvcache.checkpoints` are small JSON texts, as
OTLP attributes have no maps.
"""

METRICS = """
## Metrics

Over OTLP: protobuf, cumulative temporality, every 2 s. For Prometheus: the names in the second column, dots of labels
as underscores, and the label `engine` (the engine's id) on every series. Counters of tokens and of requests are
apart, so that ratios can be made of either. *Most series* is the bound on cardinality for one engine; a histogram has
a series a bucket. Namespaces past the first ones are counted together.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, *_spans(), LIVES, _attributes("## Attributes", ATTRIBUTES)]
    parts += [_attributes("## Resource", RESOURCE), METRICS, _instruments()]
    return "\n".join(parts)


def _spans() -> list[str]:
    return [_span(kind) for kind in SPANS.values()]


def _span(kind: SpanKind) -> str:
    always = " **Always kept.**" if kind.vital else ""
    lines = [
        f"### `{kind.name}`",
        "",
        f"{_sentence(kind.meaning)}{always}",
        "",
        f"- Parent: {kind.parent}.",
        f"- ERROR when: {kind.error_when}.",
        f"- Attributes: {_codes(kind.attributes)}.",
    ]
    if kind.sometimes:
        lines.append(f"- Where they apply: {_codes(kind.sometimes)}.")
    if kind.link is not None:
        lines.append(
            f"- Link: {kind.link.leads_to}; the same in {_codes(kind.link.same_as)}, as some backends drop links."
        )
    lines.append(f"- {_sentence(kind.stability)}")
    return "\n".join([*lines, ""])


def _attributes(title: str, attributes: dict[str, Attribute]) -> str:
    lines = [title, "", "| attribute | type | unit | meaning | cardinality | stability |", "|---|---|---|---|---|---|"]
    for a in attributes.values():
        values = f" ({', '.join(a.values)})" if a.values else ""
        lines.append(f"| `{a.name}` | {a.type} | {_unit(a.unit)} | {a.meaning}{values} | {a.bound} | {a.stability} |")
    return "\n".join([*lines, ""])


def _instruments() -> str:
    lines = [
        "| instrument | for Prometheus | kind | unit | labels | meaning | most series | stability |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_instrument(instrument) for instrument in INSTRUMENTS.values()]
    return "\n".join([*lines, ""])


def _instrument(i: Instrument) -> str:
    labels = ", ".join(f"`{label.name}`" + (f" ({label.meaning})" if label.meaning else "") for label in i.labels)
    return (
        f"| `{i.name}` | {_codes(tuple(i.pulled.values()))} | {i.kind} | {_unit(i.unit)} | {labels} | {i.meaning} "
        f"| {i.most_series:,} | {i.stability} |"
    )


def _codes(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _unit(unit: str) -> str:
    return f"`{unit}`" if unit else ""


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
