"""Reads spans and snapshot entries: a whole fact, or BadFact with the reason."""

from __future__ import annotations

import datetime as dt
import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from controlplane.ingest.facts import (
    DOTTED,
    MAX_INT,
    MOST_TOKENS,
    UNKNOWN_LOSS,
    AcquireFact,
    BadFact,
    Bytes,
    CheckpointFact,
    Fact,
    Id,
    TransitionFact,
    ValidationFact,
)
from controlplane.ingest.otlp import attributes_of
from controlplane.store.columns import EPOCH, micros
from controlplane.store.query_types import STATES

MOST_CAUSES = 32
EARLIEST = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
MOST_AHEAD = dt.timedelta(days=1)
_EARLIEST_NS = micros(EARLIEST) * 1000
_LOST = "kvcache.lost."
_CAUSE = re.compile(r"[a-z][a-z0-9_]{0,31}")


def read_span(span: Span, latest_ns: int = MAX_INT) -> Fact | None:
    """The fact in a span; None for spans the store keeps nothing of. Raises BadFact, also for one that says it began
    (or its prefix's life did) after `latest_ns`."""
    reader = _READERS.get(span.name)
    if reader is None:
        return None
    check_time("start time", span.start_time_unix_nano, latest_ns)
    if len(span.trace_id) != 16 or len(span.span_id) != 8 or not any(span.trace_id) or not any(span.span_id):
        raise BadFact(f"ids of {len(span.trace_id)} and {len(span.span_id)} bytes are not 16 and 8, or are zero", "ids")
    fact = reader(span)
    if isinstance(fact, TransitionFact) and fact.life > latest_ns:
        raise BadFact(f"life {fact.life} began in the future", "time")
    return fact


def check_time(name: str, nanoseconds: int, latest_ns: int) -> None:
    """Raises BadFact for a time that would never be forgotten, or was before there was anything to tell."""
    if not nanoseconds:
        raise BadFact(f"{name} is absent", "time")
    if not _EARLIEST_NS <= nanoseconds <= latest_ns:
        side = "before 2020" if nanoseconds < _EARLIEST_NS else "in the future"
        raise BadFact(f"{name} {nanoseconds} ns is {side}: the engine's clock is wrong", "time")


def latest_ns(now: dt.datetime) -> int:
    """The latest time that is believed at `now`, in nanoseconds since 1970."""
    return micros(now + MOST_AHEAD) * 1000


def read_transition(entry: Mapping[str, Any], at: dt.datetime) -> TransitionFact:
    """The transition in a snapshot entry: attributes of `kvcache.transition` without the prefix. Raises BadFact."""
    return _transition({f"kvcache.{name}": value for name, value in entry.items()} | {"kvcache.at_us": micros(at)})


class Fields:
    """Reads typed fields out of attributes, refusing what the columns could not hold."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def text(self, name: str, *, longest: int, default: str | None = None) -> str:
        """A text of 1 to `longest` characters, or the default when it is absent."""
        value = self._values.get("kvcache." + name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or not 0 < len(value) <= longest:
            raise BadFact(f"{name} must be a text of 1 to {longest} characters, got {value!r}")
        if "\x00" in value:  # Postgres cannot hold it, and would refuse the whole batch
            raise BadFact(f"{name} holds a NUL character")
        return value

    def optional_text(self, name: str, *, longest: int) -> str | None:
        """As `text`; None when it is absent or empty."""
        return self.text(name, longest=longest, default="") or None if self._values.get("kvcache." + name) else None

    def count(self, name: str, *, least: int = 0, default: int | None = None) -> int:
        """A whole number of tokens from `least`, or the default when it is absent."""
        value = self._values.get("kvcache." + name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST_TOKENS:
            raise BadFact(f"{name} must be a whole number from {least} to {MOST_TOKENS}, got {value!r}")
        return value


def _transition_span(span: Span) -> TransitionFact:
    values = attributes_of(span.attributes)
    values["kvcache.at_us"] = span.start_time_unix_nano // 1000
    values["kvcache.trace_id"], values["kvcache.span_id"] = span.trace_id.hex(), span.span_id.hex()
    return _transition(values)


def _transition(values: dict[str, Any]) -> TransitionFact:
    objects, checkpoints = values.get("kvcache.objects"), values.get("kvcache.checkpoints")
    if objects is not None:
        values["kvcache.objects"] = _objects(objects)
    if checkpoints is not None:
        values["kvcache.checkpoints"] = _checkpoints(checkpoints)
    try:
        fact = msgspec.convert(values, TransitionFact)
    except msgspec.ValidationError as error:
        raise BadFact(_why(error, values)) from None
    if fact.state_to not in STATES:
        raise BadFact(f"state.to {fact.state_to!r} is not one of {', '.join(STATES)}", "state")
    if "\0" in "".join(_texts_of(fact)):  # Postgres cannot hold it, and would refuse the whole batch
        name = next(name for name, text in zip(_TEXTS, _texts_of(fact), strict=True) if "\0" in text)
        raise BadFact(f"{DOTTED.get(name, name)} holds a NUL character")
    return fact


_TEXTS = ("prefix_id", "parent_id", "namespace", "state_from", "cause", "reason", "objects", "command_id",
          "cause_trace_id", "cause_span_id")  # fmt: skip
_texts_of: Callable[[TransitionFact], tuple[str, ...]] = operator.attrgetter(*_TEXTS)


def _objects(document: Any) -> str:
    """The document's text, once it is proved to be one. A JSON text may not say NUL either."""
    text = document if isinstance(document, str) else json.dumps(document)
    try:
        decoded = _OBJECTS.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise BadFact("objects must map object kinds to tiers to bytes", "document") from None
    if not _is_plainly_written(text) and not all(
        _is_plain(name) for kind, tiers in decoded.items() for name in (kind, *tiers)
    ):
        raise BadFact("objects names kinds or tiers with characters that cannot be kept", "document")
    return text


def _is_plain(name: str) -> bool:
    """Whether both databases can hold a text: no NUL, no half of a surrogate pair."""
    return name.isprintable()


def _is_plainly_written(document: str) -> bool:
    """Whether nothing in a JSON text can be other than plain, seen in one look at all of it."""
    return document.isprintable() and "\\" not in document


def _checkpoints(document: Any) -> list[CheckpointFact]:
    try:
        if isinstance(document, str):
            found = _CHECKPOINTS.decode(document)
        else:
            found = msgspec.convert(document, list[CheckpointFact])
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeEncodeError, RecursionError) as error:
        text = f"checkpoints must be a list of {{id, boundary, kinds, tiers}}: {error}"
        raise BadFact(text, "document") from None
    plainly = isinstance(document, str) and _is_plainly_written(document)
    if not plainly and not all(
        _is_plain(name) for one in found for name in (one.checkpoint_id, *one.kinds, *one.tiers)
    ):
        raise BadFact("checkpoints has characters that cannot be kept", "document")
    return found


_OBJECTS = msgspec.json.Decoder(dict[Id, dict[Id, Bytes]])
_CHECKPOINTS = msgspec.json.Decoder(list[CheckpointFact])
_NAMED = re.compile(r"`(?:\$\.)?kvcache\.([a-z_.]+)`$")


def _why(error: msgspec.ValidationError, values: Mapping[str, Any]) -> str:
    """msgspec's refusal in the words of wire.md: which field, what it may be, what it was."""
    found = _NAMED.search(str(error))
    if found is None:
        return str(error)
    name = found.group(1)
    wanted = next(f.type for f in msgspec.structs.fields(TransitionFact) if f.encode_name == f"kvcache.{name}")
    return f"{name} must be {_in_words(msgspec.inspect.type_info(wanted))}, got {values.get(f'kvcache.{name}')!r}"


def _in_words(kind: msgspec.inspect.Type) -> str:
    if isinstance(kind, msgspec.inspect.IntType):
        return f"a whole number from {kind.ge or 0} to {kind.le}"
    if isinstance(kind, msgspec.inspect.StrType):
        return f"a text of {kind.min_length or 0} to {kind.max_length} characters"
    return "true or false"


def _validation_span(span: Span) -> ValidationFact:
    fields = Fields(attributes_of(span.attributes))
    return ValidationFact(
        prefix_id=fields.text("prefix.id", longest=32, default=""),
        validation=fields.text("validation", longest=32),
        object_kind=fields.text("object.kind", longest=32, default="none"),
        boundary=fields.count("boundary", default=0),
        verdict=fields.text("verdict", longest=16),
        reason=fields.text("reason", longest=64, default="none"),
        at=_at(span),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
    )


def _acquire_span(span: Span) -> AcquireFact:
    values = attributes_of(span.attributes)
    fields = Fields(values)
    prompt_tokens, usable_tokens = fields.count("prompt_tokens"), fields.count("usable_tokens")
    return AcquireFact(
        lost_prefix_id=fields.optional_text("lost.prefix.id", longest=32),
        lost=_lost(values, fields, prompt_tokens - usable_tokens),
        mode=fields.text("mode", longest=16, default="normal"),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        prefix_id=fields.optional_text("prefix.id", longest=32),
        namespace=fields.text("namespace", longest=128, default="default"),
        outcome=fields.text("outcome", longest=16),
        reason=fields.text("reason", longest=64, default="none"),
        state=fields.text("state", longest=24, default="none"),
        tier=fields.text("tier", longest=8, default="none"),
        prompt_tokens=prompt_tokens,
        lcp_tokens=fields.count("lcp_tokens"),
        usable_tokens=usable_tokens,
        replay_tokens=fields.count("replay_tokens", default=0),
        at=_at(span),
    )


def _lost(values: Mapping[str, Any], fields: Fields, lost_tokens: int) -> dict[str, int]:
    """Tokens by cause, all of them: what an older engine says no cause of is `unknown`."""
    lost = {
        name[len(_LOST) :]: fields.count(name.removeprefix("kvcache."), least=1)
        for name in values
        if name.startswith(_LOST) and name != f"{_LOST}prefix.id" and _CAUSE.fullmatch(name, len(_LOST))
    }
    if len(lost) > MOST_CAUSES:
        raise BadFact(f"{len(lost)} causes of loss are more than {MOST_CAUSES}", "loss")
    rest = lost_tokens - sum(lost.values())
    if rest < 0:
        raise BadFact(
            f"the causes of loss add up to {sum(lost.values())} tokens, of {lost_tokens} that were no hit", "loss"
        )
    return {**lost, UNKNOWN_LOSS: rest} if rest else lost


def _at(span: Span) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=span.start_time_unix_nano // 1000)


_READERS: dict[str, Callable[[Span], Fact]] = {
    "kvcache.transition": _transition_span,
    "kvcache.validate": _validation_span,
    "kvcache.acquire": _acquire_span,
}
