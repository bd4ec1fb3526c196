"""Observable instruments over the engine's plain ints: reading is the only cost, and only when someone reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

from engine.config import Mode
from engine.consistency.state import State
from engine.memory.holding import Tier
from engine.memory.transfer import IO_BOUNDS_S, Histogram
from engine.report import tier_figures
from engine.schedule.ledger import Ledger
from engine.schedule.quality import QualityTally
from engine.schedule.queues import FormQueues
from engine.telemetry.registry import INSTRUMENTS, SCHEMA_URL, SCOPE_NAME, SCOPE_VERSION
from engine.telemetry.registry.instruments import NAMESPACES_SHOWN, OTHERS

Rows = Iterable[tuple[float, dict[str, str]]]


class EngineMetrics:
    """Registers every instrument of the registry (telemetry/registry/instruments.py) on a meter provider."""

    def __init__(
        self,
        provider: MeterProvider,
        ledger: Ledger,
        queues: FormQueues,
        mode: Callable[[], Mode],
        quality: QualityTally,
    ) -> None:
        self._ledger = ledger
        self._queues = queues
        self._quality = quality
        meter = provider.get_meter(SCOPE_NAME, SCOPE_VERSION, SCHEMA_URL)
        self._counters(meter)
        self._gauges(meter, mode)
        self._durations(meter)

    def _counters(self, meter: Meter) -> None:
        c, tally = self._ledger.counters, self._ledger.ring.tally
        rows: dict[str, Callable[[], Rows]] = {
            "kvcache.request.tokens": lambda: [
                (n, {"of": of})
                for of, n in (
                    ("prompt", c.prompt_tokens),
                    ("lcp", c.lcp_tokens),
                    ("usable", c.usable_tokens),
                    ("replay", c.replay_tokens),
                )
            ],
            "kvcache.requests": lambda: _singles(c.by_outcome, ("outcome",)),
            "kvcache.lost": lambda: _singles(c.lost, ("cause",)),
            "kvcache.queries": lambda: _pairs(_bounded(c.by_namespace), ("namespace",)),
            "kvcache.hits": lambda: _pairs(c.by_hit, ("object.kind", "state", "tier")),
            "kvcache.validations": lambda: _singles(c.by_validation, ("validation", "verdict", "reason")),
            "kvcache.transitions": lambda: [(c.transitions, {})],
            "kvcache.recoveries": lambda: _singles(c.recoveries, ("tier", "outcome")),
            "kvcache.evictions": lambda: _singles(c.evictions, ("cause", "kind")),
            "kvcache.commits": self._commits,
            "kvcache.checkpoints.dropped": self._dropped,
            "kvcache.codec.judged": lambda: _singles(self._quality.judged, ("codec", "outcome")),
            "kvcache.tier.io.bytes": self._io_bytes,
            "kvcache.verified.bytes": lambda: [(c.verified_bytes, {})],
            "kvcache.wrong.bytes": lambda: [(c.wrong_bytes, {})],
            "kvcache.telemetry.spans": lambda: _singles(tally.by_name, ("span",)),
            "kvcache.telemetry.dropped": lambda: [
                (tally.dropped_checks, {"record": "validation"}),
                (tally.dropped_requests, {"record": "request"}),
            ],
        }
        for name, read in rows.items():
            known = INSTRUMENTS[name]
            meter.create_observable_counter(name, [_callback(read)], unit=known.unit, description=known.meaning)

    def _gauges(self, meter: Meter, mode: Callable[[], Mode]) -> None:
        ledger = self._ledger
        rows: dict[str, Callable[[], Rows]] = {
            "kvcache.fragmentation": self._fragmentation,
            "kvcache.tier.bytes": self._tier_bytes,
            "kvcache.prefixes": self._prefixes,
            "kvcache.namespace.bytes": self._namespace_bytes,
            "kvcache.pinned.bytes": lambda: [(ledger.pins.held_bytes, {})],
            "kvcache.queue.depth": lambda: [(q.depth, {"form": str(q.form)}) for q in self._queues.all()],
            "kvcache.leases": lambda: [(len(ledger.leases), {})],
            "kvcache.lease.age": lambda: [(ledger.leases.oldest_s(), {})],
            "kvcache.mode": lambda: [(mode().rung, {})],
            "kvcache.tier.breaker": self._breakers,
            "kvcache.tier.stuck": lambda: [(ledger.tiers.stuck_calls, {"tier": str(Tier.DISK)})],
            "kvcache.codec.logit_error": self._logit_errors,
            "kvcache.codec.kl": self._divergences,
        }
        for name, read in rows.items():
            known = INSTRUMENTS[name]
            meter.create_observable_gauge(name, [_callback(read)], unit=known.unit, description=known.meaning)

    def _durations(self, meter: Meter) -> None:
        """Histograms have no observable form. I/O and queue waits are rare beside requests, so each is recorded as it
        happens (about 10 us)."""
        for name, series in self._series().items():
            known = INSTRUMENTS[name]
            instrument = meter.create_histogram(
                name, unit=known.unit, description=known.meaning, explicit_bucket_boundaries_advisory=IO_BOUNDS_S
            )
            for attributes, counts in series:
                counts.on_add = partial(instrument.record, attributes=attributes)

    def _series(self) -> dict[str, list[tuple[dict[str, str], Histogram]]]:
        durations = [
            ({"tier": str(tier), "direction": direction}, side.seconds)
            for tier, transfer in self._ledger.tiers.io.items()
            for direction, side in (("read", transfer.read), ("write", transfer.write))
        ]
        waits = [({"form": str(q.form)}, q.wait) for q in self._queues.all()]
        return {"kvcache.tier.io.duration": durations, "kvcache.queue.wait": waits}

    def _io_bytes(self) -> Rows:
        return [
            (side.moved_bytes, {"tier": str(tier), "direction": direction})
            for tier, transfer in self._ledger.tiers.io.items()
            for direction, side in (("read", transfer.read), ("write", transfer.write))
            if side.seconds.count
        ]

    def _fragmentation(self) -> Rows:
        with self._ledger.lock:
            usage = self._ledger.tiers.gpu.usage()
        held = sum(u.slots * u.slot_bytes for u in usage.values())
        free = sum((u.slots - u.used_slots) * u.slot_bytes for u in usage.values())
        rows = [(u.fragmentation_ratio, {"class": name}) for name, u in usage.items() if u.slabs]
        return [*rows, (free / held if held else 0.0, {"class": "all"})]

    def _tier_bytes(self) -> Rows:
        with self._ledger.lock:
            figures = {tier: tier_figures(self._ledger, tier) for tier in Tier}
        return [
            (n, {"tier": str(tier), "state": name.removesuffix("_bytes")})
            for tier, found in figures.items()
            for name, n in found.items()
        ]

    def _commits(self) -> Rows:
        c = self._ledger.counters
        whole = c.commits - sum(list(c.cuts.values()))
        cut = [(n, {"outcome": "admitted", "reason": reason}) for reason, n in list(c.cuts.items())]
        refused = [(n, {"outcome": "refused", "reason": reason}) for reason, n in list(c.refusals.items())]
        return [(whole, {"outcome": "admitted", "reason": "ok"}), *cut, *refused]

    def _dropped(self) -> Rows:
        return [(n, {"reason": reason}) for reason, n in list(self._ledger.counters.checkpoints_dropped.items())]

    def _namespace_bytes(self) -> Rows:
        """Of the namespaces that have a cap."""
        books = self._ledger.namespaces
        capped = {name: [books.gpu_bytes.get(name, 0)] for name in list(books.shares.caps)}
        return [(held, {"namespace": name}) for name, (held,) in _bounded(capped).items()]

    def _breakers(self) -> Rows:
        return [(transfer.breaker.rung, {"tier": str(tier)}) for tier, transfer in self._ledger.tiers.io.items()]

    def _logit_errors(self) -> Rows:
        q = self._quality
        last = [(quality.logit_error, {"codec": codec, "of": "last"}) for codec, quality in list(q.last.items())]
        return [*last, *((n, {"codec": codec, "of": "largest"}) for codec, n in list(q.largest_logit_error.items()))]

    def _divergences(self) -> Rows:
        q = self._quality
        last = [(quality.kl, {"codec": codec, "of": "last"}) for codec, quality in list(q.last.items())]
        return [*last, *((n, {"codec": codec, "of": "largest"}) for codec, n in list(q.largest_kl.items()))]

    def _prefixes(self) -> Rows:
        return [(n, {"state": str(s)}) for s, n in self._ledger.states.items() if s not in (State.NEW, State.EVICTED)]


def _callback(rows: Callable[[], Rows]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _options: [Observation(value, attributes) for value, attributes in rows()]


def _bounded(table: dict[str, list[int]]) -> dict[str, list[int]]:
    """The first namespaces by themselves, all later ones together. Who came first stays first, so sums only grow."""
    rows = list(table.items())
    found = {name: list(row) for name, row in rows[:NAMESPACES_SHOWN]}
    if later := [row for _, row in rows[NAMESPACES_SHOWN:]]:
        found[OTHERS] = [sum(column) for column in zip(*later, strict=True)]
    return found


def _singles(table: dict[Any, int], names: tuple[str, ...]) -> Rows:
    return [
        (n, dict(zip(names, key if isinstance(key, tuple) else (key,), strict=True))) for key, n in list(table.items())
    ]


def _pairs(table: dict[Any, list[int]], names: tuple[str, ...]) -> Rows:
    """Rows of tokens and of requests from `key -> [tokens, requests]`."""
    found: list[tuple[float, dict[str, str]]] = []
    for key, (n_tokens, n_requests) in list(table.items()):
        attributes = dict(zip(names, key if isinstance(key, tuple) else (key,), strict=True))
        found.append((n_tokens, {**attributes, "of": "tokens"}))
        found.append((n_requests, {**attributes, "of": "requests"}))
    return found
