"""Why not a hit: lost tokens by cause, and what to do about each. Causes and usable tokens are always the prompt's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from controlplane.ingest.facts import UNKNOWN_LOSS
from controlplane.store.queries_losses import (
    Asked,
    LossCount,
    RequestView,
    asked,
    asked_by_engine,
    loss_counts,
    loss_counts_by_engine,
)
from controlplane.store.query_types import Engines, TimeRange
from engine.schedule.losses import LOSSES, Loss

MEANINGS: Mapping[str, str] = {
    **{str(cause): meaning for cause, meaning in LOSSES.items()},
    UNKNOWN_LOSS: "told by an engine, or kept by a store, from before causes were told",
}
ADVICE: Mapping[str, str] = {
    str(Loss.NEW_CONTENT): "Nothing to gain by caching. If it should be shared, look for what differs early in "
    "prompts: a date, an id, the order of tools.",
    Loss.PART_PAGE: "Nothing to gain but by a checkpoint at the end of the very same prompt.",
    str(
        Loss.CALLER_REFUSED
    ): "Look at the caller: weights that changed, or loads that fail; `kvdeck explain --trace ID`.",
    Loss.EVICTED_CAP: "`kvdeck whatif` says what a larger cap brings; then `kvdeck cap --gpu BYTES`.",
    Loss.EVICTED_NAMESPACE: "Give the namespace more: `kvdeck cap --namespace NAME --max BYTES`.",
    str(
        Loss.EVICTED_PRESSURE
    ): "A tier is full: `kvdeck whatif` for a larger one; a host or disk tier keeps what leaves.",
    Loss.EVICTED_COMMAND: "The audit says who and why (dashboard, Audit); pin what must stay: `kvdeck pin ID`.",
    Loss.EVICTED_POLICY: "`kvdeck policy list` shows it; let it keep longer, or pin: `kvdeck pin ID`.",
    str(
        Loss.OTHER_RUN
    ): "Runs of one prompt gave other bytes (batching, kernels): nothing to gain but by exact replays.",
    Loss.ADMISSION_REFUSED: "If the cap has room, keep more: `kvdeck cap --admission all`.",
    Loss.NO_ROOM: "Leases or pins fill the cap: `kvdeck status`; unpin, or raise it: `kvdeck cap --gpu BYTES`.",
    Loss.LOSSY_REFUSED: "Lossy codecs keep what follows from being stored; a lossless codec does not.",
    str(
        Loss.CHECKPOINT_MISSING
    ): "More checkpoints: `kvdeck cap --checkpoints 0.4` for their share of the GPU tier, or "
    "checkpoint_every_tokens in the engine's configuration.",
    str(
        Loss.REPLAY_REFUSED
    ): "Checkpoints nearer to where prompts part save the replay: `kvdeck cap --checkpoints 0.4`.",
    Loss.INDEXER_BEHIND: "Evict it so that it is computed again: `kvdeck evict ID`.",
    Loss.DAMAGED: "`kvdeck quarantine` and `kvdeck scrub` find the damage; then look at the disk.",
    Loss.RESTORE_SLOW: "Warm what matters before it is asked for: `kvdeck warm ID`; or give requests more time.",
    Loss.RESTORE_FAILED: "A tier fails: `kvdeck doctor` names it; `kvdeck mode no_disk` until it is well.",
    Loss.MODE: "`kvdeck mode normal` once the reason for the mode is gone; `kvdeck status` shows it.",
    UNKNOWN_LOSS: "Upgrade the engine; older minutes stay unknown.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRow:
    """One cause. `share` is of all prompt tokens."""

    cause: str
    tokens: int
    requests: int
    share: float
    meaning: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyMiss:
    """Where the tokens of prompts went: `usable_tokens` and the rows' tokens are `prompt_tokens` together."""

    requests: int
    prompt_tokens: int
    lcp_tokens: int
    usable_tokens: int
    replay_tokens: int
    rows: list[LossRow]


def why_in_window(
    session: Session, window: TimeRange, engine_id: Engines = None, namespace: str | None = None
) -> WhyMiss:
    """Of all requests of a range. Read from rollups: its cost does not grow with traffic."""
    found = asked(session, window, engine_id, namespace)
    return _why(found, loss_counts(session, window, engine_id, namespace))


def why_by_engine(session: Session, window: TimeRange, engines: Sequence[str]) -> dict[str, WhyMiss]:
    """Of all requests of a range, engine by engine: two statements, however many engines."""
    found = asked_by_engine(session, window, engines)
    counts = loss_counts_by_engine(session, window, engines)
    return {engine: _why(found[engine], counts[engine]) for engine in engines}


def why_of(requests: Iterable[RequestView]) -> WhyMiss:
    """Of single requests."""
    sums = dict.fromkeys(Asked.__slots__, 0)
    lost: dict[str, LossCount] = {}
    for request in requests:
        sums["requests"] += 1
        for name in Asked.__slots__[1:]:
            sums[name] += getattr(request, name)
        for cause, tokens in request.lost.items():
            before = lost.get(cause, LossCount(cause, 0, 0))
            lost[cause] = LossCount(cause, before.requests + 1, before.tokens + tokens)
    return _why(Asked(**sums), sorted(lost.values(), key=lambda row: (-row.tokens, row.cause)))


def _why(found: Asked, counts: list[LossCount]) -> WhyMiss:
    rest = found.prompt_tokens - found.usable_tokens - sum(count.tokens for count in counts)
    if rest > 0:  # minutes from before the losses were kept
        counts = [*counts, LossCount(UNKNOWN_LOSS, 0, rest)]
    rows = [
        LossRow(
            cause=count.cause,
            tokens=count.tokens,
            requests=count.requests,
            share=count.tokens / found.prompt_tokens if found.prompt_tokens else 0.0,
            meaning=MEANINGS.get(count.cause, "a cause this control plane does not know; upgrade it"),
            advice=ADVICE.get(count.cause, ""),
        )
        for count in counts
    ]
    return WhyMiss(
        requests=found.requests,
        prompt_tokens=found.prompt_tokens,
        lcp_tokens=found.lcp_tokens,
        usable_tokens=found.usable_tokens,
        replay_tokens=found.replay_tokens,
        rows=rows,
    )
