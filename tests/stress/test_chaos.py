"""Two control planes on one Postgres; the leader and the database are killed in turn, during a warm-up and a degrade.

Everything is real and in processes of its own: the server, both replicas (killed with SIGKILL), the agents over HTTP.
What must hold at the end: each action happened once, whoever decided it and however often it was said.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from databases import PostgresServer, free_port
from sqlalchemy import literal, select, union_all

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
sys.path.insert(0, str(Path(__file__).parents[1] / "acceptance"))

from cli_support import KVDECK, PATIENCE_SECONDS, environment, wait_for
from ingest_support import counter, points
from steering_support import QUICK, SmallEngine, prefix_id, running_agent

from controlplane.auth import Role, issue_token
from controlplane.clock import utc_now
from controlplane.host.agent import Agent
from controlplane.steering.commands import TERMINAL
from controlplane.steering.policies import registry
from controlplane.store import Store, upgrade
from controlplane.store.models import Audit, Command, DesiredState, LeadershipRow, Policy, Prefix

ENGINES = ("engine-1", "engine-2")
LIFE = 1_700_000_000_000_000_000


class Hold(threading.Event):
    """Keeps an engine's command running for as long as this test may take."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(PATIENCE_SECONDS)


@dataclass
class Replica:
    """One `kvdeck serve`."""

    url: str
    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [*KVDECK, "serve", "--api-port", str(self.port), "--data-dir", str(self.folder), "--no-link"]
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment(KVDECK_DATABASE_URL=self.url), stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.address}/healthz", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def log(self) -> str:
        return (self.folder / "log").read_text()


class Fleet:
    """The database, two replicas, and two engines, each with its agent on another replica."""

    def __init__(self, folder: Path) -> None:
        self.server = PostgresServer()
        self.url = self.server.url(self.server.empty())
        upgrade(self.url)
        self.store = Store(self.url)
        with self.store.write() as session:
            self.operator = issue_token(session, "chaos-operator", Role.OPERATOR, ttl=None)
            self.tokens = {
                engine_id: issue_token(session, f"chaos-{engine_id}", Role.ENGINE, ttl=None, engine_id=engine_id)
                for engine_id in ENGINES
            }
            registry.seed(session, utc_now())
            session.get_one(Policy, "warm-up").every_seconds = 1
            degrade = session.get_one(Policy, "degrade")
            degrade.every_seconds = 1
            # One step, and then none for longer than the test takes: a second one would be a decision made twice.
            once = {"down_evaluations": 1, "cool_down_seconds": 3600, "quiet_hold_seconds": 3600}
            degrade.parameters = {**degrade.parameters, **once}
        self.replicas = [Replica(self.url, folder / name) for name in ("a", "b")]
        self.engines = [SmallEngine(name) for name in ENGINES]
        for engine in self.engines:
            engine.hold = Hold()
            engine.hold.set()
        self.agents = [
            Agent(engine, url=replica.address, token=self.tokens[engine.id], data_dir=folder / engine.id,
                  options=QUICK)
            for engine, replica in zip(self.engines, self.replicas, strict=True)
        ]  # fmt: skip

    def start(self) -> None:
        for replica in self.replicas:
            replica.start()
        for replica in self.replicas:
            wait_for(replica.answers, "a replica")

    def end(self) -> None:
        for replica in self.replicas:
            replica.kill()
        self.store.dispose()
        self.server.remove()

    def rows(self, model: type[Any]) -> list[Any]:
        with self.store.read() as session:
            return list(session.scalars(select(model)).all())

    def leader(self) -> Replica | None:
        """The replica whose process began the newest leadership."""
        newest = max(self.rows(LeadershipRow), key=lambda row: row.epoch, default=None)
        pid = int(newest.holder.rsplit(":", 1)[1]) if newest else 0
        return next((r for r in self.replicas if r.process and r.process.pid == pid and r.process.poll() is None), None)

    def kill_leader(self) -> Replica:
        """Kills it and waits until the other one leads. Gives the dead one."""
        dead: Replica = wait_for(self.leader, "a leader")
        dead.kill()
        wait_for(self.leader, "the other replica to lead")
        return dead

    def restart_database(self, down_seconds: float) -> None:
        self.server.kill()
        time.sleep(down_seconds)
        self.server.start()

    def commands(self, kind: str) -> list[Command]:
        return [row for row in self.rows(Command) if row.kind == kind]

    def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Asks whichever replica answers, as an operator with a list of addresses does."""
        headers = {"Authorization": f"Bearer {self.operator}"}

        def answered() -> httpx.Response | None:
            for replica in self.replicas:
                try:
                    response = httpx.request(method, replica.address + path, headers=headers, timeout=10, **more)
                except httpx.HTTPError:
                    continue
                if response.status_code != 503:
                    return response
                assert int(response.headers["Retry-After"]) > 0, response.text
            return None

        response: httpx.Response = wait_for(answered, f"an answer to {method} {path}")
        return response


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    try:
        made.start()
        with ExitStack() as agents:
            for agent in made.agents:
                agents.enter_context(running_agent(agent))
            yield made
    finally:
        made.end()


def offload(fleet: Fleet, engine_id: str) -> None:
    """Prefixes that the engine holds, that served much, and that are not on its GPU: what a warm-up is for."""
    now = utc_now()
    zeros = dict.fromkeys(("gpu_bytes", "disk_bytes"), 0)
    with fleet.store.write() as session:
        for number in range(1, 5):
            session.merge(
                Prefix(engine_id=engine_id, prefix_id=prefix_id(number), life=LIFE, version=2, state="PARTIAL_OFFLOAD",
                       namespace="default", tokens=64, pages=1, host_bytes=1000, objects={}, tokens_served=100,
                       requests_served=1, created_at=now, changed_at=now, served_at=now, **zeros)
            )  # fmt: skip


def fail_recoveries(fleet: Fleet, engine: SmallEngine, failed: int) -> None:
    started = utc_now()
    body = points(
        counter("kvcache.recoveries", failed, started, started, outcome="failed", tier="disk"),
        engine=engine.id,
        boot=engine.boot_id,
    )  # fmt: skip
    headers = {"Authorization": f"Bearer {fleet.tokens[engine.id]}", "Content-Type": "application/x-protobuf"}
    for replica in fleet.replicas:
        try:
            answer = httpx.post(f"{replica.address}/v1/metrics", content=body.SerializeToString(), headers=headers)
        except httpx.HTTPError:
            continue
        if answer.status_code == 200:
            return


def test_every_action_happens_once_while_leader_and_database_die_in_turn(fleet: Fleet) -> None:
    # A warm-up is under way on both engines ...
    for engine in fleet.engines:
        engine.hold.clear()
        offload_when_known(fleet, engine)
    wait_for(lambda: len([c for c in fleet.commands("warm") if c.status == "running"]) == 2, "a warm-up on both")
    # ... when the leader dies, and then the database.
    dead = fleet.kill_leader()
    key = {"engine": ENGINES[1], "kind": "unpin", "arguments": {"prefix_ids": [prefix_id(1)]}, "reason": "chaos"}
    for _ in range(3):
        submitted = fleet.call("POST", "/v1/commands", json={**key, "idempotency_key": "only-once"})
        assert submitted.status_code < 300, submitted.text
    ticks = [engine.ticks for engine in fleet.engines]
    fleet.restart_database(2)
    assert all(engine.ticks > before for engine, before in zip(fleet.engines, ticks, strict=True))
    dead.start()
    wait_for(dead.answers, "the dead replica's return")
    fleet.call("POST", "/v1/commands", json={**key, "idempotency_key": "only-once"})
    assert Counter(c.engine_id for c in fleet.commands("warm")) == dict.fromkeys(ENGINES, 1)
    with fleet.store.write() as session:
        session.get_one(Policy, "warm-up").paused = True
    for engine in fleet.engines:
        engine.hold.set()
    wait_for(lambda: all(c.status in TERMINAL for c in fleet.rows(Command)), "the end of every command")

    # Recoveries fail; the step down is under way when the database dies, and then the leader.
    failed = iter(range(50, 1_000_000, 50))

    def stepped(how_many: int) -> bool:
        for engine in fleet.engines:
            fail_recoveries(fleet, engine, next(failed))
        return len(steps(fleet)) >= how_many

    wait_for(lambda: stepped(1), "the first step down")
    fleet.restart_database(1)
    fleet.kill_leader()
    wait_for(lambda: stepped(2), "a step down of both engines")
    for replica in fleet.replicas:
        replica.kill()
        replica.start()
    wait_for(lambda: all(engine.observed()["mode"] != "normal" for engine in fleet.engines), "the engines to step down")
    for _ in range(4):  # evaluations in which a leader that forgot the step would make it again
        stepped(2)
        time.sleep(1)
    check_once(fleet)


def offload_when_known(fleet: Fleet, engine: SmallEngine) -> None:
    def known() -> bool:
        return sum(row.engine_id == engine.id for row in fleet.rows(Prefix)) == len(engine.versions)

    wait_for(known, "what the engine holds")
    offload(fleet, engine.id)


def steps(fleet: Fleet) -> list[DesiredState]:
    return [row for row in fleet.rows(DesiredState) if row.actor == "policy:degrade"]


def epochs_of(fleet: Fleet) -> tuple[list[int], list[int]]:
    """Epochs as the audit tells them, in its order, and those there were: in one statement, as another may begin."""
    told = select(Audit.id, Audit.after["epoch"].as_integer()).where(Audit.action == "lead")
    led = select(literal(0), LeadershipRow.epoch)
    with fleet.store.read() as session:
        rows = sorted((number, epoch) for number, epoch in session.execute(union_all(told, led)))
    return [epoch for number, epoch in rows if number], [epoch for number, epoch in rows if not number]


def check_once(fleet: Fleet) -> None:
    assert Counter(row.engine_id for row in steps(fleet)) == dict.fromkeys(ENGINES, 1)
    commands = fleet.rows(Command)
    assert len({command.idempotency_key for command in commands}) == len(commands)
    assert [c.id for c in commands if c.idempotency_key == "only-once"] != []
    audit = fleet.rows(Audit)
    told = Counter(row.after["command"] for row in audit if row.after and "command" in row.after)
    assert told == dict.fromkeys((command.id for command in commands), 1)
    told_epochs, led_epochs = epochs_of(fleet)
    assert told_epochs == sorted(set(told_epochs)) == led_epochs != []
    for engine in fleet.engines:
        executed = [request.id for request in engine.executed]
        assert len(executed) == len(set(executed))
        assert set(executed) <= {command.id for command in commands if command.engine_id == engine.id}
        assert engine.revisions == sorted(set(engine.revisions))
    for replica in fleet.replicas:
        assert "Traceback" not in replica.log()
