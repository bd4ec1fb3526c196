"""What engines cost a control plane that does nothing else, and how fast it gets a command to one of them.

The control plane is a process of its own (`kvdeck serve`); the engines are this process: the agents' protocol over
HTTP, each with a heartbeat a second and a long poll that is always open, and an answer to every command at once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx

from controlplane.auth import Role, issue_token
from controlplane.store import Store

TICKS = os.sysconf("SC_CLK_TCK")
HEARTBEAT_SECONDS = 1.0
CALL_SECONDS = 40
START_SECONDS = 60
MOST_RECONNECTS = 3
STATS = {"requests": 1, "prefixes": {"FULL": 100}, "fragmentation": {"all": 0.1}}
OBSERVED = {"mode": "normal", "cap_prefixes": None, "error": None}


class Deck:
    """A running control plane, and the tokens to speak to it."""

    def __init__(self, url: str, port: int, process: subprocess.Popen[bytes], tokens: dict[Role, str]) -> None:
        self.url, self.process, self.tokens = f"http://127.0.0.1:{port}", process, tokens
        self.database_url = url

    def cpu_seconds(self) -> float:
        """What its process has used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def headers(self, role: Role) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[role]}"}


@contextmanager
def running_deck(url: str) -> Iterator[Deck]:
    """A `kvdeck serve` on a free port."""
    store = Store(url)
    with store.write() as session:
        tokens = {
            Role.ENGINE: issue_token(session, "bench-engines", Role.ENGINE, ttl=None, engine_id="*"),
            Role.OPERATOR: issue_token(session, "bench-operator", Role.OPERATOR, ttl=None),
        }
    store.dispose()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="kvdeck-bench-") as home:
        command = [sys.executable, "-m", "controlplane.cli.main", "serve", "--no-link"]
        command += ["--api-port", str(port), "--data-dir", home]
        environment = os.environ | {"KVDECK_DATABASE_URL": url}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deck = Deck(url, port, process, tokens)
            _wait_for(deck)
            yield deck
        finally:
            process.terminate()
            process.wait()


def _wait_for(deck: Deck) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{deck.url}/healthz", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise SystemExit("the control plane did not start within 120 s")


class SimulatedEngine:
    """One engine's agent: registers, heartbeats, polls, and ends every command it is handed."""

    def __init__(self, deck: Deck, number: int) -> None:
        self.id = f"sim-{number:03d}"
        self._client = _client(deck, Role.ENGINE)  # its own, as a host has: in a shared one a call looks at all others
        self._base = f"/v1/engines/{self.id}"
        self._revision = 0
        self.heartbeats = self.failures = self.reconnects = 0

    async def live(self, delay_seconds: float) -> None:
        await asyncio.sleep(delay_seconds)  # a fleet does not beat in step
        facts = {"boot_id": "b", "model": "toy", "fingerprint": "f", "page_tokens": 64, "observed": OBSERVED}
        async with self._client:
            await self._post("/register", facts)
            await asyncio.gather(self._beat(), self._poll())

    async def _beat(self) -> None:
        while True:
            began = time.monotonic()
            said = {"boot_id": "b", "observed_revision": self._revision, "observed": OBSERVED, "stats": STATS}
            answer = await self._post("/heartbeat", said)
            if answer.get("snapshot_wanted"):
                await self._post("/snapshot", {"boot_id": "b", "prefixes": []})
            self.heartbeats += 1
            await asyncio.sleep(max(0.0, HEARTBEAT_SECONDS - (time.monotonic() - began)))

    async def _poll(self) -> None:
        while True:
            answer = await self._call("GET", "/poll", params={"after_revision": self._revision, "wait_s": 20})
            self._revision = answer.get("desired_revision", self._revision)
            for command in answer.get("commands", ()):
                await self._post(f"/commands/{command['id']}/outcome", {"status": "succeeded", "outcome": {}})

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self._call("POST", path, json=body)

    async def _call(self, method: str, path: str, **how: Any) -> dict[str, Any]:
        """What was answered; nothing, and a pause, after a refusal. A connection that the server closed as the call
        set out is taken again at once, as agents do."""
        for _ in range(MOST_RECONNECTS):
            try:
                response = await self._client.request(method, self._base + path, **how)
            except httpx.RemoteProtocolError:
                self.reconnects += 1
                continue
            if response.status_code == 200:
                found: dict[str, Any] = response.json()
                return found
            break
        self.failures += 1
        await asyncio.sleep(HEARTBEAT_SECONDS)
        return {}


def _client(deck: Deck, role: Role) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=deck.url, headers=deck.headers(role), timeout=CALL_SECONDS, verify=False)


@asynccontextmanager
async def fleet(deck: Deck, engines: int) -> AsyncIterator[list[SimulatedEngine]]:
    """Engines at work until the block ends."""
    made = [SimulatedEngine(deck, number) for number in range(engines)]
    tasks = [asyncio.create_task(engine.live(number / engines)) for number, engine in enumerate(made)]
    try:
        async with asyncio.timeout(START_SECONDS):
            while not all(engine.heartbeats for engine in made):
                await asyncio.sleep(0.1)
                _raise_what_ended(tasks)
        yield made
        _raise_what_ended(tasks)
    except TimeoutError:
        silent = sum(not engine.heartbeats for engine in made)
        raise SystemExit(f"{silent} of {engines} engines had no heartbeat within {START_SECONDS} s") from None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _raise_what_ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()  # an engine that stopped would never be counted


async def _measure(deck: Deck, a: argparse.Namespace) -> dict[str, Any]:
    async with fleet(deck, a.engines) as engines:
        before, began, beats = deck.cpu_seconds(), time.monotonic(), sum(e.heartbeats for e in engines)
        await asyncio.sleep(a.seconds)
        spent, passed = deck.cpu_seconds() - before, time.monotonic() - began
        beaten = sum(engine.heartbeats for engine in engines) - beats
        async with _client(deck, Role.OPERATOR) as operator:
            trips = [await _round_trip(operator, engines[i % len(engines)].id) for i in range(a.commands)]
        failures = sum(engine.failures for engine in engines)
    trips.sort()
    return {
        "cpu_share": spent / passed,
        "heartbeats_per_second": beaten / passed,
        "p50_ms": trips[len(trips) // 2] * 1000,
        "p99_ms": trips[min(len(trips) - 1, int(len(trips) * 0.99))] * 1000,
        "failures": failures,
    }


async def _round_trip(operator: httpx.AsyncClient, engine_id: str) -> float:
    """Seconds from the operator's submit until the command is seen to have succeeded."""
    body = {"engine": engine_id, "kind": "compact", "arguments": {}, "reason": "benchmark"}
    began = time.perf_counter()
    submitted = await operator.post("/v1/commands", json=body)
    submitted.raise_for_status()
    path = f"/v1/commands/{submitted.json()['id']}"
    while (await operator.get(path)).json()["status"] != "succeeded":
        await asyncio.sleep(0.005)
        if time.perf_counter() - began > CALL_SECONDS:
            raise SystemExit(f"a command to {engine_id} did not end within {CALL_SECONDS} s: {path}")
    return time.perf_counter() - began


def rows(a: argparse.Namespace, kind: str, url: str) -> list[list[object]]:
    """The part's lines of the table."""
    with running_deck(url) as deck:
        found = asyncio.run(_measure(deck, a))
    if found["failures"]:
        raise SystemExit(f"{found['failures']} calls of the engines failed: the figures would mean nothing")
    name = f"{kind}: {a.engines} engines"
    return [
        [f"{name}, CPU share of a core", "< 30 %", f"{found['cpu_share']:.0%}"],
        [f"{name}, heartbeats/s", f"{a.engines}", f"{found['heartbeats_per_second']:.0f}"],
        [f"{name}, command round trip p50 / p99, ms", "p50 < 150", f"{found['p50_ms']:.0f} / {found['p99_ms']:.0f}"],
    ]
