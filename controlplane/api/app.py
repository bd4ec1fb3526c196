"""Puts the API together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

from fastapi import Depends, FastAPI
from starlette.concurrency import run_in_threadpool

from controlplane.api import (
    agent_routes,
    alert_routes,
    batch_routes,
    desired_routes,
    diagnosis_routes,
    docs_page,
    engine_routes,
    ingest_routes,
    metrics_routes,
    oidc_routes,
    policy_routes,
    read_routes,
    session_routes,
    telling_routes,
    whatif_routes,
    write_routes,
)
from controlplane.api.errors import install_error_handlers
from controlplane.api.gate import Gate
from controlplane.api.last_known import StaleReads
from controlplane.api.openapi import install_openapi, operation_id
from controlplane.api.plain import only_plain
from controlplane.api.throttle import Denials, FailureThrottle
from controlplane.api.vitals import CountAnswers, Vitals
from controlplane.oidc import Provider
from controlplane.settings import Settings
from controlplane.steering.news import News
from controlplane.store.session import Store

ROUTERS = (
    session_routes.router,
    oidc_routes.router,
    ingest_routes.router,
    agent_routes.router,
    read_routes.router,
    metrics_routes.router,
    write_routes.router,
    engine_routes.router,
    batch_routes.router,
    desired_routes.router,
    policy_routes.router,
    alert_routes.router,
    telling_routes.router,
    diagnosis_routes.router,
    whatif_routes.router,
)


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

    app = FastAPI(
        title="kvdeck",
        version=_version(),
        description="All that the command line and the dashboard can do. `x-kvdeck-role` is the least role of a call.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own page loads scripts from elsewhere
        redoc_url=None,
        dependencies=[Depends(only_plain)],
        generate_unique_id_function=operation_id,
    )
    app.state.store = store
    app.state.settings = settings
    app.state.news = News(store)
    app.state.vitals = Vitals(store, settings, lambda: background is not None and background.leads)
    app.state.throttle = FailureThrottle()
    app.state.denials = Denials()
    app.state.provider = Provider(settings)
    app.add_middleware(StaleReads)
    app.add_middleware(Gate, settings=settings)
    app.add_middleware(CountAnswers, vitals=app.state.vitals)
    install_error_handlers(app)
    for router in ROUTERS:
        app.include_router(router)
    app.include_router(docs_page.router)
    install_openapi(app, ROUTERS)
    return app


def _version() -> str:
    try:
        return version("kvdeck")
    except PackageNotFoundError:
        return "0"
