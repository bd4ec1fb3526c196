"""How long each read model of the pages takes on a store of many versions."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from sqlalchemy.orm import Session

from benchmarks.deck.seed import prefix_id, seed
from controlplane.clock import utc_now
from controlplane.store import Store, queries, queries_charts
from controlplane.store.queries import TimeRange

ENGINE = "engine-3"
TARGET_MS = 200
Read = Callable[[Session], object]


def reads() -> dict[str, Read]:
    """Every read model with the arguments its page gives, for one engine and for all of them."""
    hour, day = TimeRange.last(60, utc_now()), TimeRange.last(24 * 60, utc_now())
    one = prefix_id(3)
    found: dict[str, Read] = {
        "overview, 1 h": lambda s: queries.overview(s, hour),
        "overview, 24 h": lambda s: queries.overview(s, day),
        "overview, 24 h, one engine": lambda s: queries.overview(s, day, ENGINE),
        "engines": lambda s: queries.list_engines(s, utc_now()),
        "prefixes, search": lambda s: queries.list_prefixes(s, search="tenant-7"),
        "prefixes, by id": lambda s: queries.list_prefixes(s, search=one[:6]),
        "prefixes, page 100": lambda s: queries.list_prefixes(s, engine_id=ENGINE, offset=10_000),
        "prefix": lambda s: queries.get_prefix(s, ENGINE, one),
        "roots of one engine": lambda s: queries.list_children(s, ENGINE, None, limit=200),
        "damaged": queries.list_damaged,
        "failures": queries.list_failures,
        "failures, one engine": lambda s: queries.list_failures(s, day, ENGINE),
        "gaps": queries.list_gaps,
        "marks, 24 h": lambda s: queries.list_marks(s, day),
        "validation counts, 24 h": lambda s: queries.validation_counts(s, day),
        "miss reasons, 24 h": lambda s: queries.miss_reasons(s, day),
        "commands": queries.list_commands,
        "audit": queries.list_audit,
        "audit by actor, 24 h": lambda s: queries.list_audit(s, day, actor="someone"),
        "alerts": lambda s: queries.list_alerts(s),
        "policy runs": lambda s: queries.list_policy_runs(s, day),
    }
    for name, slots in CHARTS.items():
        found[f"chart {name}, 24 h"] = _chart(slots, day)
    for order in queries.ORDERS:
        found[f"prefixes by {order}"] = _prefixes(order, None)
        found[f"prefixes by {order}, one engine"] = _prefixes(order, ENGINE)
    for name in queries.SERIES:
        found[f"series {name}, 24 h"] = _series(name, day)
    return found


CHARTS: dict[str, Callable[[Session, TimeRange, int], object]] = {
    "requests": queries_charts.request_slots,
    "losses": queries_charts.loss_slots,
    "validations": queries_charts.validation_slots,
    "hits by kind": lambda s, window, step: queries_charts.metric_slots(s, "kvcache.hits", window, step),
    "bytes by tier": lambda s, window, step: queries_charts.metric_slots(s, "kvcache.tier.bytes", window, step),
    "fragmentation by engine": lambda s, window, step: queries_charts.engine_slots(
        s, "kvcache.fragmentation", window, step
    ),
}
STEP_MINUTES = 10  # of a day's chart


def _chart(slots: Callable[[Session, TimeRange, int], object], window: TimeRange) -> Read:
    return lambda session: slots(session, window, STEP_MINUTES)


def _prefixes(order: str, engine_id: str | None) -> Read:
    return lambda session: queries.list_prefixes(session, engine_id=engine_id, order=order)


def _series(name: str, window: TimeRange) -> Read:
    return lambda session: queries.series(session, name, window, ENGINE)


def measure(url: str, versions: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of every read model, sorted, over the rounds."""
    store = Store(url)
    started = time.monotonic()
    seed(store, versions)
    print(f"{versions:,} versions seeded in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    took: dict[str, list[float]] = {name: [] for name in reads()}
    for _ in range(rounds):
        for name, read in reads().items():
            with store.read() as session:
                began = time.perf_counter()
                read(session)
                took[name].append((time.perf_counter() - began) * 1000)
    store.dispose()
    return {name: sorted(times) for name, times in took.items()}


def rows(a: argparse.Namespace, kind: str, url: str) -> list[list[object]]:
    """The part's lines of the table, slowest first."""
    found = measure(url, a.versions, a.rounds)
    lines = []
    for name, times in sorted(found.items(), key=lambda item: -item[1][len(item[1]) // 2]):
        p50, p95 = times[len(times) // 2], times[min(len(times) - 1, int(len(times) * 0.95))]
        lines.append([f"{kind}: {name}, ms", f"< {TARGET_MS}", f"{p50:.1f} / {p95:.1f}"])
    return lines
