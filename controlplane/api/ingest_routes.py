"""OTLP over HTTP: where engines send their spans and metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from controlplane.api.security import EngineCaller, get_settings, get_store, note_denial
from controlplane.api.vitals import Vitals
from controlplane.auth import Principal
from controlplane.errors import BadRequest, ControlPlaneError, Forbidden, TooLarge
from controlplane.ingest.metrics import ingest_metrics
from controlplane.ingest.otlp import Message, decode
from controlplane.ingest.outcome import IngestOutcome, named_engines
from controlplane.ingest.spans import ingest_traces

router = APIRouter(tags=["ingest"])
PROTOBUF = "application/x-protobuf"
M = TypeVar("M", bound=Message)
LOG = logging.getLogger("kvdeck.ingest")
BINARY = {"type": "string", "format": "binary"}


class Protobuf(Response):
    """An answer in protobuf."""

    media_type = PROTOBUF


def _described(message: str) -> dict[str, Any]:
    """What OpenAPI says of a call that takes `message` and answers its counterpart."""
    request = f"An OTLP `{message}` in protobuf; `Content-Encoding: gzip` is understood."
    answer = {"description": "An empty message, or `partial_success` with the number of refused items and why.",
              "content": {PROTOBUF: {"schema": BINARY, "example": ""}}}  # fmt: skip
    body = {"description": request, "required": True, "content": {PROTOBUF: {"schema": BINARY, "example": ""}}}
    return {"openapi_extra": {"requestBody": body}, "responses": {200: answer}}


@router.post("/v1/traces", response_class=Protobuf, **_described("ExportTraceServiceRequest"))
async def receive_traces(request: Request, caller: EngineCaller) -> Response:
    """Take one trace export. Spans that cannot be used are counted in `partial_success`; the others are kept."""
    outcome = await _receive(request, caller, "spans", ExportTraceServiceRequest, ingest_traces)
    answer = ExportTraceServiceResponse()
    if outcome.rejected_total:
        answer.partial_success.rejected_spans = outcome.rejected_total
        answer.partial_success.error_message = outcome.message
    return Response(answer.SerializeToString(), media_type=PROTOBUF)


@router.post("/v1/metrics", response_class=Protobuf, **_described("ExportMetricsServiceRequest"))
async def receive_metrics(request: Request, caller: EngineCaller) -> Response:
    """Take one metrics export. Points that cannot be used are counted in `partial_success`; the others are kept."""
    outcome = await _receive(request, caller, "points", ExportMetricsServiceRequest, ingest_metrics)
    answer = ExportMetricsServiceResponse()
    if outcome.rejected_total:
        answer.partial_success.rejected_data_points = outcome.rejected_total
        answer.partial_success.error_message = outcome.message
    return Response(answer.SerializeToString(), media_type=PROTOBUF)


async def _receive(
    request: Request, caller: Principal, of: str, kind: type[M], ingest: Callable[[Session, M], IngestOutcome]
) -> IngestOutcome:
    vitals: Vitals = request.app.state.vitals
    body = await _read_body(request)
    vitals.received(of, len(body))
    try:
        outcome = await run_in_threadpool(_store, request, caller, body, kind, ingest)
    except ControlPlaneError as error:
        vitals.refused(of, error.code)
        raise
    vitals.stored(of, outcome)
    if outcome.rejected_total:  # the sender is told too, but its exporter may not say it aloud
        LOG.warning("refused %d %s of one export: %s", outcome.rejected_total, of, outcome.message)
    return outcome


def _store(
    request: Request, caller: Principal, body: bytes, kind: type[M], ingest: Callable[[Session, M], IngestOutcome]
) -> IngestOutcome:
    limit = get_settings(request).ingest_max_inflated_bytes
    encoding = request.headers.get("content-encoding", "").strip().lower()
    message = decode(kind, body, encoding=encoding, max_inflated_bytes=limit)
    for engine_id in named_engines(message):
        try:
            caller.must_speak_for(engine_id)
        except Forbidden as error:
            note_denial(request, caller, error)
            raise
    with get_store(request).write_beside() as session:
        return ingest(session, message)


async def _read_body(request: Request) -> bytes:
    """The body as sent, read no further than the limit. Raises BadRequest for another media type, TooLarge."""
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type != PROTOBUF:
        raise BadRequest("otlp_media_type", f"Content-Type {media_type!r} is not {PROTOBUF}.", "Export in protobuf.")
    limit = get_settings(request).ingest_max_bytes
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise TooLarge(
                "otlp_body",
                f"The body is over {limit} bytes.",
                "Export smaller batches, or raise KVDECK_INGEST_MAX_BYTES.",
            )
        parts.append(part)
    return b"".join(parts)
