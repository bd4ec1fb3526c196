"""An operator's command as an engine sees it, and its execution on the queues by form."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import Any

from engine.clock import NS_PER_S
from engine.consistency.prefix import CauseOf
from engine.consistency.state import Cause
from engine.errors import EngineClosed, EngineError
from engine.memory.holding import Tier
from engine.schedule.ledger import Ledger, PrefixNode
from engine.schedule.queues import Form, FormQueues, QueueFull
from engine.schedule.recovery import Recovery, RestoreJob
from engine.schedule.reform import Reformed, Reformer
from engine.telemetry.context import parse_traceparent
from engine.telemetry.ring import SpanContext, new_span

Progress = Callable[[dict[str, Any]], None]
MAX_PAGES = 1 << 20
SCRUB_BYTES = 1 << 30
SCRUB_STEP_BYTES = 8 << 20
SCRUB_STEP_S = 0.25
LONGEST_PIN_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """One command: what, on what, by whom, until when, and the operator's trace."""

    id: str
    kind: str
    arguments: dict[str, Any] = field(default_factory=dict)
    epoch: int = 0
    expires_at_unix_s: float = 0.0
    traceparent: str | None = None
    actor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutcome:
    """`status` is succeeded, failed, refused or expired; `outcome` says what was done, and what was refused why."""

    status: str
    outcome: dict[str, Any]


class BadCommand(EngineError):
    """A command's kind or arguments are not what this engine takes. Nothing was done; correct and send it again."""

    code = "bad_command"


class Commands:
    """Runs commands one by one; each ends in an outcome and a `kvcache.command` span under the operator's trace."""

    def __init__(
        self,
        ledger: Ledger,
        queues: FormQueues,
        recovery: Recovery,
        reformer: Reformer,
        codec: Callable[[], str],
        timeout_s: float,
        scrub_bytes_per_s: float,
    ) -> None:
        self._ledger = ledger
        self._queues = queues
        self._recovery = recovery
        self._reformer = reformer
        self._codec = codec
        self._timeout_s = timeout_s
        self._scrub_bytes_per_s = scrub_bytes_per_s
        self._closing = Event()
        self._kinds: dict[str, Callable[[CommandRequest, CauseOf, SpanContext, Progress], dict[str, Any]]] = {
            "evict": self._evict, "warm": self._warm, "restore": self._warm, "pin": self._pin, "unpin": self._unpin,
            "compress": self._compress, "offload": self._offload, "compact": self._compact, "scrub": self._scrub,
        }  # fmt: skip

    def execute(self, request: CommandRequest, progress: Progress) -> CommandOutcome:
        """Raises `BadCommand` for what cannot be a command here; everything else ends in an outcome."""
        ledger = self._ledger
        parent = parse_traceparent(request.traceparent)
        span = new_span(parent)
        start_ns = ledger.clock.monotonic_ns()
        run = self._kinds.get(request.kind)
        if run is None:
            raise BadCommand(f"command {request.kind!r} is unknown; known: {', '.join(self._kinds)}")
        if request.expires_at_unix_s and ledger.clock.wall_ns() > request.expires_at_unix_s * NS_PER_S:
            found = CommandOutcome(status="expired", outcome={"reason": "expired before it was run"})
        else:
            cause = Cause.POLICY if request.actor.startswith("policy:") else Cause.COMMAND
            why = CauseOf(cause, request.kind, span.hex_trace, span.hex_span, request.id)
            self._wait_for_safe_point()
            try:
                outcome = run(request, why, span, progress)
            except BadCommand:
                raise
            except EngineError as error:  # a full queue, a tier that fails: nothing (more) was done
                outcome = {"failed": [{"reason": error.code}]}
            found = CommandOutcome(status=_status(outcome), outcome=_with_reason(outcome))
        outcome = {**found.outcome, "trace_id": span.hex_trace, "span_id": span.hex_span}
        if ledger.ring.enabled:
            reason = str(found.outcome.get("reason", ""))
            attributes = (
                "kvcache.command.id", request.id, "kvcache.command.kind", request.kind,
                "kvcache.outcome", found.status, "kvcache.reason", reason,
            )  # fmt: skip
            failed = f"{request.kind}: {found.status}" if found.status in ("failed", "refused") else ""
            ledger.ring.request(
                "kvcache.command", span, parent, start_ns, ledger.clock.monotonic_ns(), attributes, failed
            )
        return CommandOutcome(status=found.status, outcome=outcome)

    def _wait_for_safe_point(self) -> None:
        """Inside a CUDA-graph window nothing may move: the command is deferred to the window's end, within reason.

        After that it runs anyway, and what would move is refused one by one.
        """
        reached = Event()
        if not self._ledger.graph.at_safe_point(reached.set):
            reached.wait(self._timeout_s)

    # -- kinds ------------------------------------------------------------------------------------------------------

    def _evict(self, request: CommandRequest, cause: CauseOf, span: SpanContext, progress: Progress) -> dict[str, Any]:
        """Evict prefixes, with `descendants` their subtrees, tails first; not one whose version has moved on."""
        with self._ledger.lock:
            depth = {key: node.last_page for key in _ids(request) if (node := self._ledger.nodes.get(key)) is not None}
        ids = sorted(_ids(request), key=lambda key: -depth.get(key, 0))
        seen = request.arguments.get("expect_versions") or {}
        descendants = bool(request.arguments.get("descendants", False))
        evicted = freed = 0
        refused: list[dict[str, str]] = []
        for done, prefix_id in enumerate(ids):
            with self._ledger.lock:
                node = self._ledger.nodes.get(prefix_id)
                reason = _refusal(node, seen.get(prefix_id), descendants)
                if node is not None and not reason:
                    n, n_bytes, reason = self._evict_subtree(node, cause, span)
                    evicted, freed = evicted + n, freed + n_bytes
            if reason:
                refused.append({"prefix_id": prefix_id, "reason": reason})
            progress({"done": done + 1, "of": len(ids)})
        self._ledger.tiers.sweep()
        return {"evicted": evicted, "bytes": freed, "refused": refused}

    def _evict_subtree(self, node: PrefixNode, cause: CauseOf, span: SpanContext) -> tuple[int, int, str]:
        """Leaves first; what is leased or busy stays, and so do its ancestors. Under the lock."""
        n = freed = 0
        in_window = self._ledger.graph.in_window
        stack, post = [node], []
        while stack:
            post.append(stack.pop())
            stack.extend(post[-1].children.values())
        kept = ""
        for item in reversed(post):
            if item.children:
                continue
            record = item.record
            # A person may overrule a person's pin, a policy may not.
            pinned = record.pinned_until_ns > self._ledger.clock.wall_ns()
            reasons = {"leased": record.leases, "busy": record.busy, "pinned": pinned, "graph_window": in_window}
            if stays := next((reason for reason, holds in reasons.items() if holds), ""):
                kept = stays
                continue
            freed += self._ledger.remove(item, cause, parent=span)
            n += 1
        return n, freed, kept

    def _warm(self, request: CommandRequest, cause: CauseOf, span: SpanContext, progress: Progress) -> dict[str, Any]:
        """Bring prefixes (with their ancestors and checkpoints) back to the GPU, until `max_bytes` are moved."""
        ids = _ids(request)
        budget = int(request.arguments.get("max_bytes") or 1 << 62)
        warmed = moved = 0
        failed: list[dict[str, str]] = []
        for done, prefix_id in enumerate(ids):
            if moved >= budget:
                failed.append({"prefix_id": prefix_id, "reason": "byte_budget_spent"})
                continue
            job, reason = self._restore_job(prefix_id, cause, span)
            if job is not None and job.steps:
                try:
                    found = self._run(job.form, partial(self._recovery.run, job))
                except QueueFull as error:
                    job.failure = error.code
                    found = self._recovery.run(job)  # with a failure set it only undoes the marks
                reason, moved = found.failure, moved + found.restored_bytes
            warmed += not reason
            if reason:
                failed.append({"prefix_id": prefix_id, "reason": reason})
            progress({"done": done + 1, "of": len(ids), "bytes": moved})
        return {"warmed": warmed, "bytes": moved, "failed": failed}

    def _restore_job(self, prefix_id: str, cause: CauseOf, span: SpanContext) -> tuple[RestoreJob | None, str]:
        ledger = self._ledger
        with ledger.lock:
            node = ledger.nodes.get(prefix_id)
            if node is None:
                return None, "unknown_prefix"
            path: list[PrefixNode] = []
            walk: PrefixNode | None = node
            while walk is not None and walk.parent is not None:
                path.append(walk)
                walk = walk.parent
            steps = [n for n in reversed(path) if not n.record.resident or (n is node and not _all_on_gpu(n))]
            if any(n.record.busy for n in steps):
                return None, "busy"
            if any(h.absent for n in steps for h in n.record.spans.values()):
                return None, "pages_missing"
            deadline_ns = ledger.clock.monotonic_ns() + int(self._timeout_s * NS_PER_S)
            job = RestoreJob(steps, node, None, cause, span, deadline_ns, all_checkpoints=True)
            if steps:
                self._recovery.prepare(job)
            return job, ""

    def _pin(self, request: CommandRequest, cause: CauseOf, span: SpanContext, progress: Progress) -> dict[str, Any]:
        """Keep prefixes (and so their ancestors) from being evicted for `ttl_s` seconds, within the pins' budget."""
        ttl_s = float(request.arguments.get("ttl_s") or 3600.0)
        if not 0 < ttl_s < LONGEST_PIN_S:
            raise BadCommand(f"ttl_s is {ttl_s!r}; it must be above 0 and below {LONGEST_PIN_S:,.0f}")
        until = self._ledger.clock.wall_ns() + int(ttl_s * NS_PER_S)
        return self._mark(request, until)

    def _unpin(self, request: CommandRequest, cause: CauseOf, span: SpanContext, progress: Progress) -> dict[str, Any]:
        return self._mark(request, 0)

    def _mark(self, request: CommandRequest, until_ns: int) -> dict[str, Any]:
        """A pin holds the whole path: a prefix is of no use without its ancestors. An unpin lets go of what no other
        pinned prefix needs. A pin past the budget of all pins is refused: pins must not starve the cache."""
        done, refused, pins = 0, [], self._ledger.pins
        with self._ledger.lock:
            self._ledger.unpin_run_out()
            for prefix_id in _ids(request):
                node = self._ledger.nodes.get(prefix_id)
                path = _path_of(node)
                reason = "unknown_prefix" if node is None else ""
                if until_ns and pins.refuses(step.record for step in path):
                    reason = "pin_budget"
                if reason:
                    refused.append({"prefix_id": prefix_id, "reason": reason})
                    continue
                for step in path:
                    below = max((c.record.pinned_until_ns for c in step.children.values()), default=0)
                    own = step.record.pinned_until_ns if until_ns and step is not node else 0
                    pins.mark(step.record, max(until_ns, below, own))
                done += 1
        return {"pinned" if until_ns else "unpinned": done, "refused": refused}

    def _compress(
        self, request: CommandRequest, cause: CauseOf, span: SpanContext, progress: Progress
    ) -> dict[str, Any]:
        codec = str(request.arguments.get("codec") or self._codec())
        if codec not in self._ledger.tiers.codecs:
            raise BadCommand(f"codec {codec!r} is unknown; known: {', '.join(self._ledger.tiers.codecs)}")
        step = Form.COMPRESSED, lambda prefix_id: self._reformer.compress(prefix_id, codec, cause, span)
        return self._each(request, "compressed", progress, *step)

    def _offload(
        self, request: CommandRequest, cause: CauseOf, span: SpanContext, progress: Progress
    ) -> dict[str, Any]:
        tier = str(request.arguments.get("tier") or Tier.HOST)
        if tier not in (Tier.HOST, Tier.DISK):
            raise BadCommand(f"tier {tier!r} is nowhere to offload to; host or disk")
        step = Form.RESIDENT, lambda prefix_id: self._offload_one(prefix_id, Tier(tier), cause, span)
        return self._each(request, "offloaded", progress, *step)

    def _offload_one(self, prefix_id: str, tier: Tier, cause: CauseOf, span: SpanContext) -> Reformed:
        with self._ledger.lock:
            node = self._ledger.nodes.get(prefix_id)
            if node is not None and node.record.approximate:
                return Reformed(refused="state_is_approximate")  # it has no place below the GPU
        return self._reformer.offload(prefix_id, tier, cause, span)

    def _each(
        self, request: CommandRequest, verb: str, progress: Progress, form: Form, step: Callable[[str], Reformed]
    ) -> dict[str, Any]:
        done = moved = 0
        refused: list[dict[str, str]] = []
        ids = _ids(request)
        for i, prefix_id in enumerate(ids):
            try:
                found = self._run(form, partial(step, prefix_id))
            except EngineError as error:
                found = Reformed(refused=error.code)
            done, moved = done + (not found.refused), moved + found.moved_bytes
            if found.refused:
                refused.append({"prefix_id": prefix_id, "reason": found.refused})
            progress({"done": i + 1, "of": len(ids), "bytes": moved})
        return {verb: done, "bytes": moved, "refused": refused}

    def _compact(
        self, request: CommandRequest, cause: CauseOf, span: SpanContext, progress: Progress
    ) -> dict[str, Any]:
        limit = int(request.arguments.get("max_pages") or MAX_PAGES)
        done = self._run(Form.RESIDENT, lambda: self._reformer.compact(limit, span))
        return {
            "pages": done.pages, "bytes": done.moved_bytes, "slabs_freed": done.slabs_freed,
            "fragmentation_before": done.fragmentation_before, "fragmentation_after": done.fragmentation_after,
        }  # fmt: skip

    def _scrub(self, request: CommandRequest, cause: CauseOf, span: SpanContext, progress: Progress) -> dict[str, Any]:
        """Prove what is on disk, `bytes_per_s` of it a second: step by step, so that restores go on in between. An
        object is read at once, whatever its size."""
        limit = int(request.arguments.get("max_bytes") or SCRUB_BYTES)
        rate = float(request.arguments.get("bytes_per_s") or self._scrub_bytes_per_s)
        if not rate > 0:
            raise BadCommand(f"bytes_per_s is {rate!r}; it must be above 0")
        step_bytes = max(1, min(SCRUB_STEP_BYTES, int(rate * SCRUB_STEP_S)))
        scrub = self._reformer.begin_scrub(limit, span)
        try:
            while True:
                read = self._run(Form.OFFLOADED, lambda: self._reformer.scrub_step(scrub, step_bytes))
                progress({"done": scrub.objects, "of": scrub.objects + len(scrub.todo), "bytes": scrub.n_bytes})
                if scrub.over:
                    break
                if self._closing.wait(read / rate):
                    scrub.failure = EngineClosed.code
                    break
        finally:
            self._reformer.end_scrub(scrub)
        found: dict[str, Any] = {"objects": scrub.objects, "bytes": scrub.n_bytes, "damaged": scrub.damaged}
        return {**found, "failed": [{"reason": scrub.failure}]} if scrub.failure else found

    def close(self) -> None:
        """Long commands end at their next step."""
        self._closing.set()

    def _run(self, form: Form, work: Callable[[], Any]) -> Any:
        future: Future[Any] = self._queues[form].submit(work)
        return future.result()


def _ids(request: CommandRequest) -> list[str]:
    ids = request.arguments.get("prefix_ids")
    if not isinstance(ids, Iterable) or isinstance(ids, str):
        raise BadCommand(f"{request.kind} needs prefix_ids, a list of prefix ids; got {ids!r}")
    return [str(prefix_id) for prefix_id in ids]


def _path_of(node: PrefixNode | None) -> list[PrefixNode]:
    """The prefix and its ancestors, the end first."""
    path = []
    while node is not None and node.parent is not None:
        path.append(node)
        node = node.parent
    return path


def _refusal(node: PrefixNode | None, expected_version: Any, descendants: bool) -> str:
    if node is None:
        return "unknown_prefix"
    if expected_version is not None and int(expected_version) != node.record.version:
        return "version_moved_on"
    if node.children and not descendants:
        return "has_descendants"
    return ""


def _status(outcome: dict[str, Any]) -> str:
    """Nothing done and something refused is a refusal; nothing done and something failed is a failure."""
    numbers = [v for k, v in outcome.items() if isinstance(v, int) and k != "bytes"]
    if any(numbers) or not (outcome.get("refused") or outcome.get("failed")):
        return "succeeded"
    return "refused" if outcome.get("refused") else "failed"


def _with_reason(outcome: dict[str, Any]) -> dict[str, Any]:
    """Adds, in one line, why items were not done: each reason with how often."""
    items = [*outcome.get("refused", ()), *(outcome.get("failed") or ())]
    counts: dict[str, int] = {}
    for item in items:
        counts[item["reason"]] = counts.get(item["reason"], 0) + 1
    if not counts:
        return outcome
    return {**outcome, "reason": ", ".join(f"{n} {reason}" for reason, n in counts.items())}


def _all_on_gpu(node: PrefixNode) -> bool:
    return all(c.on_gpu for c in node.record.checkpoints.values())
