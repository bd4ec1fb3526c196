"""What people and policies did in the dashboard's seed: revisions, commands, decisions and alerts."""

from __future__ import annotations

import datetime as dt
import hashlib
from dataclasses import asdict
from typing import Any

from dashboard_seed_series import LIVE, prefix_id

from controlplane.steering.policies.kinds import read_rule
from controlplane.store import models as m

MIB, GIB = 1 << 20, 1 << 30


def steering(session: Any, now: dt.datetime) -> None:
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


def policies(session: Any, now: dt.datetime) -> None:
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


def alerts(session: Any, now: dt.datetime) -> None:
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
