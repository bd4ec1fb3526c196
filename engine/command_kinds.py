"""What each kind of command does. Every kind works in steps that a ticket paces, and ends with what was done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from engine.bulk import BadCommand, CommandRequest, Ticket
from engine.clock import NS_PER_S
from engine.config import Mode
from engine.errors import ConfigError, EngineClosed, EngineError
from engine.memory.drill import Drill, read_plan
from engine.memory.holding import Tier
from engine.schedule.inspection import inspect_prefix
from engine.schedule.ledger import Ledger, PrefixNode
from engine.schedule.queues import Form, FormQueues, QueueFull
from engine.schedule.recovery import Recovery, RestoreJob
from engine.schedule.reform import Reformed, Reformer

MAX_PAGES = 1 << 20
SCRUB_BYTES = 1 << 30
SCRUB_STEP_BYTES = 8 << 20
SCRUB_STEP_S = 0.25
LONGEST_PIN_S = 1e9
DRAIN_WAIT_S = 60.0
LEASES_ASKED_S = 0.1
MOVED_ON = "version_moved_on"
FAULT_LASTS_S = 30.0
NO_FAULTS = "engine takes no faults: it was not started with --allow-faults (`kvdeck up --game-days`)"
ENDS_OF_A_DRAIN = ("keep", "offload", "evict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What commands take from the engine's settings, as they are when the command runs."""

    codec: Callable[[], str]
    mode: Callable[[], Mode]
    foresee: Callable[[Mapping[str, Any]], dict[str, Any]]
    timeout_s: float
    scrub_bytes_per_s: float
    drill: Drill | None


class Kinds:
    """Runs on the agent's worker; byte work goes through the queues by form."""

    def __init__(
        self, ledger: Ledger, queues: FormQueues, recovery: Recovery, reformer: Reformer, choices: Choices
    ) -> None:
        self._ledger = ledger
        self._queues = queues
        self._recovery = recovery
        self._reformer = reformer
        self._choices = choices
        self.by_name: dict[str, Callable[[Ticket], dict[str, Any]]] = {
            "evict": self._evict, "warm": self._warm, "restore": self._warm, "pin": self._pin, "unpin": self._unpin,
            "compress": self._compress, "offload": self._offload, "compact": self._compact, "scrub": self._scrub,
            "drain": self._drain, "foresee": self._foresee, "inspect": self._inspect, "fault": self._fault,
        }  # fmt: skip

    # -- evict ------------------------------------------------------------------------------------------------------

    def _evict(self, ticket: Ticket) -> dict[str, Any]:
        """Evict prefixes, with `descendants` their subtrees, tails first; not one whose version has moved on."""
        with self._ledger.lock:
            depth = {key: node.last_page for key in _ids(ticket) if (node := self._ledger.nodes.get(key)) is not None}
        ids = sorted(_ids(ticket), key=lambda key: -depth.get(key, 0))
        descendants = bool(ticket.arguments.get("descendants", False))
        evicted = freed = 0
        refused: list[dict[str, str]] = []
        for prefix_id in ids:
            if not ticket.goes_on():
                break
            with self._ledger.lock:
                node = self._ledger.nodes.get(prefix_id)
                reason = _moved_on(ticket, prefix_id, node)
                if node is not None and node.children and not descendants:
                    reason = reason or "has_descendants"
                subtree = _subtree(node) if node is not None and not reason else []
            if subtree:
                n, n_bytes, reason = self._evict_all(ticket, subtree, evicted, freed, len(ids))
                evicted, freed = evicted + n, freed + n_bytes
            if reason:
                refused.append({"prefix_id": prefix_id, "reason": reason})
            ticket.tell(done=evicted, of=max(len(ids), evicted), bytes=freed)
        self._ledger.tiers.sweeper.sweep()
        return {"evicted": evicted, "bytes": freed, "refused": refused}

    def _evict_all(
        self, ticket: Ticket, leaves_first: list[PrefixNode], done: int, done_bytes: int, of: int
    ) -> tuple[int, int, str]:
        """One by one, so that requests go on in between; what is leased, busy or pinned stays, and its ancestors."""
        ledger = self._ledger
        n = freed = 0
        kept = ""
        for node in leaves_first:
            if not ticket.goes_on():
                break
            with ledger.lock:
                if node.parent is None or node.children:
                    continue
                record = node.record
                # A person may overrule a person's pin, a policy may not.
                pinned = record.pinned_until_ns > ledger.clock.wall_ns()
                reasons = {
                    "leased": record.leases, "busy": record.busy, "pinned": pinned,
                    "graph_window": ledger.graph.in_window,
                }  # fmt: skip
                if stays := next((reason for reason, holds in reasons.items() if holds), ""):
                    kept = stays
                    continue
                freed += ledger.remove(node, ticket.cause, parent=ticket.span)
                n += 1
            ticket.step(done + n, max(of, done + len(leaves_first)), done_bytes + freed)
        return n, freed, kept

    # -- warm, restore ----------------------------------------------------------------------------------------------

    def _warm(self, ticket: Ticket) -> dict[str, Any]:
        """Bring prefixes (with their ancestors and checkpoints) back to the GPU, until `max_bytes` are moved."""
        ids = _ids(ticket)
        budget = int(ticket.arguments.get("max_bytes") or 1 << 62)
        warmed = moved = 0
        failed: list[dict[str, str]] = []
        refused: list[dict[str, str]] = []
        for done, prefix_id in enumerate(ids):
            if not ticket.goes_on():
                break
            if moved >= budget:
                failed.append({"prefix_id": prefix_id, "reason": "byte_budget_spent"})
                continue
            job, reason = self._restore_job(prefix_id, ticket)
            if job is not None and job.steps:
                try:
                    found = self._run(job.form, partial(self._recovery.run, job))
                except QueueFull as error:
                    job.failure = error.code
                    found = self._recovery.run(job)  # with a failure set it only undoes the marks
                reason, moved = found.failure, moved + found.restored_bytes
            warmed += not reason
            if reason:
                (refused if reason == MOVED_ON else failed).append({"prefix_id": prefix_id, "reason": reason})
            ticket.step(done + 1, len(ids), moved)
        return {"warmed": warmed, "bytes": moved, "failed": failed, "refused": refused}

    def _restore_job(self, prefix_id: str, ticket: Ticket) -> tuple[RestoreJob | None, str]:
        ledger = self._ledger
        with ledger.lock:
            node = ledger.nodes.get(prefix_id)
            if node is None:
                return None, "unknown_prefix"
            if reason := _moved_on(ticket, prefix_id, node):
                return None, reason
            steps = [n for n in reversed(_path_of(node)) if not n.record.resident or (n is node and not _all_on_gpu(n))]
            if any(n.record.busy for n in steps):
                return None, "busy"
            if any(h.absent for n in steps for h in n.record.spans.values()):
                return None, "pages_missing"
            deadline_ns = ledger.clock.monotonic_ns() + int(self._choices.timeout_s * NS_PER_S)
            job = RestoreJob(steps, node, None, ticket.cause, ticket.span, deadline_ns, all_checkpoints=True)
            if steps:
                self._recovery.prepare(job)
            return job, ""

    # -- pin, unpin -------------------------------------------------------------------------------------------------

    def _pin(self, ticket: Ticket) -> dict[str, Any]:
        """Keep prefixes (and so their ancestors) from being evicted for `ttl_s` seconds, within the pins' budget."""
        ttl_s = float(ticket.arguments.get("ttl_s") or 3600.0)
        if not 0 < ttl_s < LONGEST_PIN_S:
            raise BadCommand(f"ttl_s is {ttl_s!r}; it must be above 0 and below {LONGEST_PIN_S:,.0f}")
        return self._mark(ticket, self._ledger.clock.wall_ns() + int(ttl_s * NS_PER_S))

    def _unpin(self, ticket: Ticket) -> dict[str, Any]:
        return self._mark(ticket, 0)

    def _mark(self, ticket: Ticket, until_ns: int) -> dict[str, Any]:
        """A pin holds the whole path: a prefix is of no use without its ancestors. An unpin lets go of what no other
        pinned prefix needs. A pin past the budget of all pins is refused: pins must not starve the cache."""
        done, refused, pins = 0, [], self._ledger.pins
        with self._ledger.lock:
            self._ledger.unpin_run_out()
        for prefix_id in _ids(ticket):
            if not ticket.goes_on():
                break
            with self._ledger.lock:
                node = self._ledger.nodes.get(prefix_id)
                path = _path_of(node)
                reason = _moved_on(ticket, prefix_id, node)
                if not reason and until_ns and pins.refuses(step.record for step in path):
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

    # -- compress, offload ------------------------------------------------------------------------------------------

    def _compress(self, ticket: Ticket) -> dict[str, Any]:
        codec = str(ticket.arguments.get("codec") or self._choices.codec())
        if codec not in self._ledger.tiers.codecs:
            raise BadCommand(f"codec {codec!r} is unknown; known: {', '.join(self._ledger.tiers.codecs)}")
        step = Form.COMPRESSED, lambda key: self._reformer.compress(key, codec, ticket.cause, ticket.span)
        return self._each(ticket, _ids(ticket), "compressed", *step)

    def _offload(self, ticket: Ticket) -> dict[str, Any]:
        tier = _tier_below(ticket)
        step = Form.RESIDENT, lambda key: self._offload_one(key, tier, ticket)
        return self._each(ticket, _ids(ticket), "offloaded", *step)

    def _offload_one(self, prefix_id: str, tier: Tier, ticket: Ticket) -> Reformed:
        with self._ledger.lock:
            node = self._ledger.nodes.get(prefix_id)
            if node is not None and node.record.approximate:
                return Reformed(refused="state_is_approximate")  # it has no place below the GPU
        return self._reformer.offload(prefix_id, tier, ticket.cause, ticket.span)

    def _each(
        self, ticket: Ticket, ids: list[str], verb: str, form: Form, step: Callable[[str], Reformed]
    ) -> dict[str, Any]:
        done = moved = 0
        refused: list[dict[str, str]] = []
        for i, prefix_id in enumerate(ids):
            if not ticket.goes_on():
                break
            with self._ledger.lock:
                reason = _moved_on(ticket, prefix_id, self._ledger.nodes.get(prefix_id))
            try:
                found = Reformed(refused=reason) if reason else self._run(form, partial(step, prefix_id))
            except EngineError as error:
                found = Reformed(refused=error.code)
            done, moved = done + (not found.refused), moved + found.moved_bytes
            if found.refused:
                refused.append({"prefix_id": prefix_id, "reason": found.refused})
            ticket.step(i + 1, len(ids), moved)
        return {verb: done, "bytes": moved, "refused": refused}

    # -- compact, scrub ---------------------------------------------------------------------------------------------

    def _compact(self, ticket: Ticket) -> dict[str, Any]:
        limit = int(ticket.arguments.get("max_pages") or MAX_PAGES)
        done = self._run(Form.RESIDENT, lambda: self._reformer.compact(limit, ticket.span))
        return {
            "pages": done.pages, "bytes": done.moved_bytes, "slabs_freed": done.slabs_freed,
            "fragmentation_before": done.fragmentation_before, "fragmentation_after": done.fragmentation_after,
        }  # fmt: skip

    def _scrub(self, ticket: Ticket) -> dict[str, Any]:
        """Prove what is on disk, `bytes_per_s` of it a second: step by step, so that restores go on in between. An
        object is read at once, whatever its size."""
        limit = int(ticket.arguments.get("max_bytes") or SCRUB_BYTES)
        rate = float(ticket.arguments.get("bytes_per_s") or self._choices.scrub_bytes_per_s)
        step_bytes = max(1, min(SCRUB_STEP_BYTES, int(rate * SCRUB_STEP_S)))
        scrub = self._reformer.begin_scrub(limit, ticket.span)
        try:
            while True:
                read = self._run(Form.OFFLOADED, lambda: self._reformer.scrub_step(scrub, step_bytes))
                ticket.tell(done=scrub.objects, of=scrub.objects + len(scrub.todo), bytes=scrub.n_bytes)
                if scrub.over:
                    break
                ticket.wait(read / rate)
                if not ticket.goes_on():
                    scrub.failure = EngineClosed.code if ticket.stopped == EngineClosed.code else ""
                    break
        finally:
            self._reformer.end_scrub(scrub)
        found: dict[str, Any] = {"objects": scrub.objects, "bytes": scrub.n_bytes, "damaged": scrub.damaged}
        return {**found, "failed": [{"reason": scrub.failure}]} if scrub.failure else found

    # -- drain, foresee, inspect ------------------------------------------------------------------------------------

    def _drain(self, ticket: Ticket) -> dict[str, Any]:
        """Wait until the last lease has ended, then keep, offload or evict what is held. The mode `drain`, which keeps
        new reuse and commits out, is desired state: it is there before this runs, and stays after it."""
        then = str(ticket.arguments.get("then") or "keep")
        if then not in ENDS_OF_A_DRAIN:
            raise BadCommand(f"then is {then!r}; known: {', '.join(ENDS_OF_A_DRAIN)}")
        tier = _tier_below(ticket) if then == "offload" else Tier.HOST
        if self._choices.mode() is not Mode.DRAIN:
            reason = f"mode_is_{self._choices.mode()}"  # what is drained would fill up again
            return {"drained": 0, "refused": [{"reason": reason}]}
        left = self._leases_left(ticket, float(ticket.arguments.get("wait_s") or DRAIN_WAIT_S))
        with self._ledger.lock:
            leaves_first = [n for root in _roots(self._ledger) for n in _subtree(root)]
        ids = [node.record.prefix_id for node in leaves_first if then == "evict" or node.record.held_bytes(Tier.GPU)]
        found: dict[str, Any] = {"drained": 1, "leases_left": left, "prefixes": len(leaves_first)}
        if then == "evict":
            n, freed, kept = self._evict_all(ticket, leaves_first, 0, 0, len(leaves_first))
            self._ledger.tiers.sweeper.sweep()
            refused = [{"reason": kept}] if kept else []
            return {**found, "evicted": n, "bytes": freed, "refused": refused}
        if then == "offload":
            step = Form.RESIDENT, lambda key: self._offload_one(key, tier, ticket)
            return {**found, **self._each(ticket, ids, "offloaded", *step)}
        return found

    def _leases_left(self, ticket: Ticket, wait_s: float) -> int:
        """How many leases are alive after `wait_s`, or as soon as there are none."""
        ledger = self._ledger
        asked = 0.0
        while True:
            with ledger.lock:
                ledger.leases.expire()
                left = sum(lease.usable_tokens > 0 for lease in ledger.leases.live())  # a miss reads nothing
            ticket.tell(leases_left=left)
            if not left or asked >= wait_s or not ticket.goes_on():
                return left
            ticket.wait(LEASES_ASKED_S)
            asked += LEASES_ASKED_S

    def _foresee(self, ticket: Ticket) -> dict[str, Any]:
        """What a desired state document would make leave, if it were applied now. Changes nothing."""
        document = ticket.arguments.get("document")
        if not isinstance(document, Mapping):
            raise BadCommand(f"foresee needs a document of desired state; got {document!r}")
        return {"foreseen": 1, **self._choices.foresee(document)}

    def _inspect(self, ticket: Ticket) -> dict[str, Any]:
        """Leases, slot generations and copies of one prefix, as they are now. Changes nothing."""
        prefix_id = ticket.arguments.get("prefix_id")
        if not isinstance(prefix_id, str):
            raise BadCommand(f"inspect needs prefix_id, the id of one prefix; got {prefix_id!r}")
        with self._ledger.lock:
            found = inspect_prefix(self._ledger, prefix_id)
        if found is None:
            return {"refused": [{"prefix_id": prefix_id, "reason": "unknown_prefix"}]}
        return {"inspected": 1, **found}

    # -- fault ------------------------------------------------------------------------------------------------------

    def _fault(self, ticket: Ticket) -> dict[str, Any]:
        """Begin what a game day wants to go wrong, for `lasts_s` seconds; an empty plan ends what goes wrong now."""
        drill = self._choices.drill
        if drill is None:
            return {"refused": [{"reason": NO_FAULTS}]}
        try:
            plan = read_plan(ticket.arguments.get("plan"))
            drill.end()
            if plan:
                drill.begin(plan, float(ticket.arguments.get("lasts_s") or FAULT_LASTS_S))
        except ConfigError as error:
            raise BadCommand(str(error)) from None
        return {"faults": len(plan), **drill.summary()}

    def _run(self, form: Form, work: Callable[[], Any]) -> Any:
        future: Future[Any] = self._queues[form].submit(work)
        return future.result()


def _ids(ticket: Ticket) -> list[str]:
    request: CommandRequest = ticket.request
    ids = request.arguments.get("prefix_ids")
    if not isinstance(ids, Iterable) or isinstance(ids, str):
        raise BadCommand(f"{request.kind} needs prefix_ids, a list of prefix ids; got {ids!r}")
    return [str(prefix_id) for prefix_id in ids]


def _tier_below(ticket: Ticket) -> Tier:
    tier = str(ticket.arguments.get("tier") or Tier.HOST)
    if tier not in (Tier.HOST, Tier.DISK):
        raise BadCommand(f"tier {tier!r} is nowhere to offload to; host or disk")
    return Tier(tier)


def _moved_on(ticket: Ticket, prefix_id: str, node: PrefixNode | None) -> str:
    """Why a prefix is not the one that the operator saw; empty when it is. Under the lock."""
    if node is None:
        return "unknown_prefix"
    expected = (ticket.arguments.get("expect_versions") or {}).get(prefix_id)
    return MOVED_ON if expected is not None and int(expected) != node.record.version else ""


def _path_of(node: PrefixNode | None) -> list[PrefixNode]:
    """The prefix and its ancestors, the end first."""
    path = []
    while node is not None and node.parent is not None:
        path.append(node)
        node = node.parent
    return path


def _subtree(node: PrefixNode) -> list[PrefixNode]:
    """A prefix and all below it, leaves first. Under the lock."""
    stack, found = [node], []
    while stack:
        found.append(stack.pop())
        stack.extend(found[-1].children.values())
    return found[::-1]


def _roots(ledger: Ledger) -> list[PrefixNode]:
    """The prefixes at the top of the tree. Under the lock."""
    return [node for node in ledger.nodes.values() if node.parent is not None and node.parent.parent is None]


def _all_on_gpu(node: PrefixNode) -> bool:
    return all(c.on_gpu for c in node.record.checkpoints.values())
