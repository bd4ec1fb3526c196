"""OTLP bodies as engines send them: the engine's own attributes, the exporter's encoder, gzip, 2,048 spans a body."""

from __future__ import annotations

import gzip
import random
import time
from collections.abc import Iterator
from itertools import islice

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from engine.consistency.prefix import CauseOf, Transition
from engine.consistency.state import Cause, State
from engine.telemetry.pump import transition_attributes

SCOPE = InstrumentationScope("kvdeck.engine")
BODY_SPANS = 2_048  # as the engine host's exporter sends them
ALIVE = 2_000  # prefixes whose lives run at the same time
# (state before, after, cause): a prefix that is committed, moved down, brought back, coded, and pushed out.
LIFE = (
    (State.NEW, State.FULL, Cause.COMMIT),
    (State.FULL, State.PARTIAL_OFFLOAD, Cause.PRESSURE),
    (State.PARTIAL_OFFLOAD, State.FULL_RESTORE, Cause.RESTORE),
    (State.FULL_RESTORE, State.FULL, Cause.RESTORE),
    (State.FULL, State.COMPRESSED, Cause.POLICY),
    (State.COMPRESSED, State.EVICTED, Cause.CAP),
)


def bodies(engine_id: str, boot_id: str, transitions: int) -> list[bytes]:
    """Gzipped trace exports of one engine with this many transitions in all."""
    resource = Resource({"kvdeck.engine.id": engine_id, "kvdeck.engine.boot_id": boot_id})
    spans = _spans(resource, random.Random(engine_id))
    found = []
    for start in range(0, transitions, BODY_SPANS):
        batch = list(islice(spans, min(BODY_SPANS, transitions - start)))
        found.append(gzip.compress(encode_spans(batch).SerializeToString(), compresslevel=6))
    return found


def _spans(resource: Resource, dice: random.Random) -> Iterator[ReadableSpan]:
    born = time.time_ns()
    alive: list[tuple[str, int, int]] = []  # prefix id, life, steps made
    for number in range(1 << 62):
        at = born + number * 50_000
        if len(alive) < ALIVE:
            alive.append((f"{dice.getrandbits(128):032x}", at, 0))
        index = dice.randrange(len(alive))
        prefix_id, life, steps = alive[index]
        step = _step(prefix_id, life, steps, at)
        if steps + 1 == len(LIFE):
            alive[index] = alive[-1]
            alive.pop()
        else:
            alive[index] = (prefix_id, life, steps + 1)
        context = SpanContext(dice.getrandbits(128), dice.getrandbits(64), False, TraceFlags(1))
        yield ReadableSpan(
            name="kvcache.transition",
            context=context,
            resource=resource,
            attributes=transition_attributes(step),
            start_time=at,
            end_time=at + 20_000,
            instrumentation_scope=SCOPE,
        )


def _step(prefix_id: str, life: int, steps: int, at: int) -> Transition:
    before, after, cause = LIFE[steps]
    tier = "host" if after is State.PARTIAL_OFFLOAD else "gpu"
    kinds = ("compressed_kv", "indexer_kv", "swa_window", "uncompressed_tail")
    gone = after is State.EVICTED
    return Transition(
        prefix_id=prefix_id,
        parent_id=prefix_id[::-1],
        namespace="tenant-a",
        life=life,
        version=steps + 1,
        before=before,
        after=after,
        cause=CauseOf(cause),
        tokens=2048,
        pages=32,
        bytes_moved=1 << 20,
        objects={} if gone else {kind: {tier: 1 << 18} for kind in kinds},
        checkpoints=() if gone else ((prefix_id[:24], 2048, kinds[2:], (tier,)),),
        pinned=False,
        wall_ns=at,
        monotonic_ns=at,
    )
