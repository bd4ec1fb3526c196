"""What-if on a recorded workload: the sampled curve beside the exact one, a recommended cap, other rules simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import xxhash

from controlplane.errors import BadRequest
from controlplane.insight.curves import (
    DEFAULT_WITHIN_POINTS,
    LEAST_SAMPLES,
    Curve,
    Recommendation,
    grid,
    recommend,
)
from controlplane.insight.exact import ExactCurve, exact_curve
from controlplane.insight.simulate import (
    Outcome,
    Prompt,
    Rules,
    Tell,
    page_spec,
    sampled,
    sampling_rate,
    simulate,
    variants,
)
from controlplane.workload.traces import Trace, TraceRequest
from engine.consistency.shards import Shards

CAP_SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
"""The caps at which the curves are compared, as shares of the distinct pages."""
SIMULATED_SHARES = (0.02, 0.05, 0.1, 0.25)
DEFAULT_ADMISSIONS = ("all", "second_touch", "first_pages:16")
DEFAULT_EVICTIONS = ("lru", "cost_aware")
DEFAULT_CHECKPOINTS = ("end_and_branch", "end_of_prompt", "every:2048", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What to ask of a trace. `rate` None: a tenth of the prompts, or more of a short trace. Without `caps_bytes` and
    `caps_prefixes` the rules are simulated at shares of what the whole trace would take."""

    trace: Path
    spec: str = "bench-full-swa"
    limit: int | None = None
    samples: int = 2048
    caps_prefixes: tuple[int, ...] = ()
    caps_bytes: tuple[int, ...] = ()
    admissions: tuple[str, ...] = DEFAULT_ADMISSIONS
    evictions: tuple[str, ...] = DEFAULT_EVICTIONS
    checkpoints: tuple[str, ...] = DEFAULT_CHECKPOINTS
    rate: float | None = None
    within_points: float = DEFAULT_WITHIN_POINTS
    block_tokens: int | None = None
    time_unit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The sampled and the exact hit rate of the longest common prefix at one cap."""

    pages: int
    prefixes: int | None
    n_bytes: int | None
    sampled_ratio: float
    exact_ratio: float

    @property
    def error_points(self) -> float:
        """How far apart they are, in percentage points."""
        return abs(self.sampled_ratio - self.exact_ratio) * 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceAnswer:
    """`refused` says why there is no curve; what was asked for is simulated all the same."""

    what: WhatIf
    page_tokens: int
    requests: int
    distinct_pages: int
    curve: Curve
    compared: tuple[Compared, ...]
    recommendation: Recommendation | None
    refused: str
    rate: float
    simulated: tuple[Outcome, ...]

    @property
    def mean_error_points(self) -> float:
        """The mean over the caps compared."""
        return sum(row.error_points for row in self.compared) / max(1, len(self.compared))

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        body: dict[str, Any] = {
            "trace": str(self.what.trace),
            "spec": self.what.spec,
            "requests": self.requests,
            "page_tokens": self.page_tokens,
            "references": round(self.curve.references),
            "distinct_pages": self.distinct_pages,
            "samples": round(self.curve.samples),
            "watched_pages": self.curve.watched_pages,
            "rate": self.curve.rate,
            "bytes_a_page": round(self.curve.bytes_a_page, 1),
            "pages_a_prefix": round(self.curve.pages_a_prefix, 2),
            "refused": self.refused or None,
            "simulation_rate": round(self.rate, 4),
            "simulated": [asdict(outcome) for outcome in self.simulated],
        }
        if self.refused:
            return body
        return body | {
            "mean_error_points": round(self.mean_error_points, 3),
            "max_error_points": round(max(row.error_points for row in self.compared), 3),
            "compared": [{**asdict(row), "error_points": round(row.error_points, 3)} for row in self.compared],
            "curve": [self.curve.point(pages) for pages in grid(self.curve)],
            "recommendation": None if self.recommendation is None else asdict(self.recommendation),
        }


def ask_trace(what: WhatIf, tell: Tell = lambda *_: None) -> TraceAnswer:
    """Read, sample, compare, recommend and simulate. Raises TraceError and BadRequest."""
    from engine import preset
    from engine.errors import SpecError

    trace = Trace(what.trace, block_tokens=what.block_tokens, time_unit=what.time_unit)
    records = _read(trace, what.limit, tell)
    try:
        spec = page_spec(preset(what.spec), trace.block_tokens)
    except SpecError as error:
        raise BadRequest("whatif_spec", f"{error}.", "`kvdeck spec` lists the models.") from error
    paths = [record.hash_ids[: record.input_tokens // trace.block_tokens] for record in records]
    tell("sampling the curve", 0, 1)
    shards = _sample(paths, what.samples)
    tell("the exact curve", 0, 1)
    exact = exact_curve(paths)
    rate = sampling_rate(len(records)) if what.rate is None else what.rate
    chosen = sampled(trace, records, rate)
    tell("measuring pages", 0, 1)
    block_bytes = _bytes_a_block(spec, trace.block_tokens)
    everything = simulate(chosen, spec, Rules(), cap_bytes=int(4 * exact.distinct * block_bytes), rate=rate)
    curve = _curve(shards, trace.block_tokens, records, everything, spec.page_tokens, block_bytes)
    curve = replace(curve, bytes_a_page=curve.bytes_a_page or block_bytes)
    missing = curve.missing_samples
    refused = f"{curve.samples:,.0f} samples, {missing:,} too few: no curve under {LEAST_SAMPLES:,}" if missing else ""
    return TraceAnswer(
        what=what,
        page_tokens=trace.block_tokens,
        requests=len(records),
        distinct_pages=exact.distinct,
        curve=curve,
        compared=tuple(_compare(curve, exact, share) for share in CAP_SHARES) if exact.distinct else (),
        recommendation=recommend(curve, what.within_points),
        refused=refused,
        rate=rate,
        simulated=tuple(_simulate_all(chosen, spec, what, curve, exact, rate, tell)),
    )


def _read(trace: Trace, limit: int | None, tell: Tell) -> list[TraceRequest]:
    found: list[TraceRequest] = []
    for record in trace:
        if limit is not None and len(found) >= limit:
            break
        found.append(record)
        if len(found) % 1000 == 0:
            tell("reading", len(found), limit or 0)
    return found


def _sample(paths: Sequence[tuple[int, ...]], samples: int) -> Shards:
    """As the engine samples, without ageing: the trace is the whole past. A block's id names the path to its end."""
    shards, hashes = Shards(samples), dict[int, int]()
    for path in paths:
        watched = []
        for block in path:
            page = hashes.get(block)
            if page is None:
                page = hashes[block] = xxhash.xxh3_64_intdigest(block.to_bytes(8, "little"))
            if page < shards.threshold:
                watched.append(page)
        shards.request(len(path), watched, len(watched))
    return shards


def _bytes_a_block(spec: Any, block_tokens: int) -> float:
    from engine.model.objects import bytes_per_token, checkpoint_bytes

    return float(bytes_per_token(spec) * block_tokens) or float(checkpoint_bytes(spec))


def _curve(
    shards: Shards,
    block_tokens: int,
    records: Sequence[TraceRequest],
    measured: Outcome,
    page_tokens: int,
    block_bytes: float,
) -> Curve:
    """The sample's curve; what a block takes, how many a prefix has and what stays usable is the simulation's."""
    facts, blocks_a_page = shards.facts(), page_tokens / block_tokens
    prompt = float(sum(record.input_tokens for record in records))
    return Curve(
        samples=facts.samples,
        references=facts.references,
        requests=float(len(records)),
        prompt_tokens=prompt,
        lcp_tokens=measured.lcp_ratio * prompt,
        usable_tokens=measured.hit_ratio * prompt,
        watched_pages=facts.watched_pages,
        rate=facts.rate,
        page_tokens=block_tokens,
        page_bytes=block_bytes,
        answer_pages=0.0,
        bytes_a_page=measured.bytes_a_page / blocks_a_page,
        pages_a_prefix=measured.pages_a_prefix * blocks_a_page,
        points=facts.points,
    )


def _compare(curve: Curve, exact: ExactCurve, share: float) -> Compared:
    pages = max(1, int(exact.distinct * share))
    point, lcp = curve.point(pages), replace(curve, usable_tokens=curve.lcp_tokens)
    in_pages = min(1.0, exact.references * curve.page_tokens / curve.prompt_tokens)
    return Compared(
        pages=pages,
        prefixes=point["prefixes"],
        n_bytes=point["bytes"],
        sampled_ratio=round(lcp.hit_ratio(pages), 5),
        exact_ratio=round(exact.share_at(pages) * in_pages, 5),
    )


def _simulate_all(
    chosen: Sequence[Prompt],
    spec: Any,
    what: WhatIf,
    curve: Curve,
    exact: ExactCurve,
    rate: float,
    tell: Tell,
) -> list[Outcome]:
    caps: list[tuple[int, int | None]] = [(cap, None) for cap in what.caps_bytes]
    ample = int(4 * exact.distinct * curve.bytes_a_page) + (1 << 20)
    caps += [(ample, cap) for cap in what.caps_prefixes]
    if not caps:
        caps = [(int(share * exact.distinct * curve.bytes_a_page), None) for share in SIMULATED_SHARES]
    todo = [(rules, cap) for cap in caps for rules in variants(what.admissions, what.evictions, what.checkpoints)]
    found = []
    for done, (rules, (cap_bytes, cap_prefixes)) in enumerate(todo):
        tell("simulating rules", done, len(todo))
        found.append(simulate(chosen, spec, rules, cap_bytes=cap_bytes, cap_prefixes=cap_prefixes, rate=rate))
    tell("simulating rules", len(todo), len(todo))
    return found
