"""What-if over HTTP: the curve of an engine, a proposed cap, and what came of earlier predictions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from controlplane.api.asked import EngineAsked
from controlplane.api.security import StoreOf, Viewer
from controlplane.insight import live
from controlplane.insight.curves import DEFAULT_WITHIN_POINTS

router = APIRouter(tags=["what-if"])

Name = Annotated[str, Query(max_length=128)]


@router.get("/v1/whatif")
def whatif(
    _caller: Viewer,
    store: StoreOf,
    engine: Annotated[str, Query(max_length=64, examples=["engine"])],
    namespace: Name = "",
    cap_prefixes: Annotated[int | None, Query(ge=1, le=1 << 62)] = None,
    cap_bytes: Annotated[int | None, Query(ge=1, le=1 << 62)] = None,
    within_points: Annotated[float, Query(ge=0, le=100)] = DEFAULT_WITHIN_POINTS,
) -> live.WhatIfView:
    """The newest curve of usable hit rate against cap, where the engine stands, and what a proposed cap would bring."""
    with store.read() as session:
        return live.what_if(
            session,
            engine,
            namespace=namespace,
            cap_prefixes=cap_prefixes,
            cap_bytes=cap_bytes,
            within_points=within_points,
        )


@router.get("/v1/whatif/outcomes")
def outcomes(
    _caller: Viewer,
    store: StoreOf,
    engine: EngineAsked = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[live.PredictionView]:
    """What the curve foretold of caps that were applied, and what then happened, newest first."""
    with store.read() as session:
        return live.outcomes(session, engine, limit=limit)
