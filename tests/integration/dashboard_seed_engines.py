"""The engines of the dashboard's seed: one live, one stale, one gone, and the stats that each last told."""

from __future__ import annotations

import datetime as dt
from typing import Any

from dashboard_seed_series import DAMAGED_REASON, GONE, LIVE, STALE, prefix_id

from controlplane.store import models as m

MIB, GIB = 1 << 20, 1 << 30


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


def engines(session: Any, now: dt.datetime) -> None:
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
