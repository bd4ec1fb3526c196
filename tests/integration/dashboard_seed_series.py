"""The series of the dashboard's seed: requests, metrics and validations by minute, with ten bad minutes in them."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import random
from collections import Counter
from typing import Any

from controlplane.store import models as m

GIB = 1 << 30
BOUNDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0]
LIVE, STALE, GONE = "gpu-a", "gpu-b", "gpu-c"
DAMAGED_REASON = "checksum_mismatch"


def prefix_id(number: int) -> str:
    return hashlib.sha256(f"prefix {number}".encode()).hexdigest()[:32]


def _minute(now: dt.datetime, ago: int) -> dt.datetime:
    return now.replace(second=0, microsecond=0) - dt.timedelta(minutes=ago)


_LOSS = {
    "none": "part_page",
    "window_stale": "checkpoint_missing",
    "tail_absent": "checkpoint_missing",
    "restore_late": "restore_slow",
    DAMAGED_REASON: "damaged",
}


def requests(session: Any, now: dt.datetime) -> None:
    rng = random.Random(9)
    for ago in range(180, -1, -1):
        wave = 1 + 0.35 * math.sin(ago / 17)
        bad = 12 <= ago <= 22
        shares = [
            ("hit", "none", "FULL", "gpu", 0.30, 1.0),
            ("hit", "none", "COMPRESSED", "gpu", 0.08, 1.0),
            ("hit", "none", "PARTIAL_OFFLOAD", "disk", 0.02 if bad else 0.07, 1.0),
            ("partial", "window_stale", "FULL", "gpu", 0.10, 0.72),
            (
                "partial",
                "restore_late" if bad else "tail_absent",
                "PARTIAL_OFFLOAD",
                "host",
                0.12,
                0.35 if bad else 0.8,
            ),
            ("miss", DAMAGED_REASON if bad else "none", "none", "none", 0.33, 0.0),
        ]
        for namespace, weight in (("tenant-a", 0.7), ("tenant-b", 0.3)):
            prompt = 1_900_000 * wave * weight * rng.uniform(0.9, 1.1)
            lost: Counter[str] = Counter()
            for outcome, reason, state, tier, share, usable in shares:
                asked = int(prompt * share)
                found = (
                    0 if outcome == "miss" and reason == "none" else int(asked * (0.9 if outcome != "miss" else 0.2))
                )
                served = int(found * usable)
                gone = (asked - found) * 3 // 10
                lost.update({"evicted_cap": gone, "new_content": asked - found - gone, _LOSS[reason]: found - served})
                session.add(
                    m.RequestRollup(
                        engine_id=LIVE,
                        minute=_minute(now, ago),
                        namespace=namespace,
                        outcome=outcome,
                        reason=reason,
                        state=state,
                        tier=tier,
                        requests=max(1, asked // 8_000),
                        prompt_tokens=asked,
                        lcp_tokens=found,
                        usable_tokens=served,
                        replay_tokens=asked // 200 if outcome == "partial" else 0,
                    )
                )
            for cause, tokens in lost.items():
                session.add(
                    m.LossRollup(
                        engine_id=LIVE,
                        minute=_minute(now, ago),
                        namespace=namespace,
                        cause=cause,
                        requests=max(1, tokens // 8_000),
                        tokens=tokens,
                    )
                )


def _point(session: Any, now: dt.datetime, ago: int, name: str, attributes: str, **values: Any) -> None:
    session.add(
        m.MetricRollup(
            engine_id=LIVE,
            name=name,
            attributes=attributes,
            minute=_minute(now, ago),
            boot_id=f"boot-{LIVE}",
            **{"last": 0.0, "delta": 0.0, "maximum": 0.0, "count_delta": 0, "bucket_deltas": None, **values},
        )
    )


_KIND_SHARE = {
    "compressed_kv": 0.42,
    "uncompressed_tail": 0.39,
    "swa_window": 0.36,
    "indexer_state": 0.42,
    "disk_prefix": 0.07,
}


def metrics(session: Any, now: dt.datetime) -> None:
    rng = random.Random(2)
    for ago in range(180, -1, -1):
        asked = 1_900_000 * (1 + 0.35 * math.sin(ago / 17))
        bad = 12 <= ago <= 22
        _point(session, now, ago, "kvcache.queries", "namespace=tenant-a,of=tokens", delta=asked, last=asked)
        _point(session, now, ago, "kvcache.queries", "namespace=tenant-a,of=requests", delta=asked / 8000, last=asked)
        for kind, share in _KIND_SHARE.items():
            served = asked * share * rng.uniform(0.93, 1.05) * (0.3 if bad and kind == "disk_prefix" else 1.0)
            attributes = f"object.kind={kind},of=tokens,state=FULL,tier=gpu"
            _point(session, now, ago, "kvcache.hits", attributes, delta=served, last=served)
        for tier, count in (("host", 14), ("disk", 6)):
            failed = rng.randrange(2, 5) if bad and tier == "disk" else int(rng.random() < 0.06)
            late = rng.randrange(0, 3) if bad else 0
            for outcome, value in (("ok", count), ("failed", failed), ("late", late)):
                _point(
                    session, now, ago, "kvcache.recoveries", f"outcome={outcome},tier={tier}", delta=value, last=value
                )
        _io(session, now, ago, rng, bad)
        for page_class, base in (("history", 0.11), ("indexer", 0.04), ("window", 0.27), ("tail", 0.18), ("all", 0.14)):
            ratio = max(0.0, base + 0.05 * math.sin(ago / 23) + rng.uniform(-0.01, 0.01))
            _point(session, now, ago, "kvcache.fragmentation", f"class={page_class}", last=ratio, maximum=ratio)
        for tier, total in (("gpu", 16 * GIB), ("host", 64 * GIB), ("disk", 512 * GIB)):
            live = total * (0.6 + 0.1 * math.sin(ago / 40)) * {"gpu": 1.0, "host": 0.7, "disk": 0.3}[tier]
            _point(session, now, ago, "kvcache.tier.bytes", f"state=live,tier={tier}", last=live, maximum=live)
            _point(session, now, ago, "kvcache.tier.bytes", f"state=pinned,tier={tier}", last=total * 0.02)
            _point(session, now, ago, "kvcache.tier.bytes", f"state=total,tier={tier}", last=total)
        mode = 1.0 if 9 <= ago <= 20 else 0.0
        _point(session, now, ago, "kvcache.mode", "", last=mode, maximum=mode)


def _io(session: Any, now: dt.datetime, ago: int, rng: random.Random, bad: bool) -> None:
    for tier, center in (("gpu", 1), ("host", 3), ("disk", 6)):
        for direction in ("read", "write"):
            counts = [0] * (len(BOUNDS) + 1)
            for _ in range(40):
                place = round(rng.gauss(center + (2 if bad and tier == "disk" else 0), 1.1))
                counts[min(max(place, 0), len(BOUNDS))] += 1
            _point(
                session,
                now,
                ago,
                "kvcache.tier.io.duration",
                f"direction={direction},tier={tier}",
                count_delta=40,
                bucket_deltas={"bounds": BOUNDS, "counts": counts},
            )


def validations(session: Any, now: dt.datetime) -> None:
    names = ("compressed_complete", "tail_intact", "window_fresh", "indexer_synced", "disk_reloaded")
    for ago in range(180):
        for position, name in enumerate(names):
            for verdict, reason, count in (
                ("pass", "none", 220 - 10 * position),
                ("repairable", "window_absent", 14 if name == "window_fresh" else 0),
                ("fail", DAMAGED_REASON if name == "disk_reloaded" else "absent", 3 if position in (1, 4) else 0),
                ("not_applicable", "no_such_object", 40 if name == "disk_reloaded" else 0),
            ):
                if count:
                    session.add(
                        m.ValidationRollup(
                            engine_id=LIVE,
                            minute=_minute(now, ago),
                            validation=name,
                            verdict=verdict,
                            reason=reason,
                            count=count,
                        )
                    )
    for number in range(30):
        digest = hashlib.sha256(f"failure {number}".encode()).hexdigest()
        damaged = number % 3 == 0
        session.add(
            m.ValidationFailure(
                engine_id=LIVE,
                prefix_id=prefix_id(7 if damaged else 20 + number),
                validation="disk_reloaded" if damaged else "tail_intact",
                object_kind="disk_prefix" if damaged else "uncompressed_tail",
                reason=DAMAGED_REASON if damaged else "absent",
                boundary=128 * (20 + number),
                at=now - dt.timedelta(minutes=5 + number),
                trace_id=digest[:32],
                span_id=digest[:16],
            )
        )
    session.add(
        m.HistoryGap(
            engine_id=LIVE,
            prefix_id=prefix_id(11),
            life=1,
            first_version=2,
            last_version=3,
            found_at=now - dt.timedelta(minutes=4),
        )
    )
