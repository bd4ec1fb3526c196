"""The facade: one prefix-cache engine inside an inference process.

Reading order: `acquire` (schedule/serve.py) finds, proves and pins; `commit` (schedule/publish.py) admits; the rest is
administration. Everything it says to the outside it says by spans and metrics.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor

from engine import books, report
from engine.clock import Clock, SystemClock
from engine.commands.execute import CommandOutcome
from engine.commands.ticket import CommandRequest
from engine.config import EngineConfig, Mode
from engine.consistency.graph import GraphGuard, PageTable
from engine.consistency.lease import Lease
from engine.consistency.prefix import CauseOf
from engine.consistency.state import Cause
from engine.errors import EngineClosed
from engine.index.radix import TOKEN_BYTES
from engine.index.space import space_of
from engine.memory.faults import Faults
from engine.memory.paged import PagedView, paged_view
from engine.model.objects import ObjectKind, SegmentKey
from engine.model.spec import ModelSpec
from engine.refusals import basis_refuses, check_refuse, check_state
from engine.schedule.adopt import Adoption
from engine.schedule.counters import Counters
from engine.schedule.held import held
from engine.schedule.publish import CommitResult
from engine.schedule.quality import QualityJudge
from engine.telemetry.context import caller_context, lease_context
from engine.telemetry.identity import identity_of
from engine.telemetry.ring import NO_SPAN, SpanContext, Tally, new_span
from engine.tokens import Tokens, check_namespace, token_bytes
from engine.wiring import give_voice, wire

if TYPE_CHECKING:
    from engine.memory.state import NewState


class CacheEngine:
    """One engine, one model, one data folder. Thread-safe.

    Raises `ConfigError`, `FolderLocked`, `TierUnavailable` or OSError at construction; nothing is left running then.
    Use as a context manager, or call `close`: it keeps what fits on disk for the next start. `faults` makes things go
    wrong on purpose (engine/memory/faults.py); spans and stats say so, and nothing can do it without this argument.
    """

    def __init__(
        self,
        spec: ModelSpec,
        config: EngineConfig,
        *,
        span_processors: Sequence[SpanProcessor] = (),
        meter_provider: MeterProvider | None = None,
        resource: Resource | None = None,
        boot_id: str | None = None,
        clock: Clock | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.spec = spec
        self.config = config
        self.id = config.engine_id
        self.boot_id = boot_id or uuid.uuid4().hex  # one given: the exporters already speak under it
        self._faults = faults
        parts = wire(spec, config, clock or SystemClock(), faults)
        self._ledger, self._tiers, self._ring = parts.ledger, parts.ledger.tiers, parts.ledger.ring
        self._queues, self._validator, self._pace = parts.queues, parts.validator, parts.pace
        self._server, self._publisher, self._curve = parts.server, parts.publisher, parts.curve
        self._steering, self._quality, self._commands = parts.steering, parts.quality, parts.commands
        self._adopter = parts.adopter
        self._closed = False
        resource = resource or Resource.create(dict(identity_of(self.id, self.boot_id, spec)))
        self._pump = give_voice(parts, config, resource, faults, span_processors, meter_provider)
        try:
            self.adoption: Adoption = self._adopter.adopt()
        except BaseException:  # an unreadable folder: no thread and no lock may outlive the failed start
            self._closed = True
            self._queues.close()
            self._let_go()
            raise

    # -- the request path -------------------------------------------------------------------------------------------

    def acquire(
        self,
        tokens: Tokens,
        *,
        namespace: str = "default",
        deadline_s: float = 0.2,
        traceparent: str | None = None,
        tracestate: str = "",
        approximate: bool = False,
        refuse: str = "",
    ) -> Lease:
        """The deepest boundary of `tokens` that passes all five validations, leased; a miss is a lease of 0 tokens.

        Waits for restores no longer than `deadline_s`. `traceparent` and `tracestate` (W3C) continue the caller's
        trace; without the first, the span that is current in OpenTelemetry's context does.
        `approximate` also takes a hit that is not bit-equal to an uninterrupted run, where it saves more:
        `lease.approximate` then says so, and what is computed from it is kept apart. `refuse` is for a caller that
        knows that reuse would be wrong: a miss with that reason, one of REFUSE. Raises `EngineClosed` once `close` has
        begun, as `commit` and `execute` do.
        """
        self._open()
        if refuse:
            check_refuse(refuse)
        data = token_bytes(tokens)
        lease = self._server.acquire(
            check_namespace(namespace), data, self._steering.mode, deadline_s,
            self._caller(traceparent, tracestate), approximate=approximate, refuse=refuse,
        )  # fmt: skip
        if self._curve is not None and not refuse:
            self._curve.asked(data, lease)
        return lease

    def commit(
        self,
        tokens: Tokens,
        state: NewState | None = None,
        *,
        lease: Lease | None = None,
        namespace: str | None = None,
        checkpoints: Iterable[int] = (),
        refuse: str = "",
    ) -> CommitResult:
        """Admit what the model computed for `tokens`. Without `state` only the books are kept (materialise=False).

        The namespace is the lease's. What was computed from a lossy hit is refused: it is other state than the tokens
        alone would give, and must not stand under their id. Computed from an approximate lease it is kept under an id
        of its own, served only to who asks for it; `state` must then start at token 0. Pages that are held already are
        compared with `state`: where its bytes differ, it replaces them and what hangs below them, or is refused
        (`other_lineage`) while somebody reads them: a path is of one run. `refuse` is for a caller that learned only
        now that what it computed must not be kept, as in `acquire`. Raises `StateMismatch` when tensors do not fit the
        model or the engine's way of keeping bytes; nothing is kept then.
        """
        self._open()
        if refuse:
            check_refuse(refuse)
        data = token_bytes(tokens)
        n_tokens = len(data) // TOKEN_BYTES
        check_state(state, n_tokens, materialise=self.config.materialise)
        own = lease.namespace if lease is not None else "default"
        where = own if namespace is None else check_namespace(namespace)
        positions = state.checkpoints if state is not None else checkpoints
        parent = lease_context(lease) if lease is not None else self._caller(None)
        span = new_span(parent)
        start_ns = self._ledger.clock.monotonic_ns()
        cause = CauseOf(Cause.COMMIT, "", span.hex_trace, span.hex_span)
        approximate = lease is not None and lease.approximate
        if self._steering.mode is Mode.DRAIN:
            result = self._publisher.refuse("mode_drain")
        elif reason := refuse or basis_refuses(lease, state):
            result = self._publisher.refuse(reason)
            self._publisher.remember_refused(space_of(where, approximate=False), data, reason)
        else:
            space = space_of(where, approximate=approximate)
            result = self._publisher.commit(space, data, state, positions, cause, span, lease)
            if self._curve is not None and not approximate:
                self._curve.kept(where, data, lease, result.prefix_id if result.reason == "ok" else "")
        if self._ring.enabled:
            attributes: tuple[object, ...] = (
                "kvcache.namespace", where, "kvcache.prompt_tokens", n_tokens,
                "kvcache.new_tokens", result.new_tokens, "kvcache.new_pages", result.new_pages,
                "kvcache.outcome", result.outcome, "kvcache.reason", result.reason,
                "kvcache.basis", "approximate" if approximate else "exact",
            )  # fmt: skip
            if result.prefix_id:
                attributes += ("kvcache.prefix.id", result.prefix_id)
            end_ns = self._ledger.clock.monotonic_ns()
            self._ring.request("kvcache.commit", span, parent, start_ns, end_ns, attributes)
        return result

    def _caller(self, traceparent: str | None, tracestate: str = "") -> SpanContext:
        return caller_context(traceparent, tracestate) if self._ring.enabled else NO_SPAN

    # -- paged kernels and CUDA graphs (docs/howto/paged-kernels.md) ------------------------------------------------

    @property
    def graph(self) -> GraphGuard:
        """The CUDA-graph guard: open a window around capture and replay."""
        return self._ledger.graph

    def new_page_table(self, capacity_pages: int) -> PageTable:
        """A page table on the engine's device whose address never changes, for `Lease.fill_page_table`.

        Raises `ConfigError` for a capacity below 1, `NotMaterialised` for an engine that only keeps books.
        """
        return PageTable(capacity_pages, self._tiers.gpu.buffer.device)

    def paged_view(self, kind: ObjectKind, key: SegmentKey) -> PagedView:
        """Where a kernel finds one tensor in the pages that a page table of `kind` lists. Nothing may be written there.

        Raises `ConfigError` for a tensor that these pages do not hold, `NotMaterialised` without bytes.
        """
        return paged_view(self._tiers.gpu, self._tiers.layouts, kind, key)

    # -- administration ---------------------------------------------------------------------------------------------

    def execute(
        self, request: CommandRequest, progress: Callable[[dict[str, Any]], None] = lambda _: None
    ) -> CommandOutcome:
        """Run one operator's command to its end. Raises `BadCommand` for what cannot be one."""
        self._open()
        return self._commands.execute(request, progress)

    def set_quality_judge(self, judge: QualityJudge | None) -> None:
        """Who measures what a lossy codec costs, from the next compress on; None: nobody (schedule/quality.py)."""
        self._quality.judge = judge

    def reconfigure(
        self, changes: Mapping[str, Any], *, revision: int, traceparent: str | None = None
    ) -> dict[str, Any]:
        """Apply a desired state: caps, rules of admission and eviction, mode, codec, checkpoints. All of it or, raising
        `ConfigError`, none.

        A key that is absent or null means the engine's own configuration. Shrinking a cap evicts at once.
        """
        return self._steering.reconfigure(changes, revision, traceparent)

    def foresee(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """What `reconfigure` with this document would make leave if it came now (schedule/foresee.py). Changes nothing.

        Raises `ConfigError` where `reconfigure` would.
        """
        return self._steering.foresee(changes)

    def observed(self) -> dict[str, Any]:
        """What the engine runs with now (wire.md, section 3)."""
        return self._steering.observed()

    def tick(self) -> None:
        """Housekeeping, about once a second: expire leases and pins, end a person's mode, delete forgotten files."""
        with self._ledger.lock:
            self._ledger.leases.expire()
            self._ledger.unpin_run_out()
            self._steering.end_mode()
        self._tiers.sweeper.sweep()

    def close(self) -> None:
        """Finish queued work, keep on disk what fits, flush telemetry, let go of the folder. Twice is once."""
        if self._closed:
            return
        self._closed = True
        self._commands.close()
        self._queues.close()
        with self._ledger.lock:
            for lease in self._ledger.leases.live():
                self._ledger.leases.release(lease)
        self._adopter.persist(self.config.persist_s)
        self._tiers.sweeper.sweep(wait=True)
        self._let_go()

    def _open(self) -> None:
        if self._closed:
            raise EngineClosed(f"engine {self.id} was closed; build a new one")

    def _let_go(self) -> None:
        if self._pump is not None:
            self._pump.close()
        self._tiers.close()

    def __enter__(self) -> CacheEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- figures ----------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Counters and occupancy (wire.md, section 3); `faults` only while some are handed over."""
        found = report.stats(self._ledger, self._queues, self._pace)
        return found if self._faults is None else {**found, "faults": self._faults.summary()}

    def curve(self) -> dict[str, Any]:
        """Hit rate against capacity, sampled from what was asked (wire.md, section 3); empty with curve_samples=0."""
        return {} if self._curve is None else report.curve(self._ledger, self._curve)

    def held(self) -> dict[str, Any]:
        """Prefixes, pages and GPU bytes held now, in total and by namespace, and what each tier may hold."""
        return held(self._ledger)

    def snapshot(self) -> list[dict[str, Any]]:
        """Every prefix held, at its newest version."""
        return report.snapshot(self._ledger)

    def check(self) -> list[str]:
        """Broken invariants in words; empty for a clean engine at any moment, whatever other threads are doing.

        It looks at every prefix, slot and file under the engine lock: requests wait for it.
        """
        self._tiers.sweeper.sweep(wait=True)
        return books.check(self._ledger, self._validator.prove)

    def counters(self) -> Counters:
        """A copy of the plain counters."""
        with self._ledger.lock:
            return replace(self._ledger.counters)

    def spans_recorded(self) -> Tally:
        """How many spans were recorded, by name, and how many were dropped."""
        tally = self._ring.tally
        return replace(tally, by_name=dict(tally.by_name))

    def flush_telemetry(self) -> None:
        """Hand everything recorded so far to the span processors."""
        if self._pump is not None:
            self._pump.flush()

    def report_verification(self, bytes_checked: int, wrong_bytes: int) -> None:
        """A caller that knows the truth compared what it loaded; shown in `stats`."""
        with self._ledger.lock:
            self._ledger.counters.verified_bytes += bytes_checked
            self._ledger.counters.wrong_bytes += wrong_bytes

    def report_prefill(self, tokens: int, seconds: float) -> None:
        """The model computed `tokens` in `seconds`. From the eighth report on plans reckon with what was measured
        instead of the configured `prefill_tokens_per_s`. Thread-safe."""
        self._pace.report(tokens, seconds)

    @property
    def index(self) -> Any:
        """The radix index, for benchmarks of the match alone; hold no reference to its nodes."""
        return self._ledger.index
