"""What one span says, as a frozen value: the facts that history is made of, their limits, and why one is refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct, field

MAX_INT = (1 << 63) - 1
# So that sums over millions of prefixes or requests stay inside 64 bits, in both databases.
MOST_TOKENS = 1 << 32
MOST_BYTES = 1 << 50
MOST_VERSION = 1 << 53

REASONS: Mapping[str, str] = {
    "attribute": "an attribute is missing, of another type, or out of its range",
    "document": "`objects` or `checkpoints` is no JSON of the right form",
    "ids": "a trace id is not 16 bytes, a span id not 8, or one is all zero",
    "loss": "the causes of loss add up to more than was lost, or are too many",
    "metric": "a kind of metric or a temporality that is not kept",
    "state": "a state that prefixes do not have",
    "time": "no time, one before 2020, or one more than a day ahead of this machine",
    "too_old": "from before the hour in which a second delivery is known",
    "value": "a metric's value, count or bucket that is no number or too large",
}
"""Why an item is refused, as `kvdeck_ingest_rejected` counts it. Beside these, the code with which all of an engine's
items were turned away (`engine_unknown`, `engine_boot`, `otlp_resource`)."""


class BadFact(Exception):
    """A span, point or snapshot entry that does not keep the wire contract; the text says which field, `reason` is one
    of REASONS."""

    def __init__(self, text: str, reason: str = "attribute") -> None:
        super().__init__(text)
        self.reason = reason


# Of the names in wire.md, those whose dots are no underscores here.
DOTTED = {
    "prefix_id": "prefix.id",
    "parent_id": "parent.id",
    "command_id": "command.id",
    "state_from": "state.from",
    "state_to": "state.to",
    "gpu_bytes": "bytes.gpu",
    "host_bytes": "bytes.host",
    "disk_bytes": "bytes.disk",
    "bytes_moved": "bytes",
    "cause_trace_id": "cause.trace_id",
    "cause_span_id": "cause.span_id",
}


def attribute(name: str) -> str:
    """The attribute that a field is told in."""
    return "kvcache." + DOTTED.get(name, name)


Count = Annotated[int, Meta(ge=0, le=MAX_INT)]
Tokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
Bytes = Annotated[int, Meta(ge=0, le=MOST_BYTES)]
Life = Annotated[int, Meta(ge=1, le=MAX_INT)]
Version = Annotated[int, Meta(ge=1, le=MOST_VERSION)]
Id = Annotated[str, Meta(min_length=1, max_length=32)]
Word = Annotated[str, Meta(min_length=1, max_length=24)]
Cause = Annotated[str, Meta(min_length=1, max_length=32)]
Reason = Annotated[str, Meta(min_length=1, max_length=64)]
Namespace = Annotated[str, Meta(min_length=1, max_length=128)]


class CheckpointFact(Struct, frozen=True, kw_only=True):
    """A boundary the prefix holds objects for."""

    checkpoint_id: Id = field(name="id")
    boundary: Tokens
    kinds: Annotated[list[Cause], Meta(max_length=32)] = []
    tiers: Annotated[list[Cause], Meta(max_length=32)] = []


class TransitionFact(Struct, frozen=True, kw_only=True, rename=attribute):
    """One transition of one prefix, checked by msgspec in one go: there are thousands a second.

    `objects` is a JSON document as its text, which is how it is stored. `checkpoints` None: the engine did not say.
    `at_us` is in microseconds since 1970.
    """

    prefix_id: Id
    parent_id: Annotated[str, Meta(max_length=32)] = ""
    namespace: Namespace = "default"
    life: Life
    version: Version
    state_from: Word
    state_to: Word
    cause: Cause
    reason: Reason = "none"
    at_us: int
    monotonic_ns: Count = 0
    tokens: Tokens
    pages: Tokens = 0
    bytes_moved: Bytes = 0
    gpu_bytes: Bytes = 0
    host_bytes: Bytes = 0
    disk_bytes: Bytes = 0
    objects: str = "{}"
    checkpoints: list[CheckpointFact] | None = None
    pinned: bool = False
    command_id: Annotated[str, Meta(max_length=36)] = ""
    trace_id: str = ""
    span_id: str = ""
    cause_trace_id: Annotated[str, Meta(max_length=32)] = ""
    cause_span_id: Annotated[str, Meta(max_length=16)] = ""

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
    """One request: what was asked, found, and usable, in tokens. `lost`: cause -> tokens; with the usable ones they are
    the prompt's."""

    prefix_id: str | None
    lost_prefix_id: str | None
    namespace: str
    outcome: str
    reason: str
    state: str
    tier: str
    prompt_tokens: int
    lcp_tokens: int
    usable_tokens: int
    replay_tokens: int
    lost: dict[str, int]
    mode: str
    at: dt.datetime
    trace_id: str
    span_id: str


UNKNOWN_LOSS = "unknown"
Fact = TransitionFact | ValidationFact | AcquireFact
