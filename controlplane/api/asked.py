"""Whom a read asks about. An engine that nobody knows is refused: answered with nothing, a slip would read as calm."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query

from controlplane.api.security import StoreOf
from controlplane.steering.alerts.readings import CONTROL_PLANE
from controlplane.steering.desired import require_engine

EngineName = Annotated[str | None, Query(max_length=64, description="One engine; 404 for one that never registered.")]


def known_engine(store: StoreOf, engine: EngineName = None) -> str | None:
    """The engine asked for, if any. Raises NotFound for one that never registered; a forgotten one has a past."""
    if engine is not None:
        with store.read() as session:
            require_engine(session, engine, or_forgotten=True)
    return engine


def known_subject(store: StoreOf, engine: EngineName = None) -> str | None:
    """What an alert is about: an engine, or the control plane itself. Raises NotFound."""
    return engine if engine == CONTROL_PLANE else known_engine(store, engine)


EngineAsked = Annotated[str | None, Depends(known_engine)]
SubjectAsked = Annotated[str | None, Depends(known_subject)]
