"""The control plane's own metrics for Prometheus: what it took in, how it answers, and what the fleet looks like.

Counters are of this process: with several control planes, sum them. Gauges read from the store are the same on each.
No label names a prefix, a namespace or an engine, so the number of series is bounded by the code.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controlplane.clock import utc_now
from controlplane.errors import ControlPlaneError
from controlplane.ingest.outcome import IngestOutcome
from controlplane.insight.doctor_facts import Refusals
from controlplane.settings import Settings
from controlplane.store import queries
from controlplane.store.queries_counts import steering_counts
from controlplane.store.session import Store

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
NO_ROUTE = "none"
"""The route of a request that none of ours fits: its path is the caller's, and could be anything."""


class Vitals:
    """The counters of one app and the registry they are read from. Safe to share between threads."""

    def __init__(self, store: Store, settings: Settings, leads: Callable[[], bool]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        self.registry.register(_Fleet(store, settings, leads))
        self._items = self._counter("kvdeck_ingest_items", "Spans and metric points by what became of them.", "of fate")
        self._rejected = self._counter("kvdeck_ingest_rejected", "Items that cannot be used, by why.", "of reason")
        self._refusals: dict[tuple[str, str], Refusals] = {}
        self._bytes = self._counter("kvdeck_ingest_bytes", "Bytes of OTLP bodies received.", "of")
        self._exports = self._counter("kvdeck_ingest_exports", "OTLP exports by how they were answered.", "of status")
        self._lag = Histogram(
            "kvdeck_ingest_lag_seconds", "Age of an export's newest item when it was in the store.", ["of"],
            buckets=SECONDS, registry=self.registry,
        )  # fmt: skip
        self._tokens = self._counter("kvdeck_fleet_tokens", "Tokens of all engines' requests that came in.", "kind")
        self._requests = self._counter("kvdeck_fleet_requests", "All engines' requests that came in.", "outcome")
        self._answers = self._counter("kvdeck_http_requests", "Answers by route and status.", "method route status")
        self._seconds = Histogram(
            "kvdeck_http_request_duration_seconds", "Time to answer; polls wait on purpose.", ["method", "route"],
            buckets=SECONDS, registry=self.registry,
        )  # fmt: skip

    def _counter(self, name: str, text: str, labels: str) -> Counter:
        return Counter(name, text, labels.split(), registry=self.registry)

    def received(self, of: str, n_bytes: int) -> None:
        """An OTLP body of `spans` or `points` has arrived."""
        self._bytes.labels(of).inc(n_bytes)

    def refused(self, of: str, code: str) -> None:
        """All of an export was turned away with an error of this code."""
        self._exports.labels(of, code).inc()
        self._note(f"exports of {of}", code, 1)

    def stored(self, of: str, outcome: IngestOutcome) -> None:
        """An export is in the store."""
        self._exports.labels(of, "ok").inc()
        for fate in ("accepted", "ignored", "repeated"):
            self._items.labels(of, fate).inc(getattr(outcome, fate))
        self._items.labels(of, "rejected").inc(outcome.rejected_total)
        for reason, n in outcome.rejected_by.items():
            self._rejected.labels(of, reason).inc(n)
            self._note(of, reason, n)
        for kind, n in outcome.tokens.items():
            self._tokens.labels(kind).inc(n)
        for word, n in outcome.requests.items():
            self._requests.labels(word).inc(n)
        if outcome.newest is not None:
            self._lag.labels(of).observe(max(0.0, (utc_now() - outcome.newest).total_seconds()))

    def refusals(self) -> list[Refusals]:
        """What was turned away since this process began, for the doctor."""
        return list(self._refusals.values())

    def _note(self, of: str, reason: str, n: int) -> None:
        before = self._refusals.get((of, reason))
        count = n + (before.count if before else 0)
        self._refusals[of, reason] = Refusals(of=of, reason=reason, count=count, last_at=utc_now())

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request of the API was answered."""
        self._answers.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)


class CountAnswers:
    """ASGI middleware: counts every answer by its route's template."""

    def __init__(self, app: ASGIApp, vitals: Vitals) -> None:
        self._app, self._vitals = app, vitals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, start = 500, time.perf_counter()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", NO_ROUTE)
            self._vitals.answered(_method(scope["method"]), route, status, time.perf_counter() - start)


def _method(name: str) -> str:
    return name if name in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS") else "other"


class _Fleet(Collector):
    """What the store says, read when Prometheus asks. Without a database the counters are still answered."""

    def __init__(self, store: Store, settings: Settings, leads: Callable[[], bool]) -> None:
        self._store, self._settings, self._leads = store, settings, leads

    def describe(self) -> list[Metric]:
        """Nothing: registering must not read the store."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield _gauge("kvdeck_leader", "Whether this process runs the policies.", {"": float(self._leads())})
        try:
            found = self._read()
        except ControlPlaneError:
            yield _gauge("kvdeck_database_up", "Whether the database answers.", {"": 0.0})
            return
        yield _gauge("kvdeck_database_up", "Whether the database answers.", {"": 1.0})
        yield from found

    def _read(self) -> list[Metric]:
        now = utc_now()
        with self._store.read() as session:
            held = queries.holdings(session)
            steering = steering_counts(session)
            seen = queries.list_engines(
                session,
                now,
                stale_seconds=self._settings.engine_stale_seconds,
                unreachable_seconds=self._settings.engine_unreachable_seconds,
            )
        health = {word: sum(e.health == word for e in seen) for word in ("live", "stale", "unreachable")}
        sync = {word: sum(e.sync == word for e in seen) for word in ("in_sync", "behind", "refused")}
        oldest = steering.oldest_open_command
        return [
            _gauge("kvdeck_engines", "Engines by whether they speak.", health, "health"),
            _gauge("kvdeck_engines_sync", "Engines by whether they run what was asked.", sync, "sync"),
            _gauge("kvdeck_prefixes", "Prefixes held.", held.prefixes_by_state, "state"),
            _gauge("kvdeck_held_bytes", "Bytes of prefixes held.", held.bytes_by_tier, "tier"),
            _gauge("kvdeck_history_gaps_open", "Holes in the history of prefixes.", {"": held.open_gaps}),
            _gauge("kvdeck_commands", "Commands that are kept, by status.", steering.commands, "status"),
            _gauge(
                "kvdeck_oldest_open_command_seconds", "Age of the oldest command that has not ended; 0 for none.",
                {"": _age(oldest, now)},
            ),
            _gauge("kvdeck_alerts", "Alerts that are kept, by state.", steering.alerts, "state"),
        ]  # fmt: skip


def _age(at: dt.datetime | None, now: dt.datetime) -> float:
    return 0.0 if at is None else max(0.0, (now - at).total_seconds())


def _gauge(name: str, text: str, values: Mapping[str, float], label: str = "") -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label] if label else [])
    for value, number in values.items():
        family.add_metric([value] if label else [], number)
    return family
