"""Acquire: from tokens to a lease. Match, plan, recover if it pays, validate and pin in one atomic step, explain."""

from __future__ import annotations

from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field

from engine.clock import NS_PER_S
from engine.config import EngineConfig, Mode
from engine.consistency.lease import Explanation, Lease, LeaseSource, lossy, pin_path, unpin_path
from engine.consistency.prefix import CauseOf, PrefixRecord
from engine.consistency.state import Cause, State
from engine.consistency.stretch import bounds_of
from engine.index.node import Stretch
from engine.index.radix import TOKEN_BYTES, Match
from engine.index.space import space_of
from engine.memory.holding import Bound, Tier
from engine.model.objects import ObjectKind
from engine.schedule.gate import Gate
from engine.schedule.ledger import Ledger, PrefixNode
from engine.schedule.losses import Loss, Lost
from engine.schedule.plan import Outlook, Planner, RecoveryPlan, kinds_served
from engine.schedule.queues import FormQueues, QueueFull
from engine.schedule.recovery import Recovery, RestoreJob, deadline_after
from engine.schedule.validation import Boundary, Verdict
from engine.telemetry.ring import SpanContext, new_span

_ATTEMPTS = 4
NO_REUSE = (Mode.BYPASS, Mode.DRAIN)
"""Rounds of plan and restore in one acquire; each later one has less deadline left."""


_LOST = {str(cause): f"kvcache.lost.{cause}" for cause in Loss}
_NOT_SERVED = (Verdict.FAIL, Verdict.REPAIRABLE)


@dataclass(slots=True, eq=False)
class _Request:
    """One acquire on its way."""

    namespace: str
    tokens: bytes
    mode: Mode
    parent: SpanContext
    span: SpanContext
    start_ns: int
    deadline_ns: int
    approximate: bool = False  # the caller takes an approximate hit
    refuse: str = ""  # the caller knows that reuse would be wrong: why
    reason: str = ""
    restored_from: Tier | None = None
    restore_bytes: int = 0
    restore_s: float = 0.0
    pinned: list[PrefixNode] = field(default_factory=list)

    def note_restored(self, plan: RecoveryPlan) -> None:
        """What was brought back, and what that was expected to cost."""
        self.restored_from = _slower(self.restored_from, plan.slowest_tier)
        self.restore_bytes += sum(plan.restore_bytes.values())
        self.restore_s += plan.restore_s

    def avoid(self, tier: Tier) -> None:
        """The tier's queue is full: go on as if the mode forbade it."""
        self.reason = "queue_full"
        least = Mode.NO_DISK if tier is Tier.DISK else Mode.RESIDENT_ONLY
        self.mode = max(self.mode, least, key=lambda m: m.rung)


class Server:
    """Answers acquires. `mode` is read afresh each time: it is desired state."""

    def __init__(
        self,
        ledger: Ledger,
        planner: Planner,
        recovery: Recovery,
        queues: FormQueues,
        config: EngineConfig,
        source: LeaseSource,
        gate: Gate,
    ) -> None:
        self._ledger = ledger
        self._gate = gate
        self._planner = planner
        self._recovery = recovery
        self._queues = queues
        self._config = config
        self._source = source
        self._page_tokens = ledger.spec.page_tokens
        self.checkpoint_every_tokens = config.checkpoint_every_tokens

    def acquire(
        self,
        namespace: str,
        tokens: bytes,
        mode: Mode,
        deadline_s: float,
        parent: SpanContext,
        *,
        approximate: bool = False,
        refuse: str = "",
    ) -> Lease:
        """A lease in every case; a miss is a lease of no tokens. Waits for restores no longer than the deadline."""
        ledger = self._ledger
        start_ns = ledger.clock.monotonic_ns()
        request = _Request(
            namespace, tokens, mode, parent, new_span(parent), start_ns, deadline_after(start_ns, deadline_s),
            approximate, refuse,
        )  # fmt: skip
        try:
            for attempt in range(_ATTEMPTS):
                with ledger.lock:
                    outlook = self._outlook(request, last=attempt == _ATTEMPTS - 1)
                    if attempt == 0:
                        self._record_refusals(outlook, request.span)
                    request.reason = request.reason or outlook.reason
                    plan = next(iter(outlook.plans), None)
                    if plan is None or plan.ready:
                        return self._grant(request, outlook, plan)
                    job = self._begin(plan, request)
                if job is None:
                    request.avoid(plan.slowest_tier)
                else:
                    self._await(job, request)
                    if job.steps and not (job.failure or job.late):
                        request.note_restored(plan)
            raise AssertionError("unreachable: the last round plans with no time for restores")
        finally:
            if request.pinned:
                with ledger.lock:
                    for node in request.pinned:
                        unpin_path(node)

    def _outlook(self, request: _Request, *, last: bool) -> Outlook:
        match = self._ledger.index.match(request.namespace, request.tokens)
        if request.mode in NO_REUSE or request.refuse:
            return Outlook(match, match.pages * self._page_tokens, [], [], request.refuse or f"mode_{request.mode}")
        left_ns = 0 if last else max(0, request.deadline_ns - self._ledger.clock.monotonic_ns())
        left_s = left_ns / NS_PER_S
        if request.approximate:
            return self._either_outlook(match, request, left_s)
        return self._planner.outlook(match, request.tokens, request.mode, left_s)

    def _either_outlook(self, match: Match[PrefixRecord], request: _Request, left_s: float) -> Outlook:
        """The caller takes an approximate hit: the better of the exact and the approximate space, and of equal ones
        the exact."""
        tokens, mode = request.tokens, request.mode
        exact = self._planner.outlook(match, tokens, mode, left_s, window_replay=True)
        space = self._ledger.index.match(space_of(request.namespace, approximate=True), tokens)
        if not space.pages:
            return exact
        other = self._planner.outlook(space, tokens, mode, left_s, window_replay=True, approximate=True)
        gained = other.plans[0].saving_s if other.plans else 0.0
        better = other if gained > (exact.plans[0].saving_s if exact.plans else 0.0) else exact
        better.lcp_tokens = max(exact.lcp_tokens, other.lcp_tokens)
        better.refused = [*exact.refused, *other.refused]
        return better

    # -- recovery ---------------------------------------------------------------------------------------------------

    def _begin(self, plan: RecoveryPlan, request: _Request) -> RestoreJob | None:
        """Mark the plan's restore, or wait a little if another thread works on one of its prefixes. Under the lock.

        None: the queue is full, so this request does without the tier.
        """
        ledger, boundary = self._ledger, plan.boundary
        span = request.span
        target = boundary.last
        needs_checkpoint = boundary.checkpoint is not None and not boundary.replay_tokens
        wanted = boundary.checkpoint.checkpoint_id if boundary.checkpoint and needs_checkpoint else None
        steps = [n for n in boundary.nodes if not n.record.resident or (n is target and not _ready(n, wanted))]
        cause = CauseOf(Cause.RESTORE, "acquire", span.hex_trace, span.hex_span)
        job = RestoreJob(steps, target, wanted, cause, span, request.deadline_ns)
        if any(n.record.busy for n in steps):
            job.steps = []
            left_s = (request.deadline_ns - ledger.clock.monotonic_ns()) / NS_PER_S
            ledger.settled.wait(max(0.001, min(0.05, left_s)))
            return job
        if self._queues[job.form].full:
            return None
        pin_path(target)
        request.pinned.append(target)
        ledger.counters.count_checks(plan.checks)
        ledger.ring.check_batch(span, boundary.prefix_id, boundary.tokens, "plan", plan.checks, plan.times)
        self._recovery.prepare(job)
        return job

    def _await(self, job: RestoreJob, request: _Request) -> None:
        """Run the job on its queue and wait for it until the deadline; notes on the request why it did not work."""
        if not job.steps:
            return
        try:
            future = self._queues[job.form].submit(lambda: self._recovery.run(job))
        except QueueFull:
            job.failure = "queue_full"
            self._recovery.run(job)  # undoes the marks: with a failure set, every step goes back to where it was
        else:
            left_s = (request.deadline_ns - self._ledger.clock.monotonic_ns()) / NS_PER_S
            try:
                future.result(timeout=max(0.001, left_s))
            except FutureTimeout:
                job.late = True
                request.reason = "restore_late"
                return
        request.reason = job.failure

    # -- the atomic end ---------------------------------------------------------------------------------------------

    def _grant(self, request: _Request, outlook: Outlook, plan: RecoveryPlan | None) -> Lease:
        """Validate once more, bind, pin and explain, in one step under the lock."""
        ledger = self._ledger
        boundary = plan.boundary if plan is not None else None
        if boundary is not None:
            boundary.final, boundary.restored = True, request.restored_from is not None
            checks, times = self._planner.validate(boundary)
            ledger.counters.count_checks(checks)
            ledger.ring.check_batch(request.span, boundary.prefix_id, boundary.tokens, "final", checks, times)
            if bad := next((c for c in checks if c.verdict in _NOT_SERVED), None):
                request.reason, boundary = bad.reason, None
        lease = self._lease(request, outlook, boundary)
        now_ns = ledger.clock.monotonic_ns()
        ledger.leases.grant(lease, now_ns)
        if boundary is not None:
            ledger.touch(boundary.last, now_ns)
            if boundary.checkpoint is not None:
                ledger.checkpoints.touch(boundary.last, boundary.checkpoint.checkpoint_id)
        self._count(lease, boundary)
        self._record(lease, request, now_ns)
        return lease

    def _lease(self, request: _Request, outlook: Outlook, boundary: Boundary | None) -> Lease:
        prompt_tokens = len(request.tokens) // TOKEN_BYTES
        lcp = outlook.lcp_tokens
        usable = boundary.tokens if boundary is not None else 0
        lcp = max(lcp, usable)
        outcome = "miss" if not usable else ("hit" if usable == lcp else "partial")
        if request.mode in NO_REUSE:
            outcome = "bypass"
        gap = "none" if usable == lcp and lcp else ("new_content" if not lcp else request.reason or "no_checkpoint")
        lost = self._lost(request, outlook.match, lcp, usable)
        spans, blocks = self._bind(boundary) if boundary is not None else ({}, {})
        last = boundary.last.record if boundary is not None else None
        approximate = boundary is not None and (boundary.approximate or (request.approximate and lossy(spans)))
        explanation = Explanation(
            outcome=outcome,
            reason=request.refuse or gap,
            prefix_id=boundary.prefix_id if boundary is not None else "",
            state="" if last is None else str(State.APPROXIMATE if approximate else last.state),
            tier="" if boundary is None else str(request.restored_from or Tier.GPU),
            codec=_codec(spans),
            mode=str(request.mode),
            trace_id=request.span.hex_trace,
            span_id=request.span.hex_span,
            sampled=request.span.sampled,
            tracestate=request.span.tracestate,
            continued=request.span.continued,
            cost=outlook.unpaid
            if boundary is None
            else self._planner.cost(boundary, request.restore_bytes, request.restore_s),
            lost=tuple(lost.tokens.items()),
            lost_prefix_id=lost.prefix_id,
        )
        return Lease(
            self._source,
            namespace=request.namespace,
            prompt_tokens=prompt_tokens,
            lcp_tokens=lcp,
            usable_tokens=usable,
            replay_tokens=boundary.replay_tokens if boundary is not None else 0,
            checkpoint_hints=self._hints(request, outlook, boundary),
            explanation=explanation,
            node=boundary.last if boundary is not None else None,
            pages=boundary.pages if boundary is not None else 0,
            spans=spans,
            blocks=blocks,
            approximate=approximate,
        )

    def _lost(self, request: _Request, match: Match[PrefixRecord], lcp_tokens: int, usable_tokens: int) -> Lost:
        approximate = match.last is not None and match.last.record.approximate
        space = space_of(request.namespace, approximate=approximate)
        gap = request.refuse or request.reason or "no_checkpoint"
        return self._ledger.losses.attribute(space, request.tokens, match, lcp_tokens, usable_tokens, gap)

    def _bind(self, boundary: Boundary) -> tuple[dict[ObjectKind, list[Bound]], dict[ObjectKind, Bound]]:
        tiers = self._ledger.tiers
        spans: dict[ObjectKind, list[Bound]] = {kind: [] for kind in boundary.last.record.spans}
        for step in self._planner.steps(boundary):
            if isinstance(step, Stretch):
                for kind, bound in bounds_of(step, tiers.gpu).items():
                    spans[kind].append(bound)
                continue
            record = step.record
            last = min(record.n_pages, boundary.pages - record.first_page)
            for kind, holding in record.spans.items():
                spans[kind].append(tiers.bind(holding, 0, last))
        checkpoint = boundary.checkpoint
        if checkpoint is None or boundary.replay_tokens:
            return spans, {}
        return spans, {k: tiers.bind(b, 0, b.n_pages) for k, b in checkpoint.blocks.items() if b.n_pages}

    def _hints(self, request: _Request, outlook: Outlook, boundary: Boundary | None) -> tuple[int, ...]:
        """Positions past the resume point where a checkpoint pays: branch point, end of prompt, every N tokens; none
        past what the admission rule would keep now, but one at its end."""
        prompt_tokens = len(request.tokens) // TOKEN_BYTES
        resume = boundary.tokens - boundary.replay_tokens if boundary is not None else 0
        usable = boundary.tokens if boundary is not None and boundary.checkpoint is not None else 0
        branch = outlook.match.pages * self._page_tokens
        found = {prompt_tokens}
        if branch > max(resume, usable):
            found.add(branch)
        if every := self.checkpoint_every_tokens:
            found.update(range((resume // every + 1) * every, prompt_tokens, every))
        pages = prompt_tokens // self._page_tokens
        kept = self._gate.foresee(request.namespace, request.tokens, pages, outlook.match.pages)
        if kept < pages:
            found = {b for b in found if b // self._page_tokens <= kept}
            if kept > outlook.match.pages:
                found.add(kept * self._page_tokens)
        return tuple(sorted(b for b in found if b > resume and b >= self._page_tokens))

    # -- counting and recording -------------------------------------------------------------------------------------

    def _count(self, lease: Lease, boundary: Boundary | None) -> None:
        c = self._ledger.counters
        c.requests += 1
        c.prompt_tokens += lease.prompt_tokens
        c.lcp_tokens += lease.lcp_tokens
        c.usable_tokens += lease.usable_tokens
        c.replay_tokens += lease.replay_tokens
        asked = c.by_namespace.setdefault(lease.namespace, [0, 0])
        asked[0] += lease.prompt_tokens
        asked[1] += 1
        why = lease.explanation
        c.by_outcome[why.outcome] = c.by_outcome.get(why.outcome, 0) + 1
        for cause, n in why.lost:
            c.lost[cause] = c.lost.get(cause, 0) + n
        if boundary is None:
            return
        boundary.last.record.tokens_served += lease.usable_tokens
        kinds = kinds_served(boundary)
        if why.tier == "disk":
            kinds.append(ObjectKind.DISK_PREFIX)
        for kind in kinds:
            row = c.by_hit.setdefault((str(kind), why.state, why.tier), [0, 0])
            row[0] += lease.usable_tokens
            row[1] += 1

    def _record(self, lease: Lease, request: _Request, end_ns: int) -> None:
        if not self._ledger.ring.enabled:
            return
        why = lease.explanation
        attributes: tuple[object, ...] = (
            "kvcache.namespace", lease.namespace, "kvcache.prompt_tokens", lease.prompt_tokens,
            "kvcache.lcp_tokens", lease.lcp_tokens, "kvcache.usable_tokens", lease.usable_tokens,
            "kvcache.replay_tokens", lease.replay_tokens,
            "gen_ai.usage.cache_read.input_tokens", lease.usable_tokens - lease.replay_tokens,
            "kvcache.outcome", why.outcome, "kvcache.reason", why.reason, "kvcache.mode", why.mode,
            "kvcache.basis", "approximate" if lease.approximate else "exact",
        )  # fmt: skip
        for cause, n in why.lost:
            attributes += (_LOST[cause], n)
        if why.lost_prefix_id:
            attributes += ("kvcache.lost.prefix.id", why.lost_prefix_id)
        if lease.usable_tokens:
            attributes += ("kvcache.prefix.id", why.prefix_id, "kvcache.state", why.state, "kvcache.tier", why.tier)
            if why.cost is not None:
                attributes += ("kvcache.plan.saving_s", why.cost.saving_s, "kvcache.plan.restore_s", why.cost.restore_s)
        self._ledger.ring.request("kvcache.acquire", request.span, request.parent, request.start_ns, end_ns, attributes)

    def _record_refusals(self, outlook: Outlook, span: SpanContext) -> None:
        for boundary, checks, times in outlook.refused:
            self._ledger.counters.count_checks(checks)
            self._ledger.ring.check_batch(span, boundary.prefix_id, boundary.tokens, "plan", checks, times)


def _ready(node: PrefixNode, checkpoint_id: str | None) -> bool:
    return checkpoint_id is None or node.record.checkpoints[checkpoint_id].on_gpu


def _slower(one: Tier | None, other: Tier) -> Tier:
    return Tier.DISK if Tier.DISK in (one, other) else Tier.HOST


def _codec(spans: dict[ObjectKind, list[Bound]]) -> str:
    """The codec a hit is decoded with; "mixed" when the path has more than one."""
    names = {bound.meta.codec for bounds in spans.values() for bound in bounds if bound.meta.codec != "native"}
    return "native" if not names else (names.pop() if len(names) == 1 else "mixed")
