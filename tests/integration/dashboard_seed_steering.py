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
    for decision, minutes_ago, mode in (("step_down", 20, "no_disk"), ("step_up", 9, "normal"), ("well", 1, None)):
        session.add(_degrade_run(decision, mode, now - dt.timedelta(minutes=minutes_ago)))
    session.add(_warm_run(now - dt.timedelta(minutes=4)))


def _degrade_run(decision: str, mode: str | None, at: dt.datetime) -> m.PolicyRun:
    """As the runner keeps it: see `runner.py`, `degrade.py` and `settle.py`."""
    failed = 74 if decision == "step_down" else 6
    why = "bad for 3 evaluations" if decision == "step_down" else "good for 6 evaluations"
    asked = [{"propose": "SetMode", "engine_id": LIVE, "mode": mode, "reason": why}] if mode else []
    return m.PolicyRun(
        policy="degrade",
        engine_id=LIVE,
        at=at,
        trigger="schedule",
        dry_run=False,
        inputs={
            "mode": "no_disk" if decision == "step_up" else "normal",
            "samples": 310,
            "recovered": 310 - failed,
            "not_recovered": failed,
            "failure_rate": failed / 310,
            "samples_since": (at - dt.timedelta(minutes=5)).isoformat(),
            "bad_in_a_row": 3 if decision == "step_down" else 0,
            "good_in_a_row": 0 if decision == "step_down" else 6,
            "wrong_steps_up": 0,
            "since_last_step_seconds": 660.0,
            "silent_seconds": 2.1,
            "why": why,
            "parameters": asdict(read_rule("degrade", {"minimum_samples": 20})),
        },
        decision=decision,
        proposed=asked,
        did={"revisions": [3]} if asked else {},
        changed={"revisions": {"3": {"status": "applied"}}} if asked else {},
        settled_at=at,
    )


def _warm_run(at: dt.datetime) -> m.PolicyRun:
    command = "0c7d4a52-5a1c-4a53-9d3e-3f8f9a6b1c20"
    why = "12 prefixes that served 48,000 tokens are not resident"
    arguments = {"prefix_ids": [prefix_id(number) for number in range(12)], "max_bytes": 4 * GIB}
    return m.PolicyRun(
        policy="warm-top",
        engine_id=LIVE,
        at=at,
        trigger="schedule",
        dry_run=False,
        inputs={
            "mode": "normal",
            "candidates": 41,
            "bytes_in_last_hour": 3 * GIB,
            "chosen": 12,
            "bytes": 2 * GIB,
            "pinned": 1,
            "labelled": 0,
            "why": why,
            "parameters": asdict(read_rule("warmup", {"most_prefixes": 50, "max_bytes": 4 * GIB})),
        },
        decision="warm",
        proposed=[
            {"propose": "IssueCommand", "engine_id": LIVE, "kind": "warm", "arguments": arguments, "reason": why}
        ],
        did={"commands": [command]},
        changed={"commands": {command: {"kind": "warm", "status": "succeeded", "warmed": 12, "bytes": 2 * GIB}}},
        settled_at=at,
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
