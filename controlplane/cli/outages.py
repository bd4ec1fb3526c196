"""Outages on order: `kvdeck up --game-days` kills a part of the deck and starts it again when the time is over.

The order comes over HTTP on 127.0.0.1, from an admin, and is audited; the port is in the data folder's deck.json. The
control plane cannot take it: it is one of the parts.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

from controlplane.api.errors import install_error_handlers
from controlplane.api.security import Admin, StoreOf
from controlplane.api.throttle import FailureThrottle
from controlplane.cli.children import Child
from controlplane.errors import Conflict, NotFound
from controlplane.settings import Settings
from controlplane.steering.deed import Deed
from controlplane.store.session import Store

LONGEST_SECONDS = 300
START_SECONDS = 10.0


class PartName(StrEnum):
    """What can be taken down."""

    CONTROL_PLANE = "control plane"
    ENGINE = "engine"


class Outages:
    """What is down, and until when. Orders come from any thread; only `step`, in `up`'s own loop, touches children."""

    def __init__(self, children: Sequence[Child], clock: Callable[[], float] = time.monotonic) -> None:
        self._children = {child.name: child for child in children}
        self._clock = clock
        self._lock = threading.Lock()
        self._ordered: tuple[str, float] | None = None  # taken by the next step
        self._down: Child | None = None
        self._ends_at = 0.0

    @property
    def down(self) -> Child | None:
        """The part that is meant to be down."""
        return self._down

    def order(self, part: str, seconds: float) -> None:
        """Asks for an outage. Raises NotFound for a part that is not run here, Conflict during another outage."""
        if part not in self._children:
            here = ", ".join(self._children)
            raise NotFound("part_unknown", f"This `kvdeck up` runs no {part}.", f"It runs: {here}.")
        with self._lock:
            if self._ordered or self._down:
                raise Conflict("outage_running", "An outage is running.", "Wait for its end, or end it first.")
            self._ordered = (part, seconds)

    def end(self) -> None:
        """What is down starts at the next step; what was ordered and not begun does not begin."""
        with self._lock:
            self._ordered, self._ends_at = None, 0.0

    def left(self) -> tuple[str, float]:
        """The part that is down, or will be at the next step, and for how many seconds; ("", 0) without an outage."""
        with self._lock:
            if self._ordered:
                return self._ordered
            return (self._down.name, max(0.0, self._ends_at - self._clock())) if self._down else ("", 0.0)

    def step(self) -> str:
        """Begins or ends an outage when that is due -> what was done, in words; empty for nothing."""
        with self._lock:
            if self._down is not None and self._clock() >= self._ends_at:
                child, self._down = self._down, None
                child.start()
                return f"{child.name} is started again"
            if self._ordered is None:
                return ""
            (part, seconds), self._ordered = self._ordered, None
            self._down = self._children[part]
            self._ends_at = self._clock() + seconds
            self._down.signal_group(signal.SIGKILL)  # as an incident does it: no goodbye, nothing flushed
            return f"{part} was killed on order, for {seconds:.0f} s"


class OutageBody(BaseModel):
    """An outage."""

    model_config = ConfigDict(extra="forbid")
    part: PartName
    seconds: Annotated[float, Field(ge=1, le=LONGEST_SECONDS)]
    reason: Annotated[str, Field(min_length=1, max_length=2000)]


class EndBody(BaseModel):
    """Why it ends."""

    reason: Annotated[str, Field(min_length=1, max_length=2000)]


class OutageServer:
    """Takes orders on a free port of 127.0.0.1 while it is open. Its store is its own."""

    def __init__(self, settings: Settings, outages: Outages) -> None:
        self._store = Store(settings.database_url)
        self._socket = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(_app(self._store, outages), log_level="warning", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        run = {"sockets": [self._socket]}
        self._thread = threading.Thread(target=self._server.run, kwargs=run, name="outages", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._socket.getsockname()[1]
        return port

    def close(self) -> None:
        """Takes no orders any more."""
        self._server.should_exit = True
        self._thread.join(START_SECONDS)
        self._socket.close()
        self._store.dispose()


def _app(store: Store, outages: Outages) -> FastAPI:
    app = FastAPI(title="kvdeck outages", docs_url=None, openapi_url=None)
    app.state.store, app.state.throttle = store, FailureThrottle()
    install_error_handlers(app)

    @app.get("/v1/outage")
    def now(_who: Admin) -> dict[str, object]:
        part, left_seconds = outages.left()
        return {"part": part, "left_seconds": round(left_seconds, 1)}

    @app.post("/v1/outage", status_code=201)
    def begin(body: OutageBody, who: Admin, store: StoreOf) -> dict[str, object]:
        outages.order(body.part, body.seconds)
        with store.write() as session:
            Deed(principal=who, reason=body.reason).record(
                session, "begin_outage", body.part, after={"seconds": body.seconds}
            )
        return {"part": body.part, "seconds": body.seconds}

    @app.post("/v1/outage/end")
    def end(body: EndBody, who: Admin, store: StoreOf) -> dict[str, object]:
        part, _ = outages.left()
        outages.end()
        with store.write() as session:
            Deed(principal=who, reason=body.reason).record(session, "end_outage", part)
        return {"part": part}

    return app
