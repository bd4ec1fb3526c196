"""Layer 2, looking: from a matched path to candidate boundaries and the one worth taking.

A plan saves tokens (usable minus replay) and costs seconds (restores). Candidates are weighed deepest first; a restore
that would not end before the deadline is no candidate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from engine.clock import Clock
from engine.config import EngineConfig, Mode
from engine.consistency.lease import Cost
from engine.consistency.prefix import Checkpoint, PrefixRecord
from engine.index.node import Path, Stretch, path_to
from engine.index.radix import TOKEN_BYTES, Match
from engine.memory.holding import Holding, Tier
from engine.memory.tiers import Tiers
from engine.memory.transfer import Breaker
from engine.model.objects import ObjectKind, PrefixLayouts
from engine.model.spec import ModelSpec
from engine.schedule.pace import PrefillPace
from engine.schedule.validation import Boundary, Check, Validator, first_failure

CANDIDATES_WEIGHED = 16
GAP_REASONS = {
    "none": "all of the longest common prefix is the hit",
    "new_content": "nothing of the prompt is known",
    "no_checkpoint": "no boundary deep enough has its boundary objects, and no replay may rebuild them",
    "replay_crosses_cuts": "no boundary deep enough has its boundary objects, and a replay would run over pages that "
    "were not computed a page a call, so it would get other last bits",
    "replay_costs_more": "no boundary deep enough has its boundary objects, and a replay would save nothing",
    "restore_slower_than_prefill": "computing the tokens is expected to be faster than restoring them",
    "restore_slower_than_deadline": "the restore is not expected to end before the caller's deadline",
    "restore_late": "the restore did not end before the caller's deadline; it goes on for the next request",
    "no_room": "everything on the GPU is leased or pinned, so nothing could be restored",
    "queue_full": "the queue of the restore's form is at its bound",
    "tier_unavailable": "the tier failed, or its breaker is open",
    "mode_no_disk": "the mode forbids restores from disk",
    "mode_resident_only": "the mode forbids restores",
    "mode_full_only": "the mode forbids coded KV and approximate state",
    "mode_bypass": "the mode forbids any reuse",
    "mode_drain": "the engine is being drained: no reuse and no commits",
    "weights_changed": "the caller's model is not the one whose state is kept",
    "load_failed": "the caller could not load what it was granted, and computes it",
}
"""Why a longest common prefix was not all usable, beside the reasons of the validations."""


@dataclass(slots=True, eq=False)
class RecoveryPlan:
    """One boundary, what must be restored for it, and what that costs.

    `checks` are the validations as they stand before any recovery.
    """

    boundary: Boundary
    checks: tuple[Check, ...]
    times: tuple[int, ...]
    restore_bytes: dict[Tier, int]
    restore_s: float
    saving_s: float = 0.0

    @property
    def ready(self) -> bool:
        return not self.restore_bytes

    @property
    def slowest_tier(self) -> Tier:
        if Tier.DISK in self.restore_bytes:
            return Tier.DISK
        return Tier.HOST if Tier.HOST in self.restore_bytes else Tier.GPU


class Refusal(NamedTuple):
    """A boundary that failed validation: what is recorded of it."""

    boundary: Boundary
    checks: tuple[Check, ...]
    times: tuple[int, ...]


class _Spot(NamedTuple):
    """A candidate before it is looked at: a position, and how many pages of the matched path count for it."""

    tokens: int
    pages: int
    checkpoint: Checkpoint | None = None
    replay_tokens: int = 0
    approximate: bool = False

    @property
    def net_tokens(self) -> int:
        return self.tokens - self.replay_tokens

    def boundary(self, path: Path[PrefixRecord], *, approximate: bool) -> Boundary:
        return Boundary(
            self.tokens, path_to(path, self.pages), self.pages, self.checkpoint, replay_tokens=self.replay_tokens,
            approximate=approximate or self.approximate,
        )  # fmt: skip


class Weighed(NamedTuple):
    """The outcome of looking at one boundary: a plan, or why there is none."""

    plan: RecoveryPlan | None
    reason: str
    refusal: Refusal | None


@dataclass(slots=True, eq=False)
class Outlook:
    """What a path offers: the longest common prefix, the plans worth weighing (best first), and why not more."""

    match: Match[PrefixRecord]
    lcp_tokens: int
    plans: list[RecoveryPlan]
    refused: list[Refusal]
    reason: str
    unpaid: Cost | None = None  # a replay that would not pay


class Planner:
    """Binds the rules of planning to one model and one configuration."""

    def __init__(
        self,
        spec: ModelSpec,
        layouts: PrefixLayouts,
        tiers: Tiers,
        validator: Validator,
        config: EngineConfig,
        clock: Clock,
        pace: PrefillPace,
    ) -> None:
        self._spec = spec
        self._layouts = layouts
        self._tiers = tiers
        self._validator = validator
        self._config = config
        self._clock = clock
        self._page_tokens = spec.page_tokens
        self._pace = pace
        self._replay_tokens = self._whole_pages(spec.replay_tokens)
        self._window_replay_tokens = self._whole_pages(spec.window_replay_tokens)
        self._replay_possible = config.replay and self._replay_tokens > 0 and not spec.has_recurrent

    def _whole_pages(self, tokens: int) -> int:
        """A replay starts at a page boundary: no entry is half built there."""
        return -(-tokens // self._page_tokens) * self._page_tokens

    def outlook(
        self,
        match: Match[PrefixRecord],
        tokens: bytes,
        mode: Mode,
        deadline_s: float,
        *,
        window_replay: bool = False,
        approximate: bool = False,
    ) -> Outlook:
        """Weigh the boundaries of a path, deepest first. Under the engine lock.

        `window_replay`: the request takes a replay of one window too. `approximate`: the path is of that space.
        """
        lcp = edge = match.pages * self._page_tokens
        plans: list[RecoveryPlan] = []
        refused: list[Refusal] = []
        best_saving, pace = 0.0, self._pace.tokens_per_s
        reason, weighed, unpaid = "", 0, False
        for spot in self._candidates(match, tokens, window_replay):
            if spot.replay_tokens == 0:
                lcp = max(lcp, spot.tokens)
            if spot.net_tokens / pace <= best_saving or weighed >= CANDIDATES_WEIGHED:
                unpaid = unpaid or spot.replay_tokens > 0
                continue
            weighed += 1
            found = self._weigh(spot.boundary(match.path, approximate=approximate), mode, deadline_s)
            if found.refusal is not None:
                refused.append(found.refusal)
            if found.plan is None:
                reason = reason or found.reason
                continue
            saving = spot.net_tokens / pace - found.plan.restore_s
            if saving > best_saving:
                best_saving = found.plan.saving_s = saving
                plans.insert(0, found.plan)
            else:
                reason = reason or "restore_slower_than_prefill"
        outlook = Outlook(match=match, lcp_tokens=lcp, plans=plans, refused=refused, reason=reason)
        if edge and self._replay_possible and not (plans and plans[0].boundary.tokens >= edge):
            self._explain_no_replay(outlook, edge, unpaid or edge <= self._replay_tokens)
        return outlook

    def _explain_no_replay(self, outlook: Outlook, edge: int, unpaid: bool) -> None:
        """The edge has no checkpoint, and its replay lost: because it saves nothing, with the arithmetic, or because it
        would make other calls than the run did."""
        why = ""
        if edge > self._replay_tokens and self._replay_edge(outlook.match) < outlook.match.pages:
            why = "replay_crosses_cuts"
        elif unpaid:
            why = "replay_costs_more"
            outlook.unpaid = Cost(edge, self._replay_tokens, 0, 0.0, self._pace.tokens_per_s)
        if why and outlook.reason in ("", "window_missing", "tail_missing"):
            outlook.reason = why

    def cost(self, boundary: Boundary, restore_bytes: int, restore_s: float) -> Cost:
        return Cost(boundary.tokens, boundary.replay_tokens, restore_bytes, restore_s, self._pace.tokens_per_s)

    def _candidates(self, match: Match[PrefixRecord], tokens: bytes, window_replay: bool) -> list[_Spot]:
        """Positions worth a look, by tokens they would save, most first; of equal ones the exact first."""
        page_tokens = self._page_tokens
        found: list[_Spot] = []
        whole_pages = self._whole_to(match)
        node = match.last
        if node is not None and not match.last_is_whole:
            node = node.parent
        while node is not None and node.parent is not None and len(found) < CANDIDATES_WEIGHED:
            record = node.record
            if record.checkpoints and (record.last_page <= whole_pages or not found):  # one is told why it is none
                start = record.last_page * page_tokens * TOKEN_BYTES
                found.extend(
                    _Spot(c.boundary, record.last_page, c)
                    for c in record.checkpoints.values()
                    if tokens.startswith(c.tail_tokens, start)
                )
            node = node.parent
        edge = match.pages * page_tokens
        if edge:
            if self._layouts.window.empty and self._layouts.recurrent.empty and self._layouts.tail_is_empty(edge):
                found.append(_Spot(edge, match.pages))
            elif self._replay_possible and (pages := self._replay_edge(match)):
                found.append(_Spot(pages * page_tokens, pages, replay_tokens=self._replay_tokens))
            elif not found:
                found.append(_Spot(edge, match.pages))  # to be refused with its reason
            if window_replay and self._replay_possible and self._pays_by_window(edge):
                replay = self._window_replay_tokens
                found.append(_Spot(edge, match.pages, replay_tokens=replay, approximate=True))
        found.sort(key=lambda spot: spot.net_tokens, reverse=True)
        return found

    def _whole_to(self, match: Match[PrefixRecord]) -> int:
        """How many pages of the path have each of their objects in some tier: nothing past them can be a hit."""
        for step in self._validator.proven_steps(match.path):
            if not isinstance(step, Stretch) and any(holding.absent for holding in step.record.spans.values()):
                return step.first_page
        return match.pages

    def _replay_edge(self, match: Match[PrefixRecord]) -> int:
        """The last page boundary, in pages, that an exact replay reaches: it runs a page a call, so every page it runs
        over must have been computed so. 0 where there is none."""
        pages, over = match.pages, self._replay_tokens // self._page_tokens
        named: set[int] = set()
        for step in self._validator.proven_steps(match.path):
            named |= step.proof.odd_pages if isinstance(step, Stretch) else step.record.odd_pages
        for page in sorted((page for page in named if page < match.pages), reverse=True):
            if page >= pages - over:
                pages = page
        return pages if pages > over else 0

    def _pays_by_window(self, edge: int) -> bool:
        return self._window_replay_tokens < min(edge, self._replay_tokens)

    def _weigh(self, boundary: Boundary, mode: Mode, deadline_s: float) -> Weighed:
        checks, times = self.validate(boundary)
        if failure := first_failure(checks):
            return Weighed(None, failure.reason, Refusal(boundary, checks, times))
        needs = self._restore_bytes(boundary)
        if refusal := self._mode_refuses(boundary, needs, mode):
            return Weighed(None, refusal, None)
        seconds = sum(self._tiers.estimate_s(tier, n) for tier, n in needs.items())
        if seconds > deadline_s:
            return Weighed(None, "restore_slower_than_deadline", None)
        return Weighed(RecoveryPlan(boundary, checks, times, needs, seconds), "", None)

    def validate(self, boundary: Boundary) -> tuple[tuple[Check, ...], tuple[int, ...]]:
        """The five checks and six clock readings around them."""
        clock = self._clock.monotonic_ns
        v = self._validator
        t0 = clock()
        complete = v.compressed_complete(boundary)
        t1 = clock()
        tail = v.tail_intact(boundary)
        t2 = clock()
        window = v.window_fresh(boundary)
        t3 = clock()
        indexer = v.indexer_synced(boundary)
        t4 = clock()
        disk = v.disk_reloaded(boundary)
        return (complete, tail, window, indexer, disk), (t0, t1, t2, t3, t4, clock())

    def steps(self, boundary: Boundary) -> Path[PrefixRecord]:
        """The boundary's path in few steps (`Validator.steps`)."""
        return self._validator.steps(boundary)

    def _restore_bytes(self, boundary: Boundary) -> dict[Tier, int]:
        needs: dict[Tier, int] = {}
        for holding in needed_holdings(boundary, self._validator.steps(boundary)):
            tier = holding.below
            if holding.gpu is None and tier is not None and holding.n_pages:
                needs[tier] = needs.get(tier, 0) + holding.below_bytes
        return needs

    def _mode_refuses(self, boundary: Boundary, needs: dict[Tier, int], mode: Mode) -> str:
        rung = mode.rung
        if not rung and not needs:
            return ""
        if rung >= Mode.NO_DISK.rung and Tier.DISK in needs:
            return "mode_no_disk"
        if rung >= Mode.RESIDENT_ONLY.rung and needs:
            return "mode_resident_only"
        if rung >= Mode.FULL_ONLY.rung and (boundary.approximate or any(n.record.coded for n in boundary.nodes)):
            return "mode_full_only"
        for tier in needs:
            if self._tiers.io[tier].breaker.state is Breaker.OPEN:
                return "tier_unavailable"
        return ""


def needed_holdings(boundary: Boundary, path: Path[PrefixRecord]) -> list[Holding]:
    """Every object the boundary needs and may not have on the GPU: span objects of the path (but not of what is proven
    there) and, without replay, the checkpoint's blocks."""
    found: list[Holding] = []
    for step in path:
        if not isinstance(step, Stretch):
            found += step.record.spans.values()
    checkpoint: Checkpoint | None = boundary.checkpoint
    if checkpoint is not None and not boundary.replay_tokens:
        found.extend(checkpoint.blocks.values())
    return found


def kinds_served(boundary: Boundary) -> list[ObjectKind]:
    """Object kinds that a hit at this boundary is served from."""
    found = list(boundary.last.record.spans)
    if boundary.checkpoint is not None and not boundary.replay_tokens:
        found.extend(boundary.checkpoint.blocks)
    return found
