"""What became of one export: the answer to the sender, and the numbers for /metrics."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from controlplane.errors import BadRequest, ControlPlaneError
from controlplane.ingest.otlp import Message, attributes_of

SCOPE = "kvdeck.engine"


@dataclass(slots=True)
class IngestOutcome:
    """Counts of items (spans or points). `ignored`: the store keeps nothing of them; `repeated`: came before."""

    accepted: int = 0
    ignored: int = 0
    repeated: int = 0
    rejected: Counter[str] = field(default_factory=Counter)  # by what was wrong, in words
    rejected_by: Counter[str] = field(default_factory=Counter)  # the same items by `facts.REASONS`, or an error's code
    refusals: list[ControlPlaneError] = field(default_factory=list)  # whole resources that were turned away
    newest: dt.datetime | None = None  # of the items that were accepted
    tokens: Counter[str] = field(default_factory=Counter)  # of requests that did not come before: prompt, usable...
    requests: Counter[str] = field(default_factory=Counter)  # the same requests, by outcome

    @property
    def rejected_total(self) -> int:
        """Items that were refused, for any reason."""
        return self.rejected.total()

    @property
    def message(self) -> str:
        """The reasons, most frequent first, as OTLP's partial success carries them; "" when nothing was refused."""
        return "; ".join(f"{count} x {reason}" for reason, count in self.rejected.most_common(5))

    def heard(self, at: dt.datetime | None) -> None:
        """Note when the newest of some accepted items was said."""
        if at is not None:
            self.newest = at if self.newest is None else max(self.newest, at)

    def reject(self, reason: str, text: str, items: int = 1) -> None:
        """Note that items cannot be used; `text` is for the sender, `reason` is what is counted."""
        self.rejected[text[:200]] += items
        self.rejected_by[reason] += items

    def refuse(self, error: ControlPlaneError, items: int) -> None:
        """Note that a resource's items were all turned away."""
        self.refusals.append(error)
        self.reject(error.code, error.message, items)

    def raise_if_all_refused(self) -> None:
        """One engine's export that is refused is an error to its sender; among others' it is a partial success."""
        if self.refusals and not self.accepted and not self.ignored:
            raise self.refusals[0]


@dataclass(frozen=True, slots=True)
class Sender:
    """The engine a resource stands for, and its boot."""

    engine_id: str
    boot_id: str


def sender_of(resource: Resource) -> Sender:
    """Who a resource is. Raises BadRequest when it does not say."""
    attributes = attributes_of(resource.attributes)
    engine_id, boot_id = attributes.get("kvdeck.engine.id"), attributes.get("kvdeck.engine.boot_id")
    if not _is_name(engine_id) or not _is_name(boot_id):
        raise BadRequest(
            "otlp_resource",
            "The resource has no kvdeck.engine.id and kvdeck.engine.boot_id of 1 to 64 printable characters.",
            "Send the engine's own telemetry here, other services' to a tracing backend.",
        )
    return Sender(str(engine_id), str(boot_id))


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 64 and value.isprintable()


def named_engines(message: Message) -> Iterator[str]:
    """The engines an export speaks for; a resource that names none is refused later, with its reason."""
    parts: Iterable[ResourceSpans | ResourceMetrics] = ()
    if isinstance(message, ExportTraceServiceRequest):
        parts = message.resource_spans
    elif isinstance(message, ExportMetricsServiceRequest):
        parts = message.resource_metrics
    for part in parts:
        engine_id = attributes_of(part.resource.attributes).get("kvdeck.engine.id")
        if isinstance(engine_id, str):
            yield engine_id
