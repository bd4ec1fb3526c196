"""What one span says, as a frozen value. Reading a span either gives a whole fact or raises BadFact with the reason."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from controlplane.ingest.otlp import attributes_of
from controlplane.store.columns import EPOCH
from controlplane.store.query_types import STATES

MAX_INT = (1 << 63) - 1


class BadFact(Exception):
    """A span or snapshot entry that does not keep the wire contract; the text says which field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFact:
    """A boundary the prefix holds objects for."""

    checkpoint_id: str
    boundary: int
    kinds: list[str]
    tiers: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionFact:
    """One transition of one prefix. `checkpoints` None: the engine did not say."""

    prefix_id: str
    parent_id: str | None
    namespace: str
    life: int
    version: int
    state_from: str
    state_to: str
    cause: str
    reason: str
    at: dt.datetime
    monotonic_ns: int
    tokens: int
    pages: int
    bytes_moved: int
    gpu_bytes: int
    host_bytes: int
    disk_bytes: int
    objects: dict[str, Any]
    checkpoints: list[CheckpointFact] | None
    pinned: bool
    command_id: str | None
    trace_id: str
    span_id: str
    cause_trace_id: str | None
    cause_span_id: str | None

    @property
    def order(self) -> tuple[int, int]:
        """Newer transitions of a prefix have a larger order, over all its lives."""
        return self.life, self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationFact:
    """One validation of one boundary."""

    prefix_id: str
    validation: str
    object_kind: str
    boundary: int
    verdict: str
    reason: str
    at: dt.datetime
    trace_id: str
    span_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireFact:
    """One request: what was asked, found, and usable, in tokens."""

    prefix_id: str | None
    namespace: str
    outcome: str
    reason: str
    state: str
    tier: str
    prompt_tokens: int
    lcp_tokens: int
    usable_tokens: int
    replay_tokens: int
    at: dt.datetime


Fact = TransitionFact | ValidationFact | AcquireFact


def read_span(span: Span) -> Fact | None:
    """The fact in a span; None for spans the store keeps nothing of. Raises BadFact."""
    reader = _READERS.get(span.name)
    if reader is None:
        return None
    if not 0 < span.start_time_unix_nano <= MAX_INT:
        raise BadFact("start time is absent")
    return reader(Fields(attributes_of(span.attributes), "kvcache."), span)


def read_transition(entry: Mapping[str, Any], at: dt.datetime) -> TransitionFact:
    """The transition in a snapshot entry: attributes of `kvcache.transition` without the prefix. Raises BadFact."""
    return _transition(Fields(entry, ""), at, trace_id="", span_id="")


class Fields:
    """Reads typed fields out of attributes, refusing what the columns could not hold."""

    def __init__(self, values: Mapping[str, Any], prefix: str) -> None:
        self._values = values
        self._prefix = prefix

    def text(self, name: str, *, longest: int, default: str | None = None) -> str:
        """A text of 1 to `longest` characters, or the default when it is absent."""
        value = self._values.get(self._prefix + name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or not 0 < len(value) <= longest:
            raise BadFact(f"{name} must be a text of 1 to {longest} characters, got {value!r}")
        if "\x00" in value:  # Postgres cannot hold it, and would refuse the whole batch
            raise BadFact(f"{name} holds a NUL character")
        return value

    def optional_text(self, name: str, *, longest: int) -> str | None:
        """As `text`; None when it is absent or empty."""
        return self.text(name, longest=longest, default="") or None if self._values.get(self._prefix + name) else None

    def count(self, name: str, *, least: int = 0, default: int | None = None) -> int:
        """A whole number from `least`, or the default when it is absent."""
        value = self._values.get(self._prefix + name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_INT:
            raise BadFact(f"{name} must be a whole number from {least}, got {value!r}")
        return value

    def flag(self, name: str) -> bool:
        """A truth value; false when it is absent."""
        value = self._values.get(self._prefix + name, False)
        if not isinstance(value, bool):
            raise BadFact(f"{name} must be true or false, got {value!r}")
        return value

    def document(self, name: str) -> Any:
        """A JSON document, as text or already read; None when it is absent."""
        value = self._values.get(self._prefix + name)
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError:
            raise BadFact(f"{name} is not JSON: {value[:60]!r}") from None


def _transition_span(fields: Fields, span: Span) -> TransitionFact:
    return _transition(fields, _at(span), trace_id=span.trace_id.hex(), span_id=span.span_id.hex())


def _transition(fields: Fields, at: dt.datetime, *, trace_id: str, span_id: str) -> TransitionFact:
    state_to = fields.text("state.to", longest=24)
    if state_to not in STATES:
        raise BadFact(f"state.to {state_to!r} is not one of {', '.join(STATES)}")
    objects = fields.document("objects")
    if objects is not None and not isinstance(objects, dict):
        raise BadFact("objects must map object kinds to tiers to bytes")
    return TransitionFact(
        prefix_id=fields.text("prefix.id", longest=32),
        parent_id=fields.optional_text("parent.id", longest=32),
        namespace=fields.text("namespace", longest=128, default="default"),
        life=fields.count("life", least=1),
        version=fields.count("version", least=1),
        state_from=fields.text("state.from", longest=24),
        state_to=state_to,
        cause=fields.text("cause", longest=32),
        reason=fields.text("reason", longest=64, default="none"),
        at=at,
        monotonic_ns=fields.count("monotonic_ns", default=0),
        tokens=fields.count("tokens"),
        pages=fields.count("pages", default=0),
        bytes_moved=fields.count("bytes", default=0),
        gpu_bytes=fields.count("bytes.gpu", default=0),
        host_bytes=fields.count("bytes.host", default=0),
        disk_bytes=fields.count("bytes.disk", default=0),
        objects=objects or {},
        checkpoints=_checkpoints(fields.document("checkpoints")),
        pinned=fields.flag("pinned"),
        command_id=fields.optional_text("command.id", longest=36),
        trace_id=trace_id,
        span_id=span_id,
        cause_trace_id=fields.optional_text("cause.trace_id", longest=32),
        cause_span_id=fields.optional_text("cause.span_id", longest=16),
    )


def _checkpoints(document: Any) -> list[CheckpointFact] | None:
    if document is None:
        return None
    if not isinstance(document, list) or not all(isinstance(entry, dict) for entry in document):
        raise BadFact("checkpoints must be a list of {id, boundary, kinds, tiers}")
    return [_checkpoint(Fields(entry, ""), entry) for entry in document]


def _checkpoint(fields: Fields, entry: Mapping[str, Any]) -> CheckpointFact:
    kinds, tiers = entry.get("kinds", []), entry.get("tiers", [])
    if not isinstance(kinds, list) or not isinstance(tiers, list):
        raise BadFact("kinds and tiers of a checkpoint must be lists")
    return CheckpointFact(
        checkpoint_id=fields.text("id", longest=32), boundary=fields.count("boundary"), kinds=kinds, tiers=tiers
    )


def _validation_span(fields: Fields, span: Span) -> ValidationFact:
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


def _acquire_span(fields: Fields, span: Span) -> AcquireFact:
    return AcquireFact(
        prefix_id=fields.optional_text("prefix.id", longest=32),
        namespace=fields.text("namespace", longest=128, default="default"),
        outcome=fields.text("outcome", longest=16),
        reason=fields.text("reason", longest=64, default="none"),
        state=fields.text("state", longest=24, default="none"),
        tier=fields.text("tier", longest=8, default="none"),
        prompt_tokens=fields.count("prompt_tokens"),
        lcp_tokens=fields.count("lcp_tokens"),
        usable_tokens=fields.count("usable_tokens"),
        replay_tokens=fields.count("replay_tokens", default=0),
        at=_at(span),
    )


def _at(span: Span) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=span.start_time_unix_nano // 1000)


_READERS: dict[str, Callable[[Fields, Span], Fact]] = {
    "kvcache.transition": _transition_span,
    "kvcache.validate": _validation_span,
    "kvcache.acquire": _acquire_span,
}
