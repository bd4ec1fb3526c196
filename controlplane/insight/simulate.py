"""Miniature simulation (Waldspurger et al., ATC 2017): other rules at other caps, on a sample of a recorded workload.

What runs is the engine itself, keeping books without bytes: the same objects decide on admission, eviction, checkpoints
and shares as in production. The sample is of families: prompts that go on from a common beginning come all or not at
all, or there would be no checkpoint of an earlier turn to find. Caps shrink by the same rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xxhash

from controlplane.errors import BadRequest
from controlplane.workload.request import Tokens
from controlplane.workload.traces import Trace, TraceRequest, output_of

if TYPE_CHECKING:
    from engine import CacheEngine
    from engine.model.spec import ModelSpec

LEAST_RATE = 0.1
LEAST_REQUESTS = 1000
"""A sample is a tenth of the requests, or more where that is fewer than this."""
SHARED_BY = 0.01
"""A beginning that more than this share of the requests has in common is nobody's family: a system prompt, say."""
CHECKPOINT_RULES = ("end_and_branch", "end_of_prompt", "end_of_output", "every:N", "none")

Tell = Callable[[str, int, int], None]
"""Told how far a long piece of work is: what it is, done, of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What an engine runs with. `checkpoints`: where the windows and tails of a prompt are kept; `end_and_branch` is
    what engines do, and `end_of_output` and `every:N` (tokens) do more. A recorded trace does not say what was
    answered, so `end_of_output` can show its cost here, not its use."""

    admission: str = "all"
    eviction: str = "lru"
    checkpoints: str = "end_and_branch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one simulation; ratios are of prompt tokens. `net_ratio` is what need not be computed again."""

    rules: Rules
    cap_bytes: int
    cap_prefixes: int | None
    requests: int
    lcp_ratio: float
    hit_ratio: float
    net_ratio: float
    refused: int
    pages_a_prefix: float
    bytes_a_page: float


class Prompt(NamedTuple):
    """One request of a trace, with its tokens."""

    record: TraceRequest
    tokens: Tokens


def sampling_rate(requests: int) -> float:
    """The share of the families to simulate."""
    return min(1.0, max(LEAST_RATE, LEAST_REQUESTS / max(1, requests)))


def sampled(trace: Trace, records: Sequence[TraceRequest], rate: float) -> list[Prompt]:
    """The prompts of a `rate` of all families, in their order."""
    if rate >= 1.0:
        return [Prompt(record, trace.tokens_of(record)) for record in records]
    shared = Counter(block for record in records for block in set(record.hash_ids))
    most = max(1.0, SHARED_BY * len(records))

    def chosen(record: TraceRequest) -> bool:
        family = next((block for block in record.hash_ids if shared[block] <= most), None)
        name = record.line if family is None else family
        return xxhash.xxh3_64_intdigest(str(name).encode(), seed=1) < rate * 2.0**64

    return [Prompt(record, trace.tokens_of(record)) for record in records if chosen(record)]


def simulate(
    prompts: Sequence[Prompt],
    spec: ModelSpec,
    rules: Rules,
    *,
    cap_bytes: int,
    cap_prefixes: int | None = None,
    rate: float = 1.0,
) -> Outcome:
    """Run the prompts through an engine's books with `rate` of the caps. Raises BadRequest for rules there are not."""
    from engine import CacheEngine, EngineConfig
    from engine.errors import ConfigError

    every = _every_tokens(rules.checkpoints)
    try:
        config = EngineConfig(
            engine_id="whatif",
            gpu_bytes=max(1 << 20, int(cap_bytes * rate)),
            cap_prefixes=None if cap_prefixes is None else max(1, int(cap_prefixes * rate)),
            admission_rule=rules.admission,
            eviction=rules.eviction,
            checkpoint_every_tokens=every,
            materialise=False,
            spans=False,
            codec="none",
            curve_samples=0,
        )
    except ConfigError as error:
        raise BadRequest("whatif_rule", f"{error}.", "`kvdeck whatif --help` lists the rules.") from error
    engine = CacheEngine(spec, config)
    try:
        return _run(engine, prompts, rules, cap_bytes, cap_prefixes)
    finally:
        engine.close()


def page_spec(spec: ModelSpec, block_tokens: int) -> ModelSpec:
    """The model with a page of one block of the trace where its layers allow that: nothing smaller can be told apart in
    the trace, and nothing is gained by keeping books of it."""
    from engine.errors import SpecError

    try:
        return replace(spec, page_tokens=block_tokens)
    except SpecError:
        return spec


def _run(
    engine: CacheEngine,
    prompts: Sequence[Prompt],
    rules: Rules,
    cap_bytes: int,
    cap_prefixes: int | None,
) -> Outcome:
    prompt = lcp = usable = replayed = refused = 0
    for each in prompts:
        tokens = each.tokens
        with engine.acquire(tokens, deadline_s=3600.0) as lease:
            prompt, lcp = prompt + len(tokens), lcp + lease.lcp_tokens
            usable, replayed = usable + lease.usable_tokens, replayed + lease.replay_tokens
            kept, positions = _commit(each, lease.checkpoint_hints, rules.checkpoints)
            refused += engine.commit(kept, None, lease=lease, checkpoints=positions).outcome == "refused"
    now = engine.held()["total"]
    whole = max(1, prompt)
    return Outcome(
        rules=rules,
        cap_bytes=cap_bytes,
        cap_prefixes=cap_prefixes,
        requests=len(prompts),
        lcp_ratio=round(lcp / whole, 5),
        hit_ratio=round(usable / whole, 5),
        net_ratio=round((usable - replayed) / whole, 5),
        refused=refused,
        pages_a_prefix=now["pages"] / now["prefixes"] if now["prefixes"] else 0.0,
        bytes_a_page=now["gpu_bytes"] / now["gpu_pages"] if now["gpu_pages"] else 0.0,
    )


def _commit(each: Prompt, hints: tuple[int, ...], rule: str) -> tuple[Tokens, tuple[int, ...]]:
    """What of a request is kept, and where its checkpoints are."""
    if rule == "none":
        return each.tokens, ()
    if rule == "end_of_prompt":
        return each.tokens, (len(each.tokens),)
    if rule == "end_of_output":
        whole = np.concatenate([each.tokens, output_of(each.record)])
        return whole, (*hints, len(whole))
    return each.tokens, hints


def _every_tokens(rule: str) -> int:
    name, _, number = rule.partition(":")
    if name == "every" and number.isascii() and number.isdigit() and int(number):
        return int(number)
    if rule not in CHECKPOINT_RULES or name == "every":
        known = ", ".join(CHECKPOINT_RULES)
        raise BadRequest("whatif_rule", f"There is no checkpoint rule {rule!r}.", f"Known: {known}.")
    return 0


def variants(admissions: Sequence[str], evictions: Sequence[str], checkpoints: Sequence[str]) -> Iterator[Rules]:
    """Every admission with every eviction, and every checkpoint rule beside the first of both."""
    for admission in admissions:
        for eviction in evictions:
            yield Rules(admission=admission, eviction=eviction)
    for rule in checkpoints:
        if rule != Rules().checkpoints:
            yield Rules(admission=admissions[0], eviction=evictions[0], checkpoints=rule)
