"""The agent: a few threads in the inference process that keep one engine at what operators want.

    poll    register, wait for news, apply desired state, take commands
    work    run commands, one at a time
    report  outcomes, progress, heartbeats, snapshots
    tick    the engine's housekeeping

The engine never waits for any of them. With the control plane down the engine serves on with its last settings, the
threads come back with backoff and jitter, and outcomes wait in the keepsake.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlplane.host.backoff import Backoff
from controlplane.host.client import AgentClient, CallFailed
from controlplane.host.keepsake import Keepsake
from controlplane.host.protocol import SteeredEngine
from controlplane.host.work import CommandWorker
from engine.errors import EngineError

__all__ = ["Agent", "AgentOptions", "SteeredEngine"]

log = logging.getLogger(__name__)

GATHER_SECONDS = 0.05  # a command may tell its progress a thousand times a second; nobody reads faster than this


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """How the agent paces itself, in seconds, and what it says of the host."""

    poll_seconds: float = 20.0
    heartbeat_seconds: float = 2.0
    tick_seconds: float = 1.0
    first_backoff_seconds: float = 0.5
    longest_backoff_seconds: float = 15.0
    group: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


class Agent:
    """One engine's agent. `start` and `stop` once each; everything else happens in its threads."""

    def __init__(
        self,
        engine: SteeredEngine,
        *,
        url: str,
        token: str,
        data_dir: Path,
        options: AgentOptions | None = None,
    ) -> None:
        self._engine = engine
        self._options = options or AgentOptions()
        self._client = AgentClient(url, token, engine.id)
        self._keepsake = Keepsake(data_dir)
        self._worker = CommandWorker(engine, self._keepsake, on_report=lambda: self._report_now.set())
        self._stopping = threading.Event()
        self._report_now = threading.Event()
        self._next_heartbeat = 0.0  # monotonic seconds; a change of settings sets it back to "at once"
        self._registering = threading.Lock()
        self._registered = False
        # The newest revision acted upon. A refused one counts: `observed.error` says that it is not what runs.
        self._seen_revision = self._keepsake.kept.revision
        self._refusal: str | None = None
        self._threads: list[threading.Thread] = []
        self.failed_calls = 0
        self.internal_errors = 0

    def start(self) -> None:
        """Applies the settings remembered from the last run, then starts the threads. Never waits for the network."""
        if self._keepsake.kept.desired is not None:
            self._apply(_without_ended_mode(self._keepsake.kept.desired), self._keepsake.kept.revision)
        loops: dict[str, Callable[[], None]] = {
            "poll": self._poll_forever,
            "report": self._report_forever,
            "tick": self._tick_forever,
            "work": self._worker.run_forever,
        }
        self._threads = [
            threading.Thread(target=loop, name=f"kvdeck-agent-{name}", daemon=True) for name, loop in loops.items()
        ]
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_seconds: float = 3.0) -> None:
        """Ends the threads, after one more try to post what became of commands, and says goodbye: an engine that
        stops on purpose is not missed. Returns within about the timeout."""
        self._stopping.set()
        self._worker.stop()
        self._report_now.set()
        for thread in self._threads:
            if not thread.name.endswith("-poll"):  # it may sit in a long poll, and holds nothing that matters
                thread.join(timeout_seconds / 3)
        if self._registered:  # else nobody listens, and a wait would be for nothing
            with suppress(CallFailed):
                self._client.goodbye(self._engine.boot_id)
        self._client.close()

    @property
    def is_connected(self) -> bool:
        """Whether the control plane answered the last call that mattered."""
        return self._registered

    def _poll_forever(self) -> None:
        self._forever(self._poll_once, pause_seconds=0.0)

    def _report_forever(self) -> None:
        self._forever(self._report_once, pause_seconds=self._options.heartbeat_seconds, wake=self._report_now)
        with suppress(CallFailed):  # what the last command left; else it is kept for the next start
            self._post_reports()

    def _tick_forever(self) -> None:
        self._forever(self._engine.tick, pause_seconds=self._options.tick_seconds)

    def _forever(self, once: Callable[[], None], *, pause_seconds: float, wake: threading.Event | None = None) -> None:
        backoff = Backoff(self._options.first_backoff_seconds, self._options.longest_backoff_seconds)
        while not self._stopping.is_set():
            wait = pause_seconds
            try:
                once()
                backoff.reset()
            except CallFailed as error:
                self._note_failure(error)
                wait = backoff.next_seconds()
            except Exception:  # the top of a thread: it must live on, and the failure is counted
                self.internal_errors += 1
                log.exception("the agent of engine %s failed in a way it should not", self._engine.id)
                wait = backoff.next_seconds()
            if wake is not None and wait == pause_seconds:
                wake.wait(wait)
                wake.clear()
                wait = GATHER_SECONDS
            self._stopping.wait(wait)

    def _note_failure(self, error: CallFailed) -> None:
        if self._stopping.is_set():
            return
        self.failed_calls += 1
        if self._registered or self.failed_calls == 1:  # once an outage, not once a try
            log.warning("control plane: %s; the engine serves on with its last settings", error)
        self._registered = False

    def _register(self) -> None:
        with self._registering:
            if self._registered:
                return
            answer = self._client.register(
                {
                    "boot_id": self._engine.boot_id,
                    "model": self._engine.spec.name,
                    "fingerprint": self._engine.spec.fingerprint,
                    "page_tokens": self._engine.spec.page_tokens,
                    "group": self._options.group,
                    "labels": dict(self._options.labels),
                    "observed": self._observed(),
                }
            )
            self._worker.note_epoch(answer["epoch"])
            # The same revision may stand for another document: an engine that comes back may be in another group.
            other = answer["desired"] != (self._keepsake.kept.desired or {})
            if other or answer["desired_revision"] != self._seen_revision or self._refusal is not None:
                self._take_desired(answer["desired"], answer["desired_revision"])
            self._registered = True

    def _poll_once(self) -> None:
        self._register()
        answer = self._client.poll(self._seen_revision, self._options.poll_seconds)
        self._worker.note_epoch(answer.get("epoch", 0))
        if answer["desired"] is not None:
            self._take_desired(answer["desired"], answer["desired_revision"])
        for command in answer["commands"]:
            self._worker.accept(command)

    def _take_desired(self, document: dict[str, Any], revision: int) -> None:
        self._apply(document, revision)
        self._seen_revision = revision
        self._keepsake.remember_desired(document, revision)
        self._next_heartbeat = 0.0
        self._report_now.set()

    def _apply(self, document: Mapping[str, Any], revision: int) -> None:
        try:
            self._engine.reconfigure(document, revision=revision)
        except EngineError as error:
            self._refusal = f"revision {revision} refused ({error.code}): {error}"
        else:
            self._refusal = None

    def _observed(self) -> dict[str, Any]:
        observed = dict(self._engine.observed())
        if self._refusal is not None:
            observed["error"] = self._refusal
        return observed

    def _report_once(self) -> None:
        self._register()
        self._post_reports()
        if time.monotonic() < self._next_heartbeat:
            return
        self._next_heartbeat = time.monotonic() + self._options.heartbeat_seconds * 0.9
        answer = self._heartbeat()
        if answer.get("curve_wanted"):
            self._client.curve(self._engine.boot_id, self._engine.curve())
        if answer["snapshot_wanted"]:
            self._client.snapshot(self._engine.boot_id, self._engine.snapshot())

    def _heartbeat(self) -> dict[str, Any]:
        return self._client.heartbeat(
            {
                "boot_id": self._engine.boot_id,
                "observed_revision": self._seen_revision,
                "observed": self._observed(),
                "stats": self._engine.stats(),
                "sent_at": dt.datetime.now(dt.UTC).isoformat(),
            }
        )

    def _post_reports(self) -> None:
        for command_id, report in self._worker.due_reports():
            try:
                self._client.outcome(command_id, report)
            except CallFailed as error:
                if not error.is_final:
                    raise
                # The control plane has another word on it (cancelled, gone): repeating ours would not change that.
                log.warning("the outcome of command %s was not taken: %s", command_id, error)
            if report["status"] != "running":
                self._worker.confirm(command_id)


def _without_ended_mode(document: Mapping[str, Any]) -> dict[str, Any]:
    expires = document.get("mode_expires_at")
    if expires is None or dt.datetime.fromisoformat(expires) > dt.datetime.now(dt.UTC):
        return dict(document)
    return {key: value for key, value in document.items() if key not in ("mode", "mode_expires_at")}
