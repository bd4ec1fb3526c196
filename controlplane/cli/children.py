"""Child processes of `kvdeck up`: each in its own process group, with its own log; only ever our own are ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

TAIL_LINES = 15
LOOK_EVERY_SECONDS = 0.05
KEPT_LOG_BYTES = 5 << 20  # a log over this is set aside at the next start


class Child:
    """One child process. Not started until `start`."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self._command = list(command)
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, with stdout and stderr going to its log."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        if self.log_path.exists() and self.log_path.stat().st_size > KEPT_LOG_BYTES:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        with self.log_path.open("ab") as log:
            # Its own group: Ctrl-C on the terminal reaches `up` alone, which then ends the children in order.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                process_group=0,
            )

    @property
    def pid(self) -> int | None:
        """Its process id; None before the start."""
        return self._process.pid if self._process else None

    @property
    def ended_with(self) -> int | None:
        """Its exit status (negative: a signal); None while it runs, or before the start."""
        return self._process.poll() if self._process else None

    @property
    def runs(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def tail(self) -> str:
        """The last lines of its log."""
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-TAIL_LINES:])

    def signal_group(self, number: signal.Signals) -> None:
        """Sends a signal to it and to what it started."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def stop_together(children: Sequence[Child], patience_seconds: float) -> list[str]:
    """Asks the children to end, waits, and kills those that have not. Returns the names of the killed ones."""
    for child in children:
        child.signal_group(signal.SIGTERM)
    deadline = time.monotonic() + patience_seconds
    while any(child.runs for child in children) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_SECONDS)
    killed = [child.name for child in children if child.runs]
    for child in children:
        child.signal_group(signal.SIGKILL)
    for child in children:
        if child._process is not None:
            child._process.wait()
    return killed
