"""A store of a given number of versions, filled in bulk: ten engines, 25 versions a prefix, a day of rollups."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from controlplane.ingest.engines import register_engine
from controlplane.ingest.history import PREFIX_COLUMNS, VERSION_COLUMNS
from controlplane.ingest.rollups import REQUEST_KEY, REQUEST_SUMS, VALIDATION_KEY
from controlplane.store import Store, models
from controlplane.store.base import Base
from controlplane.store.bulk import BulkInsert, Stored

ENGINES = 10
VERSIONS_A_PREFIX = 25
MINUTE_US = 60_000_000
DAY_MINUTES = 24 * 60
CHUNK = 20_000
STATES = ("FULL", "COMPRESSED", "PARTIAL_OFFLOAD", "FULL", "FULL_RESTORE")
OBJECTS = '{"compressed_kv": {"gpu": 262144}, "swa_window": {"gpu": 131072}}'


def seed(store: Store, versions: int, engines: int = ENGINES, minutes: int = DAY_MINUTES) -> None:
    """Fill an empty store. The newest version of everything is of now; `minutes` of rollups."""
    dice = random.Random(0)
    now_us = time.time_ns() // 1000
    for number in range(engines):
        _register(store, _engine(number))
    _pour(store, models.PrefixVersion, VERSION_COLUMNS, _versions(versions, now_us, engines))
    _pour(store, models.Prefix, PREFIX_COLUMNS, _prefixes(versions, now_us, dice, engines))
    _pour(store, models.RequestRollup, (*REQUEST_KEY, *REQUEST_SUMS), _requests(_minutes(now_us, engines, minutes)))
    _pour(store, models.ValidationRollup, (*VALIDATION_KEY, "count"), _validations(_minutes(now_us, engines, minutes)))
    names = ("engine_id", "name", "attributes", "minute", "last", "delta", "maximum", "count_delta", "boot_id")
    _pour(store, models.MetricRollup, names, _metrics(_minutes(now_us, engines, minutes)))
    failures = (
        "engine_id",
        "prefix_id",
        "validation",
        "object_kind",
        "reason",
        "boundary",
        "at",
        "trace_id",
        "span_id",
    )
    _pour(store, models.ValidationFailure, failures, _failures(versions // 50, now_us, dice, engines))
    audit = ("at", "actor", "role", "action", "target", "reason")
    rows = ((now_us - i * MINUTE_US, "someone", "operator", "evict", _engine(i % engines), "r") for i in range(50_000))
    _pour(store, models.Audit, audit, rows)
    with store.write() as session:
        _sum_hours(session)
    with store.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("ANALYZE"))


HOURS = (
    (models.RequestRollup, models.RequestHour),
    (models.ValidationRollup, models.ValidationHour),
    (models.MetricRollup, models.MetricHour),
)


def _sum_hours(session: Session, tables: tuple[tuple[type[Base], type[Base]], ...] = HOURS) -> None:
    """The hours of the minutes that were poured in past ingest, which keeps both."""
    for minutes, hours in tables:
        names = [column.name for column in hours.__table__.columns if column.name != "hour"]
        keys = [name for name in names if name in hours.__table__.primary_key.columns]
        sums = [name for name in names if name not in keys]
        hour = '"minute" - "minute" % 3600000000'
        listed, totals = ", ".join(f'"{name}"' for name in keys), ", ".join(f'SUM("{name}")' for name in sums)
        added = ", ".join(f'"{name}"' for name in sums)
        session.execute(
            text(
                f'INSERT INTO {hours.__tablename__} ({listed}, "hour", {added}) '
                f"SELECT {listed}, {hour}, {totals} FROM {minutes.__tablename__} GROUP BY {listed}, {hour}"
            )
        )


def prefix_id(number: int) -> str:
    """Spread like hashes, and known again."""
    return f"{(number * 0x9E3779B97F4A7C15F39CC0605CEDC834) % (1 << 128):032x}"


def _engine(number: int) -> str:
    return f"engine-{number}"


def _pour(store: Store, model: type[Base], columns: tuple[str, ...], rows: Iterable[Stored]) -> None:
    order = [column.name for column in model.__table__.columns if column.name in columns]
    moved = [columns.index(name) for name in order]
    bulk = BulkInsert(model, tuple(order), _as_it_is)
    waiting = (tuple(row[index] for index in moved) for row in rows)
    while chunk := list(islice(waiting, CHUNK)):
        with store.write_beside() as session:
            bulk.run(session, chunk)


def _as_it_is(statement: Any) -> Any:
    return statement


def _lives(versions: int, engines: int) -> Iterator[tuple[int, str, str]]:
    for number in range(max(1, versions // VERSIONS_A_PREFIX)):
        yield number, _engine(number % engines), prefix_id(number)


def _versions(versions: int, now_us: int, engines: int) -> Iterator[Stored]:
    total = max(1, versions // VERSIONS_A_PREFIX)
    for version in range(1, VERSIONS_A_PREFIX + 1):  # as they came: all prefixes' first versions, then the second ones
        for number, engine_id, identity in _lives(versions, engines):
            age = (VERSIONS_A_PREFIX - version + 1 - number / total) * DAY_MINUTES * MINUTE_US / VERSIONS_A_PREFIX
            state = "QUARANTINED" if (number + version) % 5_000 == 0 else STATES[version % len(STATES)]
            yield (
                engine_id, identity, 1_700_000_000_000_000_000, version, STATES[(version - 1) % len(STATES)], state,
                "policy", "none", int(now_us - age), 0, 2048, 1 << 20, 1 << 20, 0, 0, OBJECTS, None, "0" * 32,
                f"{number:016x}", None, None, False,
            )  # fmt: skip


def _prefixes(versions: int, now_us: int, dice: random.Random, engines: int) -> Iterator[Stored]:
    for number, engine_id, identity in _lives(versions, engines):
        state = "EVICTED" if number % 4 == 0 else STATES[number % len(STATES)]
        parent = prefix_id(number - number % 50) if number % 50 else None
        served = int(dice.paretovariate(1.2) * 1000)
        yield (
            engine_id, identity, 1_700_000_000_000_000_000, VERSIONS_A_PREFIX, state, f"tenant-{number % 20}", parent,
            2048, 32, 1 << 20, 0, 0, OBJECTS, number % 500 == 0, served, served // 1000, 1_700_000_000_000_000,
            now_us - number,
        )  # fmt: skip


def _minutes(now_us: int, engines: int, minutes: int) -> Iterator[tuple[str, int]]:
    start = now_us - now_us % MINUTE_US
    for age in range(minutes):
        for number in range(engines):
            yield _engine(number), start - age * MINUTE_US


def _requests(minutes: Iterable[tuple[str, int]]) -> Iterator[Stored]:
    for engine_id, minute in minutes:
        for outcome, reason in (("hit", "none"), ("partial", "window_stale"), ("miss", "not_found")):
            for tenant in range(3):
                yield (engine_id, minute, f"tenant-{tenant}", outcome, reason, "FULL", "gpu", 10, 9000, 5000, 4000, 10)


def _validations(minutes: Iterable[tuple[str, int]]) -> Iterator[Stored]:
    checks = ("lineage", "window_fresh", "tail_intact", "indexer_in_step", "objects_present")
    for engine_id, minute in minutes:
        for check in checks:
            yield (engine_id, minute, check, "pass", "none", 100)
            yield (engine_id, minute, check, "fail", "absent", 3)


METRICS = (
    ("kvcache.queries", ("of=tokens", "of=requests")),
    ("kvcache.hits", tuple(f"object.kind={kind},of=tokens" for kind in ("compressed_kv", "swa_window", "full_kv"))),
    (
        "kvcache.recoveries",
        tuple(f"outcome={end},tier={tier}" for end in ("ok", "failed") for tier in ("host", "disk")),
    ),
    ("kvcache.tier.bytes", tuple(f"state=used,tier={tier}" for tier in ("gpu", "host", "disk"))),
    ("kvcache.prefixes", tuple(f"state={state}" for state in ("FULL", "COMPRESSED", "PARTIAL_OFFLOAD"))),
    ("kvcache.evictions", ("cause=cap", "cause=pressure")),
    ("kvcache.fragmentation", ("class=all",)),
)


def _metrics(minutes: Iterable[tuple[str, int]]) -> Iterator[Stored]:
    for engine_id, minute in minutes:
        for name, series in METRICS:
            for attributes in series:
                yield (engine_id, name, attributes, minute, 1000.0, 50.0, 1000.0, 0, "boot-1")


LOSSES = ("new_content", "evicted_cap", "checkpoint_missing", "restore_slow")
IO_BOUNDS = "[0.001, 0.01, 0.1, 1.0]"


def seed_losses(store: Store, engines: int, minutes: int) -> None:
    """What `seed` leaves out and the dashboard draws: losses, and the histograms of tier I/O."""
    now_us = time.time_ns() // 1000
    losses = (
        (engine_id, minute, f"tenant-{tenant}", cause, 10, 1500)
        for engine_id, minute in _minutes(now_us, engines, minutes)
        for cause in LOSSES
        for tenant in range(3)
    )
    _pour(store, models.LossRollup, ("engine_id", "minute", "namespace", "cause", "requests", "tokens"), losses)
    with store.write() as session:
        _sum_hours(session, ((models.LossRollup, models.LossHour),))
    columns = (
        "engine_id", "name", "attributes", "minute", "last", "delta", "maximum", "count_delta", "bucket_deltas",
        "boot_id",
    )  # fmt: skip
    buckets = f'{{"bounds": {IO_BOUNDS}, "counts": [4, 20, 9, 1, 0]}}'
    histograms = (
        (engine_id, "kvcache.tier.io.duration", f"direction={direction},tier={tier}", minute, 1.0, 1.0, 1.0, 34,
         buckets, "boot-1")
        for engine_id, minute in _minutes(now_us, engines, minutes)
        for tier in ("gpu", "host", "disk")
        for direction in ("read", "write")
    )  # fmt: skip
    _pour(store, models.MetricRollup, columns, histograms)


def _failures(count: int, now_us: int, dice: random.Random, engines: int) -> Iterator[Stored]:
    for number in range(count):
        at = now_us - int(number * DAY_MINUTES * MINUTE_US / max(1, count))
        identity = prefix_id(dice.randrange(max(1, count)))
        yield (
            _engine(number % engines), identity, "tail_intact", "uncompressed_tail", "absent", 64, at, "0" * 32,
            f"{number:016x}",
        )  # fmt: skip


def _register(store: Store, engine_id: str) -> None:
    facts: dict[str, Any] = {"model": "toy", "fingerprint": "f", "page_tokens": 64, "labels": {}, "observed": {}}
    with store.write() as session:
        register_engine(session, engine_id, boot_id="boot-1", **facts)
