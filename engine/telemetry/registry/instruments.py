"""Instruments: what is counted, in which unit, with which labels, and their names for Prometheus."""

from __future__ import annotations

from engine.config import Mode
from engine.consistency.state import Cause, State
from engine.memory.holding import Tier
from engine.model.objects import ObjectKind
from engine.telemetry.registry.spans import LOSSES, SPANS
from engine.telemetry.registry.words import Instrument, InstrumentKind, Label

NAMESPACES_SHOWN = 50
"""Namespaces with series of their own; all others are counted together as `OTHERS`."""
OTHERS = "(others)"

_REASONS = 64  # more than the code has reasons of one kind
_CLASSES = 16  # page classes of a model, and `all`

_KIND = Label(name="object.kind", bound=len(ObjectKind))
_STATE = Label(name="state", bound=len(State))
_TIER = Label(name="tier", bound=len(Tier))
_REASON = Label(name="reason", bound=_REASONS)
_NAMESPACE = Label(
    name="namespace", bound=NAMESPACES_SHOWN + 1, meaning=f"the first {NAMESPACES_SHOWN}, then `{OTHERS}`"
)
_DIRECTION = Label(name="direction", bound=2, meaning="read, write")
_OF = Label(name="of", bound=2, meaning="tokens, requests")
_FORM = Label(name="form", bound=5)
_CODEC = Label(name="codec", bound=4)
_LAST = Label(name="of", bound=2, meaning="last, largest")
_OUTCOME = Label(name="outcome", bound=3, meaning="ok, failed, late")


def _counter(
    name: str, unit: str, meaning: str, *labels: Label, pulled: str = "", by: dict[str, str] | None = None
) -> Instrument:
    stem = name.replace(".", "_")
    names = by or {"": pulled or f"{stem}_total"}
    return Instrument(
        name=name, kind=InstrumentKind.COUNTER, unit=unit, meaning=meaning, labels=labels, pulled=names
    )  # fmt: skip


def _gauge(name: str, unit: str, meaning: str, *labels: Label, pulled: str = "") -> Instrument:
    return Instrument(
        name=name, kind=InstrumentKind.GAUGE, unit=unit, meaning=meaning, labels=labels,
        pulled={"": pulled or name.replace(".", "_")},
    )  # fmt: skip


def _seconds(name: str, meaning: str, *labels: Label) -> Instrument:
    return Instrument(
        name=name, kind=InstrumentKind.HISTOGRAM, unit="s", meaning=meaning, labels=labels,
        pulled={"": f"{name.replace('.', '_')}_seconds"},
    )  # fmt: skip


_ALL = (
    _counter(
        "kvcache.request.tokens", "{token}", "Tokens of requests, by how far reuse went: prompt, lcp, usable, replay.",
        Label(name="of", bound=4, meaning="prompt, lcp, usable, replay"),
        by={of: f"kvcache_{of}_tokens_total" for of in ("prompt", "lcp", "usable", "replay")},
    ),
    _counter(
        "kvcache.requests", "{request}", "Requests by outcome.",
        Label(name="outcome", bound=4, meaning="hit, partial, miss, bypass"),
    ),
    _counter(
        "kvcache.lost", "{token}", "Tokens of prompts that were no hit, by why; with the usable ones, all.",
        Label(name="cause", bound=len(LOSSES)), pulled="kvcache_lost_tokens_total",
    ),
    _counter(
        "kvcache.queries", "1", "What was asked for, by namespace.", _NAMESPACE, _OF,
        by={"tokens": "kvcache_queried_tokens_total", "requests": "kvcache_queried_requests_total"},
    ),
    _counter(
        "kvcache.hits", "1",
        "What was served, once for each object kind that served it; `disk_prefix`: the boundary came back from disk.",
        _KIND, _STATE, _TIER, _OF,
        by={"tokens": "kvcache_hit_tokens_total", "requests": "kvcache_hit_requests_total"},
    ),
    _counter(
        "kvcache.validations", "{validation}", "Validations by what they found.",
        Label(name="validation", bound=5), Label(name="verdict", bound=4), _REASON,
    ),
    _counter("kvcache.transitions", "{transition}", "Steps of prefixes' lives."),
    _counter("kvcache.recoveries", "{restore}", "Restores of prefixes by tier and how they ended.", _TIER, _OUTCOME),
    _counter(
        "kvcache.evictions", "{object}", "Prefixes and checkpoints' blocks that left.",
        Label(name="cause", bound=len(Cause)),
        Label(name="kind", bound=len(ObjectKind) + 1, meaning="`prefix`, or the kind of a block"),
    ),
    _counter(
        "kvcache.commits", "{commit}", "Commits by what was kept.",
        Label(name="outcome", bound=2, meaning="admitted, refused"), _REASON,
    ),
    _counter("kvcache.checkpoints.dropped", "{checkpoint}", "Checkpoints of commits that were not kept.", _REASON),
    _counter(
        "kvcache.codec.judged", "{measurement}", "Measurements of lossy codecs.", _CODEC,
        Label(name="outcome", bound=4, meaning="measured, refused, unmeasured, failed"),
    ),
    _counter("kvcache.tier.io.bytes", "By", "Bytes moved between tiers.", _TIER, _DIRECTION),
    _counter("kvcache.verified.bytes", "By", "Loaded bytes that a caller compared with the truth."),
    _counter("kvcache.wrong.bytes", "By", "Of these, bytes that differed."),
    _counter(
        "kvcache.telemetry.spans", "{span}", "Spans recorded.",
        Label(name="span", bound=len(SPANS), meaning="name of the span"),
    ),
    _counter(
        "kvcache.telemetry.dropped", "{span}", "Spans dropped by a full ring; never a transition or a failure.",
        Label(name="record", bound=2, meaning="validation, request"),
    ),
    _gauge(
        "kvcache.fragmentation", "1", "Free bytes inside slabs over bytes of these slabs.",
        Label(name="class", bound=_CLASSES, meaning="a page class, or `all`"), pulled="kvcache_fragmentation_ratio",
    ),
    _gauge(
        "kvcache.tier.bytes", "By", "Bytes of each tier; free + live + pinned = total.", _TIER,
        Label(name="state", bound=4, meaning="free, live, pinned, total"),
    ),
    _gauge("kvcache.prefixes", "{prefix}", "Prefixes held.", _STATE),
    _gauge(
        "kvcache.namespace.bytes", "By", "GPU bytes held and on their way, of namespaces with a cap.", _NAMESPACE,
    ),
    _gauge("kvcache.pinned.bytes", "By", "Bytes counted to the pins' budget."),
    _gauge("kvcache.queue.depth", "{item}", "Work that waits, by form.", _FORM),
    _gauge("kvcache.leases", "{lease}", "Leases held."),
    _gauge("kvcache.lease.age", "s", "Age of the oldest lease.", pulled="kvcache_oldest_lease_seconds"),
    _gauge("kvcache.mode", "1", f"Mode of degradation: {', '.join(f'{m.rung} {m}' for m in Mode)}."),
    _gauge("kvcache.tier.breaker", "1", "Circuit breaker: 0 closed, 1 half open, 2 open.", _TIER),
    _gauge("kvcache.tier.stuck", "{call}", "Device calls that were left and have not come back.", _TIER),
    _gauge("kvcache.codec.logit_error", "1", "Largest absolute difference a codec made to a logit.", _CODEC, _LAST),
    _gauge("kvcache.codec.kl", "nat", "Mean divergence a codec made.", _CODEC, _LAST, pulled="kvcache_codec_kl_nats"),
    _seconds("kvcache.tier.io.duration", "Copies between tiers.", _TIER, _DIRECTION),
    _seconds("kvcache.queue.wait", "Time that work waited in its queue.", _FORM),
)  # fmt: skip

INSTRUMENTS: dict[str, Instrument] = {instrument.name: instrument for instrument in _ALL}
