"""A real control plane on a free port, and an honest small engine, for the tests of steering and of the agent."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from databases import Database, free_port
from sqlalchemy import select, update

from controlplane.api.app import create_app
from controlplane.api.client import ControlPlaneClient
from controlplane.auth import ANY_ENGINE, Principal, Role, issue_token
from controlplane.clock import utc_now
from controlplane.host.agent import Agent, AgentOptions
from controlplane.ingest.engines import register_engine
from controlplane.settings import Settings
from controlplane.steering import commands
from controlplane.steering.deed import Deed
from controlplane.steering.policies import registry
from controlplane.steering.scheduler import Scheduler
from controlplane.store import Store, upgrade
from controlplane.store.models import Command, Engine, MetricPoint, Prefix, Token
from engine.errors import ConfigError, EngineError

OPERATOR = Principal("test-operator", Role.OPERATOR)
NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
ENGINE = "engine-1"
PATIENCE_SECONDS = 30.0
QUICK = AgentOptions(
    poll_seconds=0.5,
    heartbeat_seconds=0.1,
    tick_seconds=0.05,
    first_backoff_seconds=0.05,
    longest_backoff_seconds=0.2,
)


def prefix_id(number: int) -> str:
    """A prefix id that is easy to recognise."""
    return f"{number:032x}"


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of the condition. Fails, naming what was waited for, after a time no machine needs."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited in vain for {what}")


@dataclass(frozen=True)
class Outcome:
    """What the engine answers a command with."""

    status: str
    outcome: dict[str, Any]


@dataclass(frozen=True)
class Spec:
    """A model description, as far as the agent looks at it."""

    name: str = "toy"
    fingerprint: str = "f" * 16
    page_tokens: int = 64


class SmallEngine:
    """Keeps prefixes in a dictionary and obeys the administrative Protocol: versions, caps, refusals, progress."""

    def __init__(self, engine_id: str = "engine-1", boot_id: str = "boot-1", prefixes: int = 8) -> None:
        self.id, self.boot_id, self.spec = engine_id, boot_id, Spec()
        self.versions = {prefix_id(n): 1 for n in range(1, prefixes + 1)}
        self.settings: dict[str, Any] = {"mode": "normal", "cap_prefixes": None}
        self.revisions: list[int] = []
        self.executed: list[Any] = []
        self.ticks = 0
        self.hold = threading.Event()  # a test clears it to keep a command running
        self.hold.set()
        self._lock = threading.Lock()

    def observed(self) -> dict[str, Any]:
        return {**self.settings, "error": None}

    def reconfigure(
        self, changes: Mapping[str, Any], *, revision: int, traceparent: str | None = None
    ) -> dict[str, Any]:
        cap = changes.get("cap_prefixes")
        if cap is not None and cap < 2:
            raise ConfigError(f"cap_prefixes {cap} is below 2, the pinned prefixes: unpin them first")
        with self._lock:
            self.settings = {"mode": "normal", "cap_prefixes": None, **changes}
            self.revisions.append(revision)
        return self.observed()

    def stats(self) -> dict[str, Any]:
        return {"requests": 1, "prefixes": {"FULL": len(self.versions)}, "fragmentation": {"all": 0.1}}

    def curve(self) -> dict[str, Any]:
        return {}

    def snapshot(self) -> list[dict[str, Any]]:
        with self._lock:
            return [self._entry(key, version) for key, version in self.versions.items()]

    def execute(self, request: Any, progress: Callable[[dict[str, Any]], None]) -> Outcome:
        self.executed.append(request)
        progress({"done": 0})
        assert self.hold.wait(PATIENCE_SECONDS)
        if request.cancelled():
            return Outcome("cancelled", {"reason": "cancelled"})
        if request.kind == "evict":
            return self._evict(request.arguments)
        if request.kind == "scrub":
            raise EngineError("the disk tier is switched off")
        if request.kind == "compact":
            raise ZeroDivisionError("a bug")
        return Outcome("succeeded", {"done": True})

    def tick(self) -> None:
        self.ticks += 1

    def _evict(self, arguments: Mapping[str, Any]) -> Outcome:
        expected = arguments.get("expect_versions", {})
        evicted, refused = [], []
        with self._lock:
            for key in arguments["prefix_ids"]:
                if self.versions.get(key) != expected.get(key, self.versions.get(key)) or key not in self.versions:
                    refused.append({"prefix_id": key, "reason": "version_moved"})
                else:
                    del self.versions[key]
                    evicted.append(key)
        return Outcome("succeeded" if evicted else "refused", {"evicted": evicted, "bytes": 0, "refused": refused})

    def _entry(self, key: str, version: int) -> dict[str, Any]:
        return {
            "prefix.id": key,
            "namespace": "default",
            "life": 1_700_000_000_000_000_000,
            "version": version,
            "state.from": "NEW",
            "state.to": "FULL",
            "cause": "commit",
            "reason": "none",
            "tokens": 64,
            "pages": 1,
            "bytes.gpu": 1000,
        }


@dataclass
class Deck:
    """A control plane that can be stopped and started again on the same port and database."""

    folder: Path
    database: Database | None = None  # None: a SQLite file in the folder
    with_scheduler: bool = False
    port: int = 0
    tokens: dict[Role, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        url = self.database.url if self.database else f"sqlite:///{self.folder / 'deck.sqlite3'}"
        self.settings = Settings(database_url=url, data_dir=self.folder, api_port=free_port())
        upgrade(url)
        self.store = Store(self.settings.database_url)
        with self.store.write() as session:
            self.tokens = {role: issue_token(session, f"test-{role.word}", role, ttl=None) for role in Role}
            # One token for all engines of a test; a host of its own has one of its own.
            session.execute(update(Token).where(Token.role == "engine").values(engine_id=ANY_ENGINE))
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return self.settings.api_url

    def start(self) -> None:
        background = Scheduler(self.store, self.settings) if self.with_scheduler else None
        app = create_app(self.settings, self.store, background=background)
        config = uvicorn.Config(
            app, host="127.0.0.1", port=self.settings.api_port, log_level="error", timeout_graceful_shutdown=2
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        wait_for(lambda: self._server is not None and self._server.started, "the server")

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(PATIENCE_SECONDS)
            assert not self._thread.is_alive()
        self._server = self._thread = None

    def client(self, role: Role = Role.OPERATOR) -> ControlPlaneClient:
        return ControlPlaneClient(self.url, self.tokens[role])

    def agent(self, engine: SmallEngine, folder: Path | None = None) -> Agent:
        return Agent(
            engine,
            url=self.url,
            token=self.tokens[Role.ENGINE],
            data_dir=folder or self.folder / engine.id,
            options=QUICK,
        )


@contextmanager
def running_deck(folder: Path, database: Database | None = None, *, with_scheduler: bool = False) -> Iterator[Deck]:
    """A control plane that answers, until the block ends."""
    deck = Deck(folder, database, with_scheduler=with_scheduler)
    deck.start()
    try:
        yield deck
    finally:
        deck.stop()
        deck.store.dispose()


@contextmanager
def deck_with_policies(folder: Path, database: Database | None = None) -> Iterator[Deck]:
    """A deck with the policies that every deck has, and one engine that is alive."""
    with running_deck(folder, database) as running:
        add_engine(running, utc_now())
        with running.store.write() as session:
            registry.seed(session, NOW)
        recoveries(running, NOW, ok=0, failed=0)
        yield running


@contextmanager
def running_agent(agent: Agent) -> Iterator[Agent]:
    """An agent at work, until the block ends."""
    agent.start()
    try:
        yield agent
    finally:
        agent.stop()


def add_engine(deck: Deck, now: dt.datetime, engine_id: str = ENGINE) -> None:
    with deck.store.write() as session:
        register_engine(
            session,
            engine_id,
            boot_id="boot",
            model="toy",
            fingerprint="f",
            page_tokens=64,
            labels={},
            observed={},
            clock=lambda: now,
        )


def add_prefix(deck: Deck, number: int, **columns: Any) -> None:
    defaults: dict[str, Any] = {
        "engine_id": ENGINE,
        "prefix_id": prefix_id(number),
        "life": 1,
        "version": 1,
        "state": "FULL",
        "namespace": "default",
        "parent_id": None,
        "tokens": 64,
        "pages": 1,
        "gpu_bytes": 100,
        "host_bytes": 0,
        "disk_bytes": 0,
        "objects": {},
        "created_at": NOW,
        "changed_at": NOW,
        "served_at": None,
    }
    with deck.store.write() as session:
        session.add(Prefix(**(defaults | columns)))


def deed(now: dt.datetime = NOW, reason: str = "test") -> Deed:
    return Deed(principal=OPERATOR, reason=reason, now=now)


def evict(**more: Any) -> dict[str, Any]:
    return {"engine": ENGINE, "kind": "evict", "arguments": {"prefix_ids": [prefix_id(1)]}, "reason": "test"} | more


class Time:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> dt.datetime:
        return self.now

    def pass_(self, **span: float) -> None:
        self.now += dt.timedelta(**span)


def draft(**more: Any) -> commands.Draft:
    return commands.Draft(engine_id=ENGINE, kind="unpin", arguments={"prefix_ids": [prefix_id(1)]}, **more)


def recoveries(deck: Deck, at: dt.datetime, *, ok: int, failed: int) -> None:
    """What the engine's counters say at this moment, and that it is alive."""
    with deck.store.write() as session:
        session.get(Engine, ENGINE).last_seen_at = at
        for outcome, value in (("ok", ok), ("failed", failed)):
            session.add(
                MetricPoint(
                    engine_id=ENGINE,
                    name="kvcache.recoveries",
                    attributes=f"outcome={outcome},tier=disk",
                    at=at,
                    boot_id="boot",
                    value=value,
                )
            )


def alive(deck: Deck, at: dt.datetime, engine: str = ENGINE, **columns: Any) -> None:
    """The engine spoke at that moment; `columns` of it are other now."""
    with deck.store.write() as session:
        row = session.get(Engine, engine)
        row.last_seen_at = at
        for name, value in columns.items():
            setattr(row, name, value)


def finish(deck: Deck, status: str, outcome: dict[str, Any]) -> None:
    """Ends every open command, as an engine's report does."""
    with deck.store.write() as session:
        for command in session.scalars(select(Command).where(Command.status.in_(commands.LIVE))):
            command.status, command.outcome, command.finished_at = status, outcome, NOW
