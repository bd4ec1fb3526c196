"""How an engine is put together: who is given whom. What the parts do is theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opentelemetry.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor

from engine.clock import Clock
from engine.commands.execute import Commands
from engine.commands.reach import Choices, Reach
from engine.commands.ticket import Rates
from engine.config import EngineConfig
from engine.consistency.curve import CurveSampler
from engine.memory.drill import Drill
from engine.memory.faults import Faults
from engine.memory.faulty import FaultyClock
from engine.memory.tiers import Tiers
from engine.model.objects import layouts_of, page_bytes
from engine.model.spec import ModelSpec
from engine.schedule.adopt import Adopter
from engine.schedule.gate import Gate
from engine.schedule.ledger import Ledger
from engine.schedule.pace import PrefillPace
from engine.schedule.plan import Planner
from engine.schedule.publish import Publisher
from engine.schedule.quality import QualityGate
from engine.schedule.queues import FormQueues
from engine.schedule.reads import LeaseReads
from engine.schedule.recovery import Recovery
from engine.schedule.reform import Reformer
from engine.schedule.room import Room
from engine.schedule.serve import Server
from engine.schedule.validation import Validator
from engine.steering import Steering
from engine.telemetry.metrics import EngineMetrics
from engine.telemetry.pump import Pump
from engine.telemetry.ring import Ring


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What calls to an engine go to."""

    ledger: Ledger
    queues: FormQueues
    validator: Validator
    pace: PrefillPace
    server: Server
    publisher: Publisher
    curve: CurveSampler | None
    steering: Steering
    quality: QualityGate
    commands: Commands
    adopter: Adopter


def wire(spec: ModelSpec, config: EngineConfig, clock: Clock, faults: Faults | None) -> Parts:
    """Takes memory, starts the queues' workers and locks the data folder. Raises as `CacheEngine` does."""
    layouts = layouts_of(spec)
    if faults is not None:
        clock = FaultyClock(clock, faults)
    tiers = Tiers(
        layouts, clock, device=config.device, gpu_bytes=config.gpu_bytes, host_bytes=config.host_bytes,
        disk_bytes=config.disk_bytes, data_dir=config.data_dir, slab_bytes=config.slab_bytes,
        materialise=config.materialise, code_compressed=config.code_compressed,
        io_limit_s=config.restore_timeout_s, faults=faults,
    )  # fmt: skip
    ring = Ring(config.ring_capacity, enabled=config.spans)
    ledger = Ledger(
        spec, layouts, tiers, ring, clock, config.caps, config.lease_s, config.pin_budget_ratio,
        config.lost_memory_bytes,
    )  # fmt: skip
    room = Room(ledger, config)
    gate = Gate(ledger.index.page_bytes)
    queues = FormQueues(config.queue_bound, clock, faults.worker_takes if faults is not None else None)
    recovery = Recovery(ledger, room)
    validator = Validator(spec, layouts, sealed_on_commit=tiers.sealed_on_commit)
    pace = PrefillPace(config.prefill_tokens_per_s)
    planner = Planner(spec, layouts, tiers, validator, config, clock, pace)
    server = Server(ledger, planner, recovery, queues, config, LeaseReads(ledger, recovery), gate)
    publisher = Publisher(ledger, room, gate)
    steering = Steering(ledger, room, gate, server, publisher, config)
    quality = QualityGate(ledger, config)
    choices = Choices(
        codec=lambda: steering.codec, mode=lambda: steering.mode, foresee=steering.foresee,
        timeout_s=config.restore_timeout_s, scrub_bytes_per_s=config.scrub_bytes_per_s,
        drill=faults if isinstance(faults, Drill) else None,
    )  # fmt: skip
    rates = Rates(prefixes_per_s=config.bulk_prefixes_per_s, bytes_per_s=config.bulk_bytes_per_s)
    reach = Reach(
        ledger=ledger, queues=queues, recovery=recovery, reformer=Reformer(ledger, room, quality), choices=choices
    )
    commands = Commands(reach, rates)
    return Parts(
        ledger=ledger, queues=queues, validator=validator, pace=pace, server=server, publisher=publisher,
        curve=_sampler(spec, config) if config.curve_samples else None, steering=steering, quality=quality,
        commands=commands, adopter=Adopter(ledger, room),
    )  # fmt: skip


def give_voice(
    parts: Parts,
    config: EngineConfig,
    resource: Resource,
    faults: Faults | None,
    span_processors: Sequence[SpanProcessor],
    meter_provider: MeterProvider | None,
) -> Pump | None:
    """Spans and metrics go out from now on; the pump of spans, if the engine has any."""
    ledger, steering = parts.ledger, parts.steering
    if faults is not None:
        resource = resource.merge(Resource({"kvdeck.faults.armed": len(faults.plan)}))
    if meter_provider is not None:
        EngineMetrics(meter_provider, ledger, parts.queues, lambda: steering.mode, parts.quality.tally)
    if not config.spans:
        return None
    return Pump(ledger.ring, span_processors, resource, ledger.clock, dashboard_url=config.dashboard_url)


def _sampler(spec: ModelSpec, config: EngineConfig) -> CurveSampler:
    fits_pages = (config.gpu_bytes + config.host_bytes + config.disk_bytes) // page_bytes(spec)
    samples, namespaces = config.curve_samples, config.curve_namespaces
    return CurveSampler(spec.page_tokens, samples=samples, namespaces=namespaces, fits_pages=fits_pages)
