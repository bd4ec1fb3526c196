"""Runs `kvdeck` as its users do: as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 120.0
KVDECK = [sys.executable, "-m", "controlplane.cli.main"]


def environment(**more: str) -> dict[str, str]:
    """This process's variables without any of kvdeck's, and those given."""
    return {key: value for key, value in os.environ.items() if not key.startswith("KVDECK_")} | more


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def kvdeck(*arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs one command to its end."""
    return subprocess.run(
        [*KVDECK, *arguments],
        env=environment(**variables),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of the condition. Fails, naming what was waited for, after a time no machine needs."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited in vain for {what}")


class Up:
    """A `kvdeck up` in the background, on ports of its own."""

    def __init__(self, data_dir: Path, *options: str, **variables: str) -> None:
        self.data_dir = data_dir
        self.api_port, self.dashboard_port = free_port(), free_port()
        self.log_path = data_dir.parent / f"{data_dir.name}.out"
        ports = ["--api-port", str(self.api_port), "--dashboard-port", str(self.dashboard_port)]
        self.command = [*KVDECK, "up", "--data-dir", str(data_dir), *ports, *options]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, env=environment(**variables), stdout=log, stderr=subprocess.STDOUT, process_group=0
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.api_port}"

    @property
    def said(self) -> str:
        return self.log_path.read_text()

    def __enter__(self) -> Up:
        try:
            wait_for(lambda: "Everything runs" in self.said or self.process.poll() is not None, "kvdeck up")
            assert self.process.poll() is None, self.said
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, number: int = signal.SIGINT) -> int:
        """Sends the signal and waits for the end; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)

    def children(self) -> list[int]:
        """The process ids of what runs under it."""
        pids: list[int] = json.loads((self.data_dir / "running.json").read_text())
        return pids

    def kvdeck(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A command against this control plane, with the token it wrote."""
        return kvdeck(*arguments, KVDECK_URL=self.url, KVDECK_DATA_DIR=str(self.data_dir), **variables)


def runs(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
