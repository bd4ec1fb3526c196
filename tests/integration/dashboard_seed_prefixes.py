"""The prefixes of the dashboard's seed, in every state, each with its life and its checkpoints."""

from __future__ import annotations

import datetime as dt
import hashlib
import random
from typing import Any

from dashboard_seed_series import DAMAGED_REASON, LIVE, STALE, prefix_id

from controlplane.store import models as m

_STATES = ["FULL"] * 7 + ["COMPRESSED"] * 2 + ["PARTIAL_OFFLOAD"] * 3 + ["FULL_RESTORE", "QUARANTINED"]


def prefixes(session: Any, now: dt.datetime) -> None:
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
