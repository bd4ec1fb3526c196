"""Puts the API together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from controlplane.api import (
    agent_routes,
    alert_routes,
    batch_routes,
    desired_routes,
    diagnosis_routes,
    engine_routes,
    ingest_routes,
    metrics_routes,
    policy_routes,
    read_routes,
    session_routes,
    whatif_routes,
    write_routes,
)
from controlplane.api.errors import install_error_handlers
from controlplane.api.vitals import CountAnswers, Vitals
from controlplane.settings import Settings
from controlplane.steering.news import News
from controlplane.store.session import Store


class Background(Protocol):
    """Work that lives as long as the app: the scheduler."""

    def start(self) -> None:
        """Begin; returns at once."""

    def stop(self) -> None:
        """End; returns when nothing runs any more."""

    @property
    def leads(self) -> bool:
        """Whether it is this process that acts, where there are several."""


def create_app(settings: Settings, store: Store, *, background: Background | None = None) -> FastAPI:
    """The API over one store. The caller owns the store and disposes it after the app has stopped."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        if background is not None:
            await run_in_threadpool(background.start)
        try:
            yield
        finally:
            if background is not None:
                await run_in_threadpool(background.stop)

    app = FastAPI(title="kvdeck", version=_version(), lifespan=lifespan)
    app.state.store = store
    app.state.settings = settings
    app.state.news = News(store)
    app.state.vitals = Vitals(store, settings, lambda: background is not None and background.leads)
    app.add_middleware(CountAnswers, vitals=app.state.vitals)
    install_error_handlers(app)
    everything = (
        session_routes,
        ingest_routes,
        agent_routes,
        read_routes,
        write_routes,
        metrics_routes,
        engine_routes,
        batch_routes,
        desired_routes,
        policy_routes,
        alert_routes,
        diagnosis_routes,
        whatif_routes,
    )
    for routes in everything:
        app.include_router(routes.router)
    return app


def _version() -> str:
    try:
        return version("kvdeck")
    except PackageNotFoundError:
        return "0"
