"""Spans, their attributes and links."""

from __future__ import annotations

from engine.config import Mode
from engine.consistency.state import Cause, State
from engine.memory.holding import Tier
from engine.model.objects import ObjectKind
from engine.telemetry.registry.words import Attribute, LinkKind, SpanKind, Stability

_CODE = "one a reason in the code, under 100"
_PREFIX = "one a prefix"
_SPAN = "one a span"
_NUMBER = "a number"


def _words(words: type[object]) -> tuple[str, ...]:
    return tuple(str(word) for word in words)  # type: ignore[attr-defined]


def _choice(name: str, meaning: str, values: tuple[str, ...]) -> Attribute:
    return Attribute(name=name, type="string", meaning=meaning, bound=f"{len(values)}", values=values)


def _count(name: str, meaning: str, unit: str) -> Attribute:
    return Attribute(name=name, type="int", meaning=meaning, bound=_NUMBER, unit=unit)


def _real(name: str, meaning: str, unit: str) -> Attribute:
    return Attribute(name=name, type="double", meaning=meaning, bound=_NUMBER, unit=unit)


def _text(name: str, meaning: str, bound: str) -> Attribute:
    return Attribute(name=name, type="string", meaning=meaning, bound=bound)


_VALIDATIONS = ("compressed_complete", "tail_intact", "window_fresh", "indexer_synced", "disk_reloaded")
_CODECS = ("lossless", "int8", "fp8", "int4")
COMMANDS = (
    "evict", "warm", "restore", "pin", "unpin", "compress", "offload", "compact", "scrub", "drain", "foresee",
    "inspect", "fault", "reconfigure",
)  # fmt: skip

LOSSES = (
    "new_content", "part_page", "caller_refused", "evicted_cap", "evicted_namespace", "evicted_pressure",
    "evicted_command", "evicted_policy", "other_run", "admission_refused", "no_room", "lossy_refused",
    "checkpoint_missing", "replay_refused", "indexer_behind", "damaged", "restore_slow", "restore_failed", "mode",
)  # fmt: skip
"""Why tokens of a prompt were no hit, as schedule/losses.py has them; a test compares the two."""

ATTRIBUTES: dict[str, Attribute] = {
    a.name: a
    for a in (
        _text("kvcache.prefix.id", "the prefix: 128 bits of SHA-256, 32 hexadecimal digits", _PREFIX),
        _text("kvcache.parent.id", "the prefix it continues; absent at a root", _PREFIX),
        _text("kvcache.namespace", "the tenant it belongs to, as the caller named it", "one a namespace"),
        _count("kvcache.prompt_tokens", "tokens of the request", "{token}"),
        _count("kvcache.lcp_tokens", "tokens that the index knows of it; not a hit", "{token}"),
        _count("kvcache.usable_tokens", "tokens of the deepest boundary that all validations pass: the hit", "{token}"),
        _count("kvcache.replay_tokens", "tokens of the hit that the model must run again", "{token}"),
        _count(
            "gen_ai.usage.cache_read.input_tokens",
            "tokens read from the cache: usable less replay (OpenTelemetry's own name)",
            "{token}",
        ),
        *(
            _count(f"kvcache.lost.{cause}", "tokens that were no hit for this cause (losses.md)", "{token}")
            for cause in LOSSES
        ),
        _text("kvcache.lost.prefix.id", "the prefix that would have continued the hit, had it not left", _PREFIX),
        _count("kvcache.new_tokens", "tokens that the commit added", "{token}"),
        _count("kvcache.new_pages", "pages that the commit added", "{page}"),
        _text("kvcache.outcome", "how it ended; each span names its values", "under 10 a span kind"),
        _text("kvcache.reason", "why; `none` or `ok` when there is nothing to add", _CODE),
        _choice("kvcache.state", "the state it was served from", _words(State)),
        _choice("kvcache.tier", "the slowest tier it came from", _words(Tier)),
        _choice("kvcache.mode", "mode of degradation in force", _words(Mode)),
        _real("kvcache.plan.saving_s", "seconds that the hit is expected to save, restores taken off", "s"),
        _real("kvcache.plan.restore_s", "seconds that its restores were expected to take", "s"),
        _choice("kvcache.basis", "whether equal to an uninterrupted run", ("exact", "approximate")),
        _choice("kvcache.validation", "which of the five", _VALIDATIONS),
        _choice("kvcache.object.kind", "the kind of object looked at", _words(ObjectKind)),
        _count("kvcache.boundary", "the position, in tokens from the start; 0 for none", "{token}"),
        _choice("kvcache.verdict", "what the validation found", ("pass", "repairable", "fail", "not_applicable")),
        _choice("kvcache.phase", "when it looked", ("plan", "final", "scrub")),
        _count("kvcache.bytes", "bytes moved, read or freed by this step", "By"),
        _count("kvcache.bytes.gpu", "bytes held on the GPU after it", "By"),
        _count("kvcache.bytes.host", "bytes held on the host after it", "By"),
        _count("kvcache.bytes.disk", "bytes held on disk after it", "By"),
        _count("kvcache.life", "the stay in this engine: nanosecond of its birth, so a later one is larger", "ns"),
        _count("kvcache.version", "dense from 1 inside a life; a gap is a lost span", "1"),
        _choice("kvcache.state.from", "state before", _words(State)),
        _choice("kvcache.state.to", "state after", _words(State)),
        _choice("kvcache.cause", "what moved it", _words(Cause)),
        _count("kvcache.tokens", "tokens from the start to the prefix's end", "{token}"),
        _count("kvcache.pages", "pages of its own, or that were moved", "{page}"),
        _text("kvcache.objects", "JSON: object kind -> tier -> bytes, after it", _SPAN),
        _text(
            "kvcache.checkpoints",
            'JSON: [{"id", "boundary", "kinds", "tiers"}]; absent leaves them as they were, `[]` clears them',
            _SPAN,
        ),
        Attribute(name="kvcache.pinned", type="boolean", meaning="whether somebody pinned it", bound="2"),
        _count("kvcache.monotonic_ns", "the engine's monotonic clock, for order and durations", "ns"),
        _text("kvcache.cause.trace_id", "trace of the span that caused it, as its link", _SPAN),
        _text("kvcache.cause.span_id", "that span, as its link", _SPAN),
        _text("kvcache.command.id", "the operator's command, or `desired-<revision>`", "one a command"),
        _choice("kvcache.command.kind", "what was asked", COMMANDS),
        _count("kvcache.slabs_freed", "slabs given back", "{slab}"),
        _text("kvcache.fragmentation_before", "JSON: page class -> free bytes over bytes of its slabs", _SPAN),
        _text("kvcache.fragmentation_after", "the same, afterwards", _SPAN),
        _count("kvcache.objects_read", "stored objects read and compared", "{object}"),
        _count("kvcache.damaged", "of these, damaged", "{object}"),
        _choice("kvcache.codec", "the codec that was measured", _CODECS),
        _real("kvcache.codec.logit_error", "largest absolute difference of a logit", "1"),
        _real("kvcache.codec.kl", "mean Kullback-Leibler divergence of the next-token distributions", "nat"),
        _count("kvcache.positions", "positions it was measured at", "{position}"),
        Attribute(
            name="kvcache.dashboard.url", type="string", bound=_PREFIX, stability=Stability.EXPERIMENTAL,
            meaning="where the dashboard shows it; only with `EngineConfig.dashboard_url`",
        ),
    )
}  # fmt: skip

_CAUSE = LinkKind(
    leads_to="the span that caused it: a commit, an acquire, a command",
    same_as=("kvcache.cause.trace_id", "kvcache.cause.span_id"),
)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name if name.startswith("gen_ai.") else f"kvcache.{name}" for name in text.split())


SPANS: dict[str, SpanKind] = {
    s.name: s
    for s in (
        SpanKind(
            name="kvcache.acquire",
            meaning="one request asks for its prefix; outcome: hit, partial, miss, bypass",
            parent="the caller's span (traceparent, or the current OpenTelemetry span), else none",
            attributes=_names(
                "namespace prompt_tokens lcp_tokens usable_tokens replay_tokens gen_ai.usage.cache_read.input_tokens "
                "outcome reason mode basis"
            ),
            sometimes=(
                *_names("prefix.id state tier plan.saving_s plan.restore_s lost.prefix.id dashboard.url"),
                *(f"kvcache.lost.{cause}" for cause in LOSSES),
            ),
        ),
        SpanKind(
            name="kvcache.validate",
            meaning="one of the five validations of one boundary",
            parent="the acquire; of damage found otherwise: what found it",
            attributes=_names("prefix.id validation object.kind boundary verdict reason phase"),
            error_when="the verdict is fail",
        ),
        SpanKind(
            name="kvcache.restore",
            meaning="one prefix brought back to the GPU for a request; outcome: ok, failed, late",
            parent="the acquire",
            attributes=_names("prefix.id tier bytes outcome reason"),
            error_when="the restore failed or came late",
        ),
        SpanKind(
            name="kvcache.warmup",
            meaning="one prefix brought back for a command; outcome: ok, failed, late",
            parent="the command",
            attributes=_names("prefix.id tier bytes outcome reason command.id"),
            error_when="the restore failed or came late",
        ),
        SpanKind(
            name="kvcache.commit",
            meaning="what the model computed is offered; outcome: admitted, refused",
            parent="the acquire of its lease, else the current OpenTelemetry span, else none",
            attributes=_names("namespace prompt_tokens new_tokens new_pages outcome reason basis"),
            sometimes=_names("prefix.id"),
        ),
        SpanKind(
            name="kvcache.transition",
            meaning="one step of one prefix's life: the row of the history",
            parent="what caused it, where that is at work",
            attributes=_names(
                "prefix.id namespace life version state.from state.to basis cause reason tokens pages bytes bytes.gpu "
                "bytes.host bytes.disk objects checkpoints pinned monotonic_ns"
            ),
            sometimes=_names("parent.id cause.trace_id cause.span_id command.id dashboard.url"),
            link=_CAUSE,
            vital=True,
        ),
        SpanKind(
            name="kvcache.evict",
            meaning="one prefix left the engine",
            parent="what caused it",
            attributes=_names("prefix.id namespace cause tokens bytes"),
        ),
        SpanKind(
            name="kvcache.compact",
            meaning="pages moved together so that slabs come free",
            parent="the command",
            attributes=_names("pages bytes slabs_freed fragmentation_before fragmentation_after"),
        ),
        SpanKind(
            name="kvcache.scrub",
            meaning="files read and compared with their checksums",
            parent="the command",
            attributes=_names("objects_read bytes damaged"),
            error_when="it found damage, or the device ended it",
        ),
        SpanKind(
            name="kvcache.judge",
            meaning="what a lossy codec costs, measured before its pages are published; outcome: measured, refused, "
            "unmeasured, failed",
            parent="the command",
            attributes=_names("prefix.id codec outcome reason boundary"),
            sometimes=_names("codec.logit_error codec.kl positions"),
            error_when="the measurement raised",
        ),
        SpanKind(
            name="kvcache.command",
            meaning="an operator's command or a new desired state; outcome: succeeded, failed, refused, expired",
            parent="the operator's click (traceparent)",
            attributes=_names("command.id command.kind outcome reason"),
            sometimes=_names("dashboard.url"),
            error_when="it failed or was refused",
            vital=True,
        ),
    )
}  # fmt: skip

RESOURCE: dict[str, Attribute] = {
    a.name: a
    for a in (
        _text("service.name", "`kvdeck-engine`, unless OTEL_SERVICE_NAME or the caller says otherwise", "1"),
        _text("service.instance.id", "the engine", "one an engine"),
        _text("service.version", "of kvdeck", "one a release"),
        _text("kvdeck.engine.id", "the engine, the same over restarts", "one an engine"),
        _text("kvdeck.engine.boot_id", "changes with every start", "one a start"),
        _text("kvdeck.model", "name of the model spec", "one a model"),
        _text("kvdeck.fingerprint", "of the model spec, weights included: part of every prefix id", "one a model"),
        _count("kvdeck.faults.armed", "faults handed to the engine on purpose; absent without", "{fault}"),
    )
}
