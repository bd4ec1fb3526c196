"""What the dashboard's benchmark runs beside itself: control plane, dashboard, light sessions, and what they use."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.dashboard_session import READY, Timed
from benchmarks.harness import ROOT

START_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A control plane and a dashboard, each a process of its own."""

    address: str
    api_pid: int
    pages_pid: int


@contextmanager
def served(folder: Path, environment: dict[str, str]) -> Iterator[Served]:
    """Both of them, while the block runs; what they say is in `served.log` of the folder."""
    ports = {name: _free_port() for name in ("KVDECK_API_PORT", "KVDECK_DASHBOARD_PORT")}
    own = os.environ | environment | {name: str(port) for name, port in ports.items()} | {"PYTHONPATH": str(ROOT)}
    port = str(ports["KVDECK_DASHBOARD_PORT"])
    api = (sys.executable, "-m", "controlplane.cli.main", "serve", "--no-link")
    pages = (sys.executable, "-m", "dashboard", "--server.address", "127.0.0.1", "--server.port", port)
    with (folder / "served.log").open("wb") as log:
        running = [
            subprocess.Popen(command, cwd=ROOT, env=own, stdout=log, stderr=subprocess.STDOUT)
            for command in (api, pages)
        ]
        try:
            _wait(f"http://127.0.0.1:{ports['KVDECK_API_PORT']}/healthz")
            _wait(f"http://127.0.0.1:{port}/_stcore/health")
            yield Served(address=f"http://127.0.0.1:{port}", api_pid=running[0].pid, pages_pid=running[1].pid)
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait(timeout=60)


class Lights:
    """Light sessions in a process of their own: what they cost is not on this one's account."""

    def __init__(self, address: str, links: Sequence[str]) -> None:
        command = (sys.executable, "-m", "benchmarks.dashboard_session", address)
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._say(json.dumps(list(links)))
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != READY:
            raise SystemExit(f"the light sessions ended with {self._process.wait()}")

    def forget(self) -> None:
        """Measure from here."""
        self._say("forget")

    def end(self) -> list[Timed]:
        """Close them all; what they measured."""
        said, _ = self._process.communicate()
        if self._process.returncode:
            raise SystemExit(f"the light sessions ended with {self._process.returncode}")
        return [Timed(**one) for one in json.loads(said)]

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Processor time of a process since it started, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(url: str) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            if httpx.get(url, timeout=2, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise SystemExit(f"{url} did not answer within {START_S:.0f} s")
