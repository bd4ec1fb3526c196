"""Runs commands on the engine, one at a time, and remembers what became of each until the control plane knows."""

from __future__ import annotations

import datetime as dt
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from controlplane.host.keepsake import Keepsake
from controlplane.host.protocol import SteeredEngine
from engine.errors import EngineError

log = logging.getLogger(__name__)

MOST_QUEUED = 256  # what does not fit is handed out again by the control plane 15 seconds later
STATUSES = frozenset({"succeeded", "failed", "refused", "expired", "cancelled"})


class CommandWorker:
    """Owner of the queue of commands and of their reports. `accept`, `due_reports` and `confirm` from any thread."""

    def __init__(self, engine: SteeredEngine, keepsake: Keepsake, on_report: Callable[[], None]) -> None:
        self._engine = engine
        self._keepsake = keepsake
        self._on_report = on_report  # called, without the lock, when there is something new to post
        self._lock = threading.Lock()  # guards what is below and the keepsake
        self._taken: set[str] = set()
        self._unwanted: set[str] = set()  # taken, and cancelled since; read without the lock by the command that runs
        self._progress: dict[str, dict[str, Any]] = {}
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.internal_errors = 0

    def accept(self, command: dict[str, Any]) -> None:
        """Takes a command to run, or answers it at once when its outcome is known or its epoch is an old leader's.

        One that is handed out again because it was cancelled stops at its next step, or before its first.
        """
        with self._lock:
            command_id = command["id"]
            known = self._keepsake.kept.outcomes.get(command_id)
            if known is not None:
                if command_id not in self._keepsake.kept.unposted:
                    self._keepsake.remember_outcome(command_id, known)
            elif command.get("cancel"):
                self._unwanted.add(command_id)
                if command_id not in self._taken:
                    reason = "cancelled before the engine came to it"
                    self._keepsake.remember_outcome(command_id, _report("cancelled", {"reason": reason}))
            elif command_id in self._taken:
                pass  # handed out again while it waits or runs: its end will be posted, also under a newer leader
            elif command["epoch"] < self._keepsake.kept.epoch:
                reason = f"epoch {command['epoch']} is older than {self._keepsake.kept.epoch}, the newest seen"
                self._keepsake.remember_outcome(command_id, _report("refused", {"code": "fenced", "reason": reason}))
            elif self._queue.qsize() < MOST_QUEUED:
                self._keepsake.remember_epoch(command["epoch"])
                self._taken.add(command_id)
                self._queue.put(command)
        self._on_report()

    def note_epoch(self, epoch: int) -> None:
        """The control plane's newest leadership; commands of older ones are refused from now on."""
        with self._lock:
            self._keepsake.remember_epoch(epoch)

    def due_reports(self) -> list[tuple[str, dict[str, Any]]]:
        """What to post now, (command id, report): progress first, then the ends that are not confirmed."""
        with self._lock:
            unposted = list(self._keepsake.kept.unposted)
            progress = {key: value for key, value in self._progress.items() if key not in unposted}
            self._progress.clear()
            ends = [(command_id, self._keepsake.kept.outcomes[command_id]) for command_id in unposted]
        return [(key, {"status": "running", "progress": value}) for key, value in progress.items()] + ends

    def confirm(self, command_id: str) -> None:
        """The control plane has this command's end."""
        with self._lock:
            self._keepsake.confirm_outcome(command_id)

    def run_forever(self) -> None:
        """The worker thread: runs commands until `stop`."""
        while (command := self._queue.get()) is not None:
            report = self._run(command)
            with self._lock:
                self._taken.discard(command["id"])
                self._unwanted.discard(command["id"])
                self._progress.pop(command["id"], None)
                self._keepsake.remember_outcome(command["id"], report)
            self._on_report()

    def stop(self) -> None:
        """Lets the worker end after the command that runs now; what is queued will be handed out again."""
        with self._queue.mutex:
            self._queue.queue.clear()
        self._queue.put(None)

    def _run(self, command: Mapping[str, Any]) -> dict[str, Any]:
        expires_at = dt.datetime.fromisoformat(command["expires_at"])
        if expires_at <= dt.datetime.now(dt.UTC):
            return _report("expired", {"reason": "expired before the engine came to it"})
        if command["id"] in self._unwanted:
            return _report("cancelled", {"reason": "cancelled before the engine came to it"})
        self._note_progress(command["id"], {})
        try:
            return self._execute(command, expires_at)
        except EngineError as error:
            return _report("failed", {"code": error.code, "reason": str(error)})
        except Exception as error:  # the top of a command: whatever went wrong is its outcome, and is counted
            self.internal_errors += 1
            log.exception("command %s (%s) failed in a way it should not", command["id"], command["kind"])
            return _report("failed", {"code": "internal", "reason": f"{type(error).__name__}: {error}"})

    def _execute(self, command: Mapping[str, Any], expires_at: dt.datetime) -> dict[str, Any]:
        from engine import CommandRequest  # late: only a host with an engine has torch loaded

        request = CommandRequest(
            id=command["id"],
            kind=command["kind"],
            arguments=command["arguments"],
            epoch=command["epoch"],
            expires_at_unix_s=expires_at.timestamp(),
            traceparent=command["traceparent"],
            actor=command["actor"],
            cancelled=lambda: command["id"] in self._unwanted,
        )
        done = self._engine.execute(request, lambda progress: self._note_progress(command["id"], progress))
        if done.status not in STATUSES:
            raise ValueError(f"the engine ended a command with status {done.status!r}")
        return _report(done.status, dict(done.outcome))

    def _note_progress(self, command_id: str, progress: Mapping[str, Any]) -> None:
        with self._lock:
            self._progress[command_id] = dict(progress)
        self._on_report()


def _report(status: str, outcome: dict[str, Any]) -> dict[str, Any]:
    return {"status": status, "outcome": outcome}
