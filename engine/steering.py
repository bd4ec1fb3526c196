"""What operators set and the engine runs with now: a desired state is applied to its owners, the observed one told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.config import EngineConfig, Mode
from engine.consistency.admission import GHOST_MULTIPLE, Caps
from engine.consistency.eviction import eviction_rule
from engine.consistency.namespaces import Shares
from engine.desired import Desired, parse_desired
from engine.model.objects import page_bytes
from engine.schedule.foresee import Foresight
from engine.schedule.gate import Gate
from engine.schedule.leaving import prefill_flops
from engine.schedule.ledger import Ledger
from engine.schedule.publish import Publisher
from engine.schedule.room import Room
from engine.schedule.serve import Server
from engine.telemetry.context import parse_traceparent
from engine.telemetry.ring import new_span


class Steering:
    """`mode` and `codec` are read afresh by whoever needs them; all else is kept where it is used."""

    def __init__(
        self, ledger: Ledger, room: Room, gate: Gate, server: Server, publisher: Publisher, config: EngineConfig
    ) -> None:
        self._ledger = ledger
        self._room = room
        self._gate = gate
        self._server = server
        self._publisher = publisher
        self._config = config
        self._mode_expires_ns = 0  # wall clock; 0: the mode stays
        self._apply(parse_desired({}, config))

    def reconfigure(self, changes: Mapping[str, Any], revision: int, traceparent: str | None) -> dict[str, Any]:
        """As `CacheEngine.reconfigure`."""
        wanted = parse_desired(changes, self._config)
        parent, ledger = parse_traceparent(traceparent), self._ledger
        with ledger.lock:
            self._apply(wanted)
        self._publisher.keep_caps()
        if ledger.ring.enabled:
            now_ns = ledger.clock.monotonic_ns()
            attributes = (
                "kvcache.command.id", f"desired-{revision}", "kvcache.command.kind", "reconfigure",
                "kvcache.outcome", "succeeded", "kvcache.reason", str(wanted.mode),
            )  # fmt: skip
            ledger.ring.request("kvcache.command", new_span(parent), parent, now_ns, now_ns, attributes)
        return self.observed()

    def foresee(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """As `CacheEngine.foresee`."""
        wanted, ledger = parse_desired(changes, self._config), self._ledger
        rule = eviction_rule(wanted.eviction, prefill_flops(ledger.spec))
        with ledger.lock:
            return Foresight(ledger, wanted.caps, dict(wanted.namespace_caps), rule).look()

    def end_mode(self) -> None:
        """A mode that a person set for a time ends with it. Under the lock."""
        if self._mode_expires_ns and self._ledger.clock.wall_ns() >= self._mode_expires_ns:
            self.mode, self._mode_expires_ns = Mode(self._config.mode), 0

    def observed(self) -> dict[str, Any]:
        """What the engine runs with now (wire.md, section 3)."""
        caps: Caps = self._ledger.caps
        return {
            "mode": str(self.mode),
            "cap_prefixes": caps.prefixes,
            "cap_gpu_bytes": caps.gpu_bytes,
            "cap_host_bytes": caps.host_bytes,
            "cap_disk_bytes": caps.disk_bytes,
            "codec": self.codec,
            "checkpoint_every_tokens": self._server.checkpoint_every_tokens,
            "checkpoint_budget_ratio": self._room.checkpoint_budget_ratio,
            "pin_budget_ratio": self._ledger.pins.budget_ratio,
            "namespace_caps": {name: cap.document for name, cap in self._ledger.namespaces.shares.caps.items()},
            "admission_rule": self._gate.rule,
            "eviction": self._ledger.eviction.name,
            "error": None,
        }

    def _apply(self, wanted: Desired) -> None:
        """Under the lock. What the new limits no longer allow leaves afterwards."""
        ledger, tier_bytes = self._ledger, self._ledger.tiers.gpu.total_bytes
        ledger.caps = wanted.caps
        ledger.set_shares(Shares(wanted.namespace_caps))
        ledger.eviction = eviction_rule(wanted.eviction, prefill_flops(ledger.spec))
        kept_pages = min(tier_bytes, wanted.caps.gpu_bytes or tier_bytes) // page_bytes(ledger.spec)
        self._gate.set_rule(wanted.admission_rule, GHOST_MULTIPLE * kept_pages)
        self._room.set_checkpoint_budget(wanted.checkpoint_budget_ratio)
        ledger.pins.set_budget(wanted.pin_budget_ratio)
        self.mode, self._mode_expires_ns = wanted.mode, wanted.mode_expires_ns
        self.codec = wanted.codec
        self._server.checkpoint_every_tokens = wanted.checkpoint_every_tokens
