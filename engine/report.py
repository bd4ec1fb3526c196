"""What an engine says of itself: stats, curve, snapshot. Reads only."""

from __future__ import annotations

import datetime as dt
from typing import Any

from engine.consistency.curve import CurveSampler
from engine.consistency.prefix import CauseOf, Transition
from engine.consistency.state import Cause, State
from engine.memory.holding import Holding, Tier
from engine.model.objects import ObjectKind, page_bytes
from engine.schedule.held import held
from engine.schedule.ledger import Ledger, PrefixNode
from engine.schedule.pace import PrefillPace
from engine.schedule.queues import FormQueues
from engine.telemetry.pump import transition_attributes

NAMESPACES_SHOWN = 50


def stats(ledger: Ledger, queues: FormQueues, pace: PrefillPace) -> dict[str, Any]:
    """The `stats` of docs/reference/wire.md, section 3."""
    with ledger.lock:
        c, tally = ledger.counters, ledger.ring.tally
        outcomes = {"ok": 0, "failed": 0, "late": 0}
        for (_, outcome), n in c.recoveries.items():
            outcomes[outcome] += n
        usage = ledger.tiers.gpu.usage()
        return {
            "requests": c.requests,
            "prompt_tokens": c.prompt_tokens,
            "lcp_tokens": c.lcp_tokens,
            "usable_tokens": c.usable_tokens,
            "replay_tokens": c.replay_tokens,
            "prefixes": {str(s): n for s, n in ledger.states.items() if n and s not in (State.NEW, State.EVICTED)},
            "tiers": {str(tier): figures for tier in Tier if (figures := tier_figures(ledger, tier))},
            "fragmentation": {name: round(u.fragmentation_ratio, 6) for name, u in usage.items() if u.slabs},
            "classes": {
                name: {"slot_bytes": u.slot_bytes, "slabs": u.slabs, "used_slots": u.used_slots, "slots": u.slots}
                for name, u in usage.items()
            },
            "queues": {
                str(q.form): {"depth": q.depth, "bound": q.bound, "failures": q.failures, "deaths": q.deaths}
                for q in queues.all()
            },
            "io": ledger.tiers.io_figures(),
            "prefill": {"tokens_per_s": pace.tokens_per_s, "reports": pace.reports},
            "namespaces": _namespaces(ledger),
            "pins": {
                "prefixes": len(ledger.pins),
                "bytes": ledger.pins.held_bytes,
                "budget_bytes": ledger.pins.budget_bytes,
            },
            "evictions": {f"{cause} {kind}": n for (cause, kind), n in c.evictions.items()},
            "commits": {"admitted": c.commits, "refused": dict(c.refusals), "cut": dict(c.cuts)},
            "checkpoints_dropped": dict(c.checkpoints_dropped),
            "leases": len(ledger.leases),
            "oldest_lease_s": ledger.leases.oldest_s(),
            "telemetry_dropped": tally.dropped_checks + tally.dropped_requests,
            "recoveries": outcomes,
            "lost": dict(c.lost),
            "wrong_bytes": c.wrong_bytes,
            "verified_bytes": c.verified_bytes,
            "quarantined": [
                {"prefix_id": d.prefix_id, "kind": d.kind, "reason": d.reason, "at": _rfc3339(d.at_ns)}
                for d in list(ledger.damages)[-50:]
            ],
        }


def _namespaces(ledger: Ledger) -> dict[str, dict[str, int]]:
    """What the capped namespaces and the largest others hold, on the GPU and in prefixes."""
    figures = ledger.namespaces.figures
    caps = ledger.namespaces.shares.caps
    largest = sorted(figures, key=lambda name: (name in caps, figures[name]["gpu_bytes"]), reverse=True)
    return {name: figures[name] for name in largest[:NAMESPACES_SHOWN]}


def curve(ledger: Ledger, sampler: CurveSampler) -> dict[str, Any]:
    """The `curve` of docs/reference/wire.md, section 3, with what is held now."""
    found = {"page_tokens": ledger.spec.page_tokens, "page_bytes": page_bytes(ledger.spec)}
    curves, now = sampler.document(), held(ledger)
    named = {name: row for name, row in now["namespaces"].items() if name in curves["namespaces"]}
    return {**found, **curves, "held": {**now, "namespaces": named}}


def tier_figures(ledger: Ledger, tier: Tier) -> dict[str, int]:
    """total = free + live, and of the live bytes those pinned by leases; empty when the tier is absent."""
    tiers = ledger.tiers
    if tier is Tier.DISK:
        if tiers.disk is None:
            return {}
        total, live = tiers.disk.quota_bytes, tiers.disk.used_bytes
    else:
        arena = tiers.gpu if tier is Tier.GPU else tiers.host
        if arena is None:
            return {}
        total, live = arena.total_bytes, arena.live_bytes
    pinned = pinned_bytes(ledger) if tier is Tier.GPU else 0
    return {"total_bytes": total, "live_bytes": live, "free_bytes": total - live, "pinned_bytes": pinned}


def pinned_bytes(ledger: Ledger) -> int:
    """GPU bytes of prefixes on a leased path."""
    seen: set[int] = set()
    total = 0
    for lease in ledger.leases.live():
        node = lease.node
        while node is not None and node.parent is not None and id(node) not in seen:
            seen.add(id(node))
            total += node.record.held_bytes(Tier.GPU)
            node = node.parent
    return total


def snapshot(ledger: Ledger) -> list[dict[str, Any]]:
    """Every prefix at its newest version, as its last transition would say it now."""
    with ledger.lock:
        now_ns, wall_ns = ledger.clock.monotonic_ns(), ledger.clock.wall_ns()
        return [_snapshot_row(node, now_ns, wall_ns) for node in ledger.nodes.values()]


def _snapshot_row(node: PrefixNode, now_ns: int, wall_ns: int) -> dict[str, Any]:
    record = node.record
    step = Transition(
        prefix_id=record.prefix_id, parent_id=record.parent_id, namespace=record.namespace, life=record.life,
        version=record.version, before=record.state, after=record.state, cause=CauseOf(Cause.COMMIT),
        tokens=record.tokens, pages=record.n_pages, bytes_moved=0, objects=record.objects(),
        checkpoints=record.checkpoint_rows(), pinned=record.pinned_until_ns > wall_ns, wall_ns=wall_ns,
        monotonic_ns=now_ns, approximate=record.approximate,
    )  # fmt: skip
    row = {key.removeprefix("kvcache."): value for key, value in transition_attributes(step).items()}
    return row | _codec_row(record.spans.get(ObjectKind.COMPRESSED_KV))


def _codec_row(history: Holding | None) -> dict[str, Any]:
    """The form of a prefix's history in its fastest tier, and what a judge measured of it (absent: not measured)."""
    copy = history and (history.gpu or history.host or history.disk)
    if not copy:
        return {}
    found = {"codec": copy.meta.codec, "codec.logit_error": copy.meta.logit_error, "codec.kl": copy.meta.kl}
    return {name: value for name, value in found.items() if value is not None}


def _rfc3339(ns: int) -> str:
    return dt.datetime.fromtimestamp(ns / 1e9, dt.UTC).isoformat()
