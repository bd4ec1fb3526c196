"""Light sessions of the dashboard: what a browser tab says to Streamlit's server, without the browser.

    python -m benchmarks.dashboard_session ADDRESS

The first line of the standard input is a JSON list of one-time tokens. Each becomes a session: it opens Streamlit's
websocket, signs in by the token in the query, and asks for each part that refreshes by itself at the part's own
interval, as Streamlit's frontend does. "ready" is printed when all have their page; a further line makes them forget
what they measured so far; the end of the input ends them, and what they measured is printed as JSON. Nothing is drawn:
to the server it is the load of a tab, to the machine it is not.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Self

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

STREAM = "/_stcore/stream"
# The first names the protocol; where the second is no token against forgery, none is asked of who sends no Origin.
SUBPROTOCOLS = (Subprotocol("streamlit"), Subprotocol("PLACEHOLDER_AUTH_TOKEN"))
PATIENCE_S = 180.0
READY = "ready"
WHOLE, PART = ForwardMsg.FINISHED_SUCCESSFULLY, ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY


class SessionFailed(Exception):
    """The server ended the session, or the script, in a way that a browser would show as an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """How long the server took, in seconds: the first run of the page, and each part that refreshed by itself."""

    page_s: float
    parts_s: tuple[float, ...]
    received_bytes: int


@dataclass(slots=True)
class _Kept:
    """A message that the server need not send again, and the run that used it last."""

    run: int
    fragment_id: str


@dataclass(slots=True)
class LightSession:
    """One session, open inside `async with`. It belongs to one event loop."""

    address: str
    link_token: str
    errors: list[str] = field(default_factory=list)
    parts_s: list[float] = field(default_factory=list)
    received_bytes: int = 0
    page_s: float | None = None
    _query: str = ""
    _page_hash: str = ""
    _max_age: int = 2
    _runs: int = 0
    _kept: dict[str, _Kept] = field(default_factory=dict)
    _timers: dict[str, tuple[float, asyncio.Task[None]]] = field(default_factory=dict)
    _asked: dict[str, float] = field(default_factory=dict)
    _drawn: asyncio.Event = field(default_factory=asyncio.Event)
    _line: ClientConnection | None = None
    _reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        url = self.address.replace("http", "ws", 1) + STREAM
        self._line = await connect(url, subprotocols=SUBPROTOCOLS, max_size=None, compression=None, proxy=None)
        self._reader = asyncio.create_task(self._read(self._line))
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stop_timers()
        if self._reader is not None:
            self._reader.cancel()
        if self._line is not None:
            await self._line.close()

    @property
    def parts(self) -> Mapping[str, float]:
        """The interval in seconds of each part that refreshes by itself."""
        return {fragment_id: interval for fragment_id, (interval, _) in self._timers.items()}

    async def open_page(self) -> float:
        """Sign in and run the page: how long until the server was done, in seconds. Raises SessionFailed."""
        self._query = f"token={self.link_token}"
        began = time.perf_counter()
        await self._rerun("")
        await self._wait(self._drawn)
        self.page_s = time.perf_counter() - began
        if self.errors:
            raise SessionFailed(self.errors[0])
        if not self._timers:  # the page of somebody who is not signed in stands still
            raise SessionFailed("the page has no part that refreshes: not signed in, the link is spent or too old")
        return self.page_s

    async def refresh(self, fragment_id: str) -> None:
        """Ask for one part. What it took is noted when the server says that it ran."""
        self._asked.setdefault(fragment_id, time.perf_counter())  # one that waits already is run once for both
        await self._rerun(fragment_id)

    def forget(self) -> None:
        """Begin to measure here."""
        self.parts_s.clear()
        self.received_bytes = 0

    def timed(self) -> Timed:
        """What was measured. Raises SessionFailed if the server or the script failed meanwhile."""
        if self._reader is not None and self._reader.done() and not self._reader.cancelled():
            raise SessionFailed(f"the server closed the session: {self._reader.exception()}")
        if self.errors or self.page_s is None:
            raise SessionFailed(self.errors[0] if self.errors else "the page was never drawn")
        return Timed(page_s=self.page_s, parts_s=tuple(self.parts_s), received_bytes=self.received_bytes)

    async def _wait(self, event: asyncio.Event) -> None:
        waiting = asyncio.create_task(event.wait())
        assert self._reader is not None
        await asyncio.wait((waiting, self._reader), timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            raise SessionFailed("the server closed the session" if self._reader.done() else "the page was not drawn")

    async def _rerun(self, fragment_id: str) -> None:
        assert self._line is not None
        message = BackMsg()
        asked = message.rerun_script
        asked.query_string, asked.page_script_hash = self._query, self._page_hash
        asked.fragment_id, asked.is_auto_rerun = fragment_id, bool(fragment_id)
        asked.cached_message_hashes.extend(self._kept)
        asked.context_info.timezone, asked.context_info.url = "UTC", self.address
        await self._line.send(message.SerializeToString())

    async def _read(self, line: ClientConnection) -> None:
        async for frame in line:
            assert isinstance(frame, bytes)
            self.received_bytes += len(frame)
            self._heard(ForwardMsg.FromString(frame))

    def _heard(self, message: ForwardMsg) -> None:
        kind = message.WhichOneof("type")
        if kind == "new_session" and not message.metadata.run.fragment_ids:
            self._max_age = message.new_session.config.max_cached_message_age
            self._page_hash = message.new_session.page_script_hash
            self._stop_timers()
        elif kind == "navigation":
            self._page_hash = message.navigation.page_script_hash
        elif kind == "page_info_changed":
            self._query = message.page_info_changed.query_string
        elif kind == "auto_rerun":
            self._start_timer(message.auto_rerun.fragment_id, message.auto_rerun.interval)
        elif kind == "stop_auto_rerun":
            self._stop_timers(message.stop_auto_rerun.fragment_ids)
        elif kind == "script_finished":
            self._finished(message.script_finished, message.metadata.run.fragment_ids)
        elif kind == "ref_hash":
            self._kept[message.ref_hash].run = self._runs
        elif kind == "delta":
            self._delta(message)

    def _delta(self, message: ForwardMsg) -> None:
        if message.metadata.cacheable:
            self._kept.setdefault(message.hash, _Kept(self._runs, message.delta.fragment_id)).run = self._runs
        element = message.delta.new_element
        if element.WhichOneof("type") == "exception":
            self.errors.append(f"{element.exception.type}: {element.exception.message}")

    def _finished(self, status: int, fragment_ids: Sequence[str]) -> None:
        now = time.perf_counter()
        # "Cut short" is also what the server calls a run whose end it had not sent yet when the next one began. Nothing
        # cuts a part short here: only whole runs do, and a light session asks for one alone, at its start.
        if status not in (WHOLE, PART) and not fragment_ids:
            return
        self.parts_s += [now - self._asked.pop(one) for one in fragment_ids if one in self._asked]
        self._runs += 1
        for digest, kept in list(self._kept.items()):  # as the frontend forgets, so that the server sends what it would
            mine = not fragment_ids or kept.fragment_id in fragment_ids
            if mine and self._runs - kept.run > self._max_age:
                del self._kept[digest]
        if not fragment_ids:
            self._drawn.set()

    def _start_timer(self, fragment_id: str, interval_s: float) -> None:
        running = self._timers.get(fragment_id)
        if running and running[0] == interval_s:
            return
        self._stop_timers((fragment_id,))
        self._timers[fragment_id] = (interval_s, asyncio.create_task(self._tick(fragment_id, interval_s)))

    async def _tick(self, fragment_id: str, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await self.refresh(fragment_id)

    def _stop_timers(self, fragment_ids: Sequence[str] | None = None) -> None:
        for fragment_id in list(self._timers) if fragment_ids is None else fragment_ids:
            _, task = self._timers.pop(fragment_id, (0.0, None))
            self._asked.pop(fragment_id, None)
            if task is not None:
                task.cancel()


async def hold(address: str, links: Sequence[str]) -> list[Timed]:
    """A session for each link, one after the other; "ready" when all are there; until the input ends."""
    async with AsyncExitStack() as opened:
        sessions = [await opened.enter_async_context(LightSession(address, link)) for link in links]
        for session in sessions:
            await session.open_page()
        print(READY, flush=True)
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            for session in sessions:
                session.forget()
        return [session.timed() for session in sessions]


def main() -> None:
    links = json.loads(sys.stdin.readline())
    try:
        timed = asyncio.run(hold(sys.argv[1], links))
    except (SessionFailed, OSError) as error:
        raise SystemExit(f"a light session failed: {error}") from error
    print(json.dumps([asdict(one) for one in timed]))


if __name__ == "__main__":
    main()
