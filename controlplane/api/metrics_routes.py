"""What Prometheus pulls from the control plane."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder

from controlplane.api.vitals import Vitals

router = APIRouter(tags=["health"])


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def metrics(request: Request) -> Response:
    """The control plane's own numbers. Needs no token: it names no prefix, no namespace and no engine."""
    vitals: Vitals = request.app.state.vitals
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(vitals.registry), media_type=media_type)
