"""One OTLP trace export into the store, in one transaction."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span
from sqlalchemy.orm import Session

from controlplane.clock import Clock, utc_now
from controlplane.errors import ControlPlaneError
from controlplane.ingest.dedupe import claim_unseen, span_key
from controlplane.ingest.engines import require_engine_row
from controlplane.ingest.facts import AcquireFact, BadFact, Fact, TransitionFact, ValidationFact
from controlplane.ingest.gaps import ask_for_snapshot
from controlplane.ingest.history import apply_served, apply_transitions
from controlplane.ingest.losses import add_losses, keep_requests
from controlplane.ingest.outcome import SCOPE, IngestOutcome, sender_of
from controlplane.ingest.reading import latest_ns, read_span
from controlplane.ingest.rollups import add_failures, add_requests, add_validations
from controlplane.store.models import Engine

TOO_OLD = "requests and validations from before the hour in which a second delivery is known; not counted again"


@dataclass(slots=True)
class _Batch:
    """The facts of one resource. What is only summed is keyed by span, to find repeats."""

    transitions: list[TransitionFact] = field(default_factory=list)
    validations: dict[bytes, ValidationFact] = field(default_factory=dict)
    acquires: dict[bytes, AcquireFact] = field(default_factory=dict)

    def add(self, fact: Fact, span: Span) -> None:
        if isinstance(fact, TransitionFact):
            self.transitions.append(fact)
        elif isinstance(fact, ValidationFact):
            self.validations[span_key(span.trace_id, span.span_id)] = fact
        else:
            self.acquires[span_key(span.trace_id, span.span_id)] = fact


def ingest_traces(session: Session, request: ExportTraceServiceRequest, *, clock: Clock = utc_now) -> IngestOutcome:
    """Write what the spans say. A bad span is counted with its reason and never costs a good one.

    Needs a write session. Raises BadRequest, NotFound or Conflict when all of the export is turned away because its
    engine is unnamed, never registered, or registered with another boot.
    """
    outcome = IngestOutcome()
    for resource in request.resource_spans:
        try:
            sender = sender_of(resource.resource)
            engine = require_engine_row(session, sender.engine_id, sender.boot_id)
        except ControlPlaneError as error:
            outcome.refuse(error, sum(len(scope.spans) for scope in resource.scope_spans))
            continue
        now = clock()
        _apply(session, engine, _read(resource, now, outcome), now, outcome)
        ask_for_snapshot(session, engine, now)
    outcome.raise_if_all_refused()
    return outcome


def _read(resource: ResourceSpans, now: dt.datetime, outcome: IngestOutcome) -> _Batch:
    batch, latest = _Batch(), latest_ns(now)
    for span in _our_spans(resource, outcome):
        try:
            fact = read_span(span, latest)
        except BadFact as error:
            outcome.reject(error.reason, f"{span.name}: {error}")
            continue
        if fact is None:
            outcome.ignored += 1
        else:
            outcome.accepted += 1
            batch.add(fact, span)
    return batch


def _our_spans(resource: ResourceSpans, outcome: IngestOutcome) -> Iterator[Span]:
    for scope in resource.scope_spans:
        if scope.scope.name == SCOPE:
            yield from scope.spans
        else:
            outcome.ignored += len(scope.spans)


def _apply(session: Session, engine: Engine, batch: _Batch, now: dt.datetime, outcome: IngestOutcome) -> None:
    engine_id = engine.id
    apply_transitions(session, engine_id, batch.transitions, now)
    add_failures(session, engine_id, batch.validations.values())
    summed = _times(batch.validations.items()) | _times(batch.acquires.items())
    claim = claim_unseen(session, engine, summed, now)
    unseen = claim.unseen
    outcome.repeated += len(summed) - len(unseen) - claim.too_old
    if claim.too_old:
        outcome.accepted -= claim.too_old
        outcome.reject("too_old", TOO_OLD, claim.too_old)
    acquires = [fact for key, fact in batch.acquires.items() if key in unseen]
    add_validations(session, engine_id, (fact for key, fact in batch.validations.items() if key in unseen))
    _count(batch, acquires, outcome)
    add_requests(session, engine_id, acquires)
    add_losses(session, engine_id, acquires)
    keep_requests(session, engine_id, acquires)
    apply_served(session, engine_id, acquires)


def _count(batch: _Batch, unseen: Iterable[AcquireFact], outcome: IngestOutcome) -> None:
    outcome.heard(max((fact.at for fact in batch.validations.values()), default=None))
    outcome.heard(max((fact.at for fact in batch.acquires.values()), default=None))
    for fact in unseen:
        outcome.requests[fact.outcome] += 1
        outcome.tokens["prompt"] += fact.prompt_tokens
        outcome.tokens["lcp"] += fact.lcp_tokens
        outcome.tokens["usable"] += fact.usable_tokens
        outcome.tokens["replay"] += fact.replay_tokens


def _times(facts: Iterable[tuple[bytes, ValidationFact | AcquireFact]]) -> dict[bytes, dt.datetime]:
    return {key: fact.at for key, fact in facts}
