"""Realistic rows for the dashboard's tests, written through the ORM, and the tests that they are what they claim."""

from __future__ import annotations

import datetime as dt
import hashlib
import random
from dataclasses import asdict
from typing import Any

from sqlalchemy import func, select, text
from test_dashboard_seed_series import DAMAGED_REASON, GONE, LIVE, STALE, metrics, prefix_id, requests, validations

from controlplane.auth import Role, issue_token
from controlplane.steering.policies.kinds import read_rule
from controlplane.store import models as m
from controlplane.store.migrate import upgrade
from controlplane.store.session import Store

MIB, GIB = 1 << 20, 1 << 30


def seed(url: str, now: dt.datetime, *, rows: bool = True) -> dict[str, str]:
    """Build the schema and fill it. Returns one token a role; `rows=False` leaves everything but tokens empty."""
    upgrade(url)
    store = Store(url)
    try:
        with store.write() as session:
            secrets = {
                role.word: issue_token(session, f"test {role.word}", role, ttl=None)
                for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN)
            }
            secrets["link"] = issue_token(
                session, "local operator", Role.ADMIN, ttl=dt.timedelta(hours=1), one_time=True
            )
            if rows:
                _engines(session, now)
                session.flush()
                for part in (_prefixes, requests, metrics, validations, _steering, _policies, _alerts):
                    part(session, now)
                session.flush()
                _sum_hours(session)
        return secrets
    finally:
        store.dispose()


def _sum_hours(session: Any) -> None:
    """The hours of the minutes that were poured in past ingest, which keeps both."""
    for minutes, hours in (
        (m.RequestRollup, m.RequestHour),
        (m.ValidationRollup, m.ValidationHour),
        (m.MetricRollup, m.MetricHour),
        (m.LossRollup, m.LossHour),
    ):
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


def _tier(total: int, live: float, pinned: float) -> dict[str, int]:
    live_bytes, pinned_bytes = int(total * live), int(total * pinned)
    return {
        "total_bytes": total,
        "live_bytes": live_bytes,
        "pinned_bytes": pinned_bytes,
        "free_bytes": total - live_bytes - pinned_bytes,
    }


def _stats(scale: float) -> dict[str, Any]:
    return {
        "requests": int(48_211 * scale),
        "prompt_tokens": int(391_204_118 * scale),
        "lcp_tokens": int(151_400_201 * scale),
        "usable_tokens": int(139_222_870 * scale),
        "replay_tokens": int(2_120_400 * scale),
        "prefixes": {"FULL": 34, "COMPRESSED": 9, "PARTIAL_OFFLOAD": 12, "FULL_RESTORE": 1, "QUARANTINED": 3},
        "tiers": {
            "gpu": _tier(16 * GIB, 0.71, 0.06),
            "host": _tier(64 * GIB, 0.42, 0.0),
            "disk": _tier(512 * GIB, 0.18, 0.0),
        },
        "fragmentation": {"history": 0.11, "indexer": 0.04, "window": 0.31, "tail": 0.19, "all": 0.14},
        "classes": {
            "history": {"slot_bytes": 589_824, "slabs": 210, "used_slots": 16_012, "slots": 17_990},
            "indexer": {"slot_bytes": 65_536, "slabs": 24, "used_slots": 11_240, "slots": 11_710},
            "window": {"slot_bytes": 262_144, "slabs": 40, "used_slots": 2_208, "slots": 3_200},
            "tail": {"slot_bytes": 36_864, "slabs": 6, "used_slots": 1_402, "slots": 1_730},
        },
        "queues": {
            form: {"depth": depth, "bound": 256}
            for form, depth in (("resident", 3), ("compressed", 1), ("windowed", 12), ("indexed", 0), ("offloaded", 41))
        },
        "io": {
            "host": {"breaker": "closed", "retries": 0},
            "disk": {
                "breaker": "open" if scale < 0.5 else "closed",
                "retries": 9,
                "stuck": 1 if scale < 0.5 else 0,
                "overdue": 0,
                "leaving_bytes": 64 * MIB,
                "sweep_failures": 0,
            },
        },
        "pins": {"prefixes": 1, "bytes": 90 * MIB, "budget_bytes": 2 * GIB},
        "namespaces": {
            name: {"gpu_bytes": int(share * 12 * GIB * scale), "prefixes": int(share * 60 * scale)}
            for name, share in (("tenant-a", 0.6), ("tenant-b", 0.3), ("evals", 0.1))
        },
        "leases": 17,
        "oldest_lease_s": 3.2,
        "telemetry_dropped": 0,
        "recoveries": {"ok": 1_902, "failed": 31, "late": 12},
        "wrong_bytes": 0,
        "verified_bytes": 91_204_118_222,
        "quarantined": [{"prefix_id": prefix_id(7), "kind": "disk_prefix", "reason": DAMAGED_REASON, "at": "now"}],
    }


def _observed(mode: str, error: str | None = None) -> dict[str, Any]:
    return {
        "mode": mode,
        "cap_prefixes": 4000,
        "cap_gpu_bytes": 16 * GIB,
        "cap_host_bytes": 64 * GIB,
        "cap_disk_bytes": 512 * GIB,
        "codec": "int8",
        "checkpoint_every_tokens": 0,
        "error": error,
    }


def _engines(session: Any, now: dt.datetime) -> None:
    refused = "cap_gpu_bytes 8.0 GiB is below the 9.6 GiB that are pinned or leased"
    rows = (
        (LIVE, 0.0, 3, _observed("normal"), 1.0),
        (STALE, 20.0, 2, _observed("no_disk", refused), 0.4),
        (GONE, 120.0, 2, _observed("normal"), 0.1),
    )
    for name, minutes_ago, revision, observed, scale in rows:
        session.add(
            m.Engine(
                id=name,
                boot_id=f"boot-{name}",
                model="deepseek-v4-flash",
                fingerprint="a3f1" * 8,
                page_tokens=128,
                labels={"zone": "rack-1", "gpu": "h200"},
                group_name="chat" if name != GONE else "batch",
                registered_at=now - dt.timedelta(hours=30),
                last_seen_at=now - dt.timedelta(minutes=minutes_ago),
                observed_revision=revision,
                observed=observed,
                stats=_stats(scale),
                clock_ahead_seconds=0.012,
            )
        )


_STATES = ["FULL"] * 7 + ["COMPRESSED"] * 2 + ["PARTIAL_OFFLOAD"] * 3 + ["FULL_RESTORE", "QUARANTINED"]


def _prefixes(session: Any, now: dt.datetime) -> None:
    rng = random.Random(4)
    ends: list[int] = []
    for number in range(60):
        state = "QUARANTINED" if number in (7, 21) else _STATES[rng.randrange(len(_STATES) - 1)]
        parent = number // 4 if number and number % 5 and (number // 4) % 5 else None
        tokens = 128 * rng.randrange(4, 300) + (ends[parent] if parent is not None else 0)
        ends.append(tokens)
        objects = _objects(state, tokens)
        held = {tier: sum(by.get(tier, 0) for by in objects.values()) for tier in ("gpu", "host", "disk")}
        life = int((now - dt.timedelta(minutes=55)).timestamp() * 1e9) + number
        session.add(
            m.Prefix(
                engine_id=LIVE if number % 5 else STALE,
                prefix_id=prefix_id(number),
                life=life,
                version=5 if state == "QUARANTINED" else 3,
                state=state,
                namespace=("tenant-a", "tenant-b", "evals")[number % 3],
                parent_id=None if parent is None else prefix_id(parent),
                tokens=tokens,
                pages=tokens // 128,
                gpu_bytes=held["gpu"],
                host_bytes=held["host"],
                disk_bytes=held["disk"],
                objects=objects,
                pinned=number == 1,
                tokens_served=int(rng.paretovariate(0.8) * 9_000) if number % 7 else 0,
                requests_served=rng.randrange(0, 800),
                created_at=now - dt.timedelta(minutes=55),
                changed_at=now - dt.timedelta(minutes=rng.randrange(1, 50)),
                served_at=now - dt.timedelta(seconds=rng.randrange(5, 3000)),
            )
        )
        _life(session, now, number, life, tokens, state)
    for number in (1, 3, 5):
        session.add(
            m.PrefixLabel(prefix_id=prefix_id(number), name="app", value="support-bot", actor="test operator", at=now)
        )


def _objects(state: str, tokens: int) -> dict[str, dict[str, int]]:
    span = {"PARTIAL_OFFLOAD": "disk", "QUARANTINED": "disk", "FULL_RESTORE": "host"}.get(state, "gpu")
    return {
        "compressed_kv": {span: tokens * 1_312},
        "uncompressed_tail": {"gpu": 36_864},
        "swa_window": {"gpu": 4 * 262_144},
        "indexer_state": {"gpu": tokens * 64},
        "disk_prefix": {"disk": tokens * 1_312} if span == "disk" else {},
    }


def _life(session: Any, now: dt.datetime, number: int, life: int, tokens: int, state: str) -> None:
    engine = LIVE if number % 5 else STALE
    steps = [("NEW", "FULL", "commit", "none", 55), ("FULL", "COMPRESSED", "idle", "idle_300s", 38)]
    steps.append(("COMPRESSED", state if state != "QUARANTINED" else "PARTIAL_OFFLOAD", "policy", "offload_idle", 24))
    if state == "QUARANTINED":
        steps += [
            ("PARTIAL_OFFLOAD", "FULL_RESTORE", "restore", "acquire", 6),
            ("FULL_RESTORE", "QUARANTINED", "corruption", DAMAGED_REASON, 5),
        ]
    for version, (old, new, cause, reason, minutes_ago) in enumerate(steps, start=1):
        digest = hashlib.sha256(f"{number}/{version}".encode()).hexdigest()
        held = tokens * 1_376
        session.add(
            m.PrefixVersion(
                engine_id=engine,
                prefix_id=prefix_id(number),
                life=life,
                version=version,
                state_from=old,
                state_to=new,
                cause=cause,
                reason=reason,
                at=now - dt.timedelta(minutes=minutes_ago, seconds=number % 40),
                monotonic_ns=version * 10**9,
                tokens=tokens,
                bytes_moved=0 if version == 1 else held // 2,
                gpu_bytes=held if version == 1 else held // 3,
                host_bytes=0,
                disk_bytes=held if new in ("PARTIAL_OFFLOAD", "FULL_RESTORE", "QUARANTINED") else 0,
                objects=_objects(new, tokens),
                command_id=None,
                trace_id=digest[:32],
                span_id=digest[:16],
                cause_trace_id=digest[32:64] if cause != "commit" else None,
                cause_span_id=None,
            )
        )
    for position in range(2):
        session.add(
            m.Checkpoint(
                engine_id=engine,
                checkpoint_id=hashlib.sha256(f"cp{number}/{position}".encode()).hexdigest()[:32],
                prefix_id=prefix_id(number),
                boundary=tokens - 128 * position,
                kinds=["uncompressed_tail", "swa_window"],
                tiers=["gpu"] if position else ["gpu", "disk"],
                changed_at=now - dt.timedelta(minutes=20),
            )
        )


def _steering(session: Any, now: dt.datetime) -> None:
    documents = (
        ({"cap_prefixes": 3000, "mode": "normal"}, "first caps", 2000),
        ({"cap_prefixes": 4000, "mode": "normal"}, "more prefixes: the curve is still steep here", 130),
        ({"cap_prefixes": 4000, "mode": "normal", "cap_gpu_bytes": 16 * GIB}, "match the card", 30),
    )
    for document, reason, minutes_ago in documents:
        session.add(
            m.DesiredState(
                engine_id=None,
                document=document,
                actor="test admin",
                reason=reason,
                at=now - dt.timedelta(minutes=minutes_ago),
            )
        )
        session.flush()
    for number, (kind, status, outcome, minutes_ago) in enumerate(
        (
            ("evict", "succeeded", {"evicted": 12, "bytes": 3 * GIB, "refused": []}, 41),
            ("warm", "failed", {"warmed": 2, "bytes": 90 * MIB, "failed": 1}, 17),
            ("scrub", "running", {}, 1),
        )
    ):
        session.add(
            m.Command(
                id=f"00000000-0000-4000-8000-00000000000{number}",
                engine_id=LIVE,
                kind=kind,
                arguments={"prefix_ids": [prefix_id(3)]} if kind != "scrub" else {"max_bytes": GIB},
                idempotency_key=f"seed-{number}",
                epoch=1,
                status=status,
                progress={"done": 40, "total": 100} if status == "running" else {},
                outcome=outcome,
                actor="test operator",
                reason="free room for tenant-a" if kind == "evict" else "checking the disk after the alert",
                created_at=now - dt.timedelta(minutes=minutes_ago),
                expires_at=now + dt.timedelta(minutes=30),
                delivered_at=now - dt.timedelta(minutes=minutes_ago),
                finished_at=None if status == "running" else now - dt.timedelta(minutes=minutes_ago - 1),
            )
        )
        session.add(
            m.Audit(
                at=now - dt.timedelta(minutes=minutes_ago),
                actor="test operator",
                role="operator",
                action=f"command.{kind}",
                target=f"{LIVE}/{prefix_id(3)}",
                reason="free room for tenant-a",
                before=None,
                after={"kind": kind},
                trace_id=hashlib.sha256(str(number).encode()).hexdigest()[:32],
            )
        )


def _policies(session: Any, now: dt.datetime) -> None:
    for name, kind, every, paused, parameters in (
        ("degrade", "degrade", 30, False, {"minimum_samples": 20}),
        ("warm-top", "warmup", 900, False, {"most_prefixes": 50, "max_bytes": 4 * GIB}),
        ("offload-idle", "offload_idle", 120, True, {"idle_seconds": 900}),
    ):
        session.add(
            m.Policy(
                name=name,
                kind=kind,
                parameters=asdict(read_rule(kind, parameters)),
                every_seconds=every,
                paused=paused,
                memory={},
                changed_at=now - dt.timedelta(hours=2),
            )
        )
    for decision, minutes_ago, proposed in (
        ("degrade", 20, [{"desired": {"mode": "no_disk"}}]),
        ("recover", 9, [{"desired": {"mode": "normal"}}]),
        ("hold", 1, []),
    ):
        session.add(
            m.PolicyRun(
                policy="degrade",
                engine_id=LIVE,
                at=now - dt.timedelta(minutes=minutes_ago),
                trigger="schedule",
                dry_run=False,
                inputs={"failure_rate": 0.24 if decision == "degrade" else 0.02, "samples": 310, "window_s": 300},
                decision=decision,
                proposed=proposed,
                did={"revisions": [3]} if proposed else {},
                changed={"revisions": {"3": {"status": "applied"}}} if proposed else {},
                settled_at=now - dt.timedelta(minutes=minutes_ago),
            )
        )


def _alerts(session: Any, now: dt.datetime) -> None:
    for state, rule, summary, value, threshold, minutes_ago in (
        ("firing", "damaged_prefixes", "2 prefixes are quarantined on gpu-a", 2.0, 1.0, 6),
        ("pending", "history_gaps", "1 open history gap on gpu-a", 1.0, 0.0, 3),
        ("resolved", "recovery_failures", "24.1% of recoveries failed or came late", 0.241, 0.2, 22),
    ):
        session.add(
            m.Alert(
                rule=rule,
                engine_id=LIVE,
                state=state,
                summary=summary,
                value=value,
                threshold=threshold,
                since=now - dt.timedelta(minutes=minutes_ago),
                fired_at=None if state == "pending" else now - dt.timedelta(minutes=minutes_ago - 1),
                resolved_at=now - dt.timedelta(minutes=9) if state == "resolved" else None,
            )
        )


def test_the_seed_holds_every_state_a_page_must_show(tmp_path):
    url = f"sqlite:///{tmp_path / 'seed.sqlite3'}"
    seed(url, dt.datetime.now(dt.UTC))
    store = Store(url)
    with store.read() as session:
        states = set(session.scalars(select(m.Prefix.state)))
        assert {"FULL", "COMPRESSED", "PARTIAL_OFFLOAD", "QUARANTINED"} <= states
        assert session.scalar(select(func.count()).select_from(m.RequestRollup)) == 181 * 12
        assert set(session.scalars(select(m.Command.status))) == {"succeeded", "failed", "running"}
    store.dispose()


def test_an_empty_seed_holds_only_tokens(tmp_path):
    url = f"sqlite:///{tmp_path / 'seed.sqlite3'}"
    secrets = seed(url, dt.datetime.now(dt.UTC), rows=False)
    assert set(secrets) == {"viewer", "operator", "admin", "link"}
    store = Store(url)
    with store.read() as session:
        assert session.scalar(select(func.count()).select_from(m.Engine)) == 0
    store.dispose()
