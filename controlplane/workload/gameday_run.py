"""Runs a game day: prepares, breaks, watches, and puts everything back, whatever happens on the way."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from controlplane.errors import Conflict, ControlPlaneError
from controlplane.workload.gameday import FaultIncident, GameDay, OutageIncident, Phase, Step, Tuning
from controlplane.workload.gameday_result import BYTES, FILES, VERIFIED, WRONG, Before, Event, HitRates, Meter, Result
from controlplane.workload.gameday_signs import HistoryWhole, Reading, Scene, Seen, instead, look

LOOK_EVERY_SECONDS = 1.0
BEFORE_SECONDS = 8.0
ORDER_SECONDS = 30.0
PUT_BACK_SECONDS = 90.0
OWN_WINDOWS_FACTOR = 10  # how much longer a deck may take that keeps its own windows

Undo = dict[str, Any]


class Deck(Protocol):
    """What a game day does to a deck; `gameday_eyes.Deck` does it over the API."""

    def read(self, *, history: bool = False) -> Reading:
        """What can be seen now."""

    def cap_gpu(self, share: float) -> Undo:
        """Makes the GPU tier small."""

    def tune(self, tuning: Tuning) -> Undo:
        """Shortens a window."""

    def put_back(self, undo: Undo) -> None:
        """Undoes one of the two."""

    def begin(self, incident: FaultIncident | OutageIncident) -> str:
        """Orders the incident."""

    def command(self, command_id: str) -> Mapping[str, Any]:
        """What became of the order."""

    def withdraw(self, incident: FaultIncident | OutageIncident) -> str:
        """Orders the end of the incident."""


class Journal(Protocol):
    """Where it is kept what must be put back, should this process be killed."""

    def note(self, undo: Sequence[Undo]) -> None:
        """Keeps this, instead of what was kept."""


class Run:
    """One game day on one deck. `say` gets each event as it is found."""

    def __init__(
        self,
        day: GameDay,
        deck: Deck,
        journal: Journal,
        *,
        clock: Callable[[], dt.datetime],
        sleep: Callable[[float], None],
        say: Callable[[Event], None],
        own_windows: bool = False,
    ) -> None:
        self._day = day
        self._deck = deck
        self._journal = journal
        self._clock = clock
        self._sleep = sleep
        self._say = say
        self._tunings = () if own_windows else day.tunings
        self._patience = OWN_WINDOWS_FACTOR if own_windows else 1
        self._incident = day.incident.lasting(self._patience)
        self._meter = Meter()
        self._began_at: dt.datetime | None = None
        self._reads_history = any(isinstance(step.sign, HistoryWhole) for step in day.steps)
        self.result = Result(day=day.name)

    def go(self) -> Result:
        """All of it. Raises ControlPlaneError if the deck cannot be prepared or refuses; all is put back then."""
        with self._prepared():
            start = self._wait_ready()
            if start is None:
                return self._finish(None)
            before = self._look_before()
            with self._broken():
                self._watch(before)
        return self._finish(before)

    # -- preparation ------------------------------------------------------------------------------------------------

    @contextmanager
    def _prepared(self) -> Iterator[None]:
        undo: list[Undo] = []
        try:
            if self._day.gpu_share is not None:
                undo.append(self._deck.cap_gpu(self._day.gpu_share))
                self._journal.note(undo)
                self._tell(Phase.READY, f"GPU capped at {self._day.gpu_share:.0%}, host tier off, for this game day")
            for tuning in self._tunings:
                undo.append(self._deck.tune(tuning))
                self._journal.note(undo)
            if self._tunings:
                self._tell(Phase.READY, f"short windows: {', '.join(tuning.name for tuning in self._tunings)}")
            yield
        finally:
            put_back(self._deck, undo, self._journal, self._clock, self._sleep)

    def _wait_ready(self) -> Reading | None:
        start = self._read()
        began = start.at
        waiting = list(self._day.ready)
        reading = start
        while waiting:
            scene_of = partial(self._scene, Before(first=start, last=start), reading, None)
            waiting = self._seen_of(waiting, scene_of)
            late = [step for step in waiting if self._is_late(step, began)]
            if late:
                self.result.missed += [f"not ready: {step.what}" for step in late]
                return None
            if waiting:
                reading = self._pause_and_read()
        return reading

    def _look_before(self) -> Before:
        first = self._read()
        before = Before(first=first, last=first)
        while before.seconds < BEFORE_SECONDS or before.hit_rate is None:
            if before.seconds > 10 * BEFORE_SECONDS:
                raise Conflict(
                    "too_quiet",
                    "Too few requests ran to measure a hit rate.",
                    "Raise the engine's --rate, or try again when it has traffic.",
                )
            before = Before(first=first, last=self._pause_and_read())
        self._tell(Phase.READY, f"hit rate before: {before.hit_rate:.1%} of the prompt tokens")
        return before

    # -- the incident -----------------------------------------------------------------------------------------------

    @contextmanager
    def _broken(self) -> Iterator[None]:
        incident = self._incident
        try:
            order = self._deck.begin(incident)
            if order:
                self._await_order(order, "begin")
            self._began_at = self._clock()
            self._tell(Phase.INJECTED, incident.words)
            yield
        except BaseException:
            self._deck.withdraw(incident)
            self._tell(Phase.OVER, "withdrawn")
            raise

    def _await_order(self, command_id: str, what: str) -> None:
        began = self._clock()
        while True:
            command = self._deck.command(command_id)
            if command["status"] == "succeeded":
                return
            gone = self._since(began) > ORDER_SECONDS
            if command["status"] not in ("pending", "delivered", "running") or gone:
                why = command["outcome"].get("reason") or "it was not taken in time"
                raise Conflict("fault_refused", f"The fault did not {what} ({command['status']}): {why}.")
            self._sleep(LOOK_EVERY_SECONDS / 5)

    def _watch(self, before: Before) -> None:
        began = self._began_at or self._clock()
        ended_at = began + dt.timedelta(seconds=self._incident.longest_seconds)
        waiting, end = list(self._day.steps), None
        while waiting:
            reading = self._pause_and_read()
            self._meter.note_lowest()
            if end is None and reading.engine is not None and self._may_end(began, waiting):
                end, ended_at = reading, self._end_incident(ended_at)
            scene_of = partial(self._scene, before, reading, end)
            waiting = self._seen_of(waiting, scene_of)
            if all(_is_last(step) for step in waiting):
                waiting = self._seen_of(waiting, scene_of, last=True)
            for step in [step for step in waiting if self._is_late(step, ended_at if step.after_end else began)]:
                waiting.remove(step)
                self.result.missed.append(f"{step.phase}: {step.what}")
                self._tell_missed(step, reading)

    def _may_end(self, began: dt.datetime, waiting: Sequence[Step]) -> bool:
        incident, lasted = self._incident, self._since(began)
        awaited = [step for step in waiting if not step.after_end]
        return lasted >= incident.longest_seconds or (lasted >= incident.lasts_seconds and not awaited)

    def _end_incident(self, ends_at: dt.datetime) -> dt.datetime:
        """Ends what does not end by itself -> when it was over, `ends_at` at the latest."""
        if isinstance(self._incident, FaultIncident):
            self._await_order(self._deck.withdraw(self._incident), "end")
            ends_at = min(ends_at, self._clock())
        self._tell(Phase.OVER, "the incident is over", at=ends_at)
        return ends_at

    def _tell_missed(self, step: Step, reading: Reading) -> None:
        why = instead(step.sign, reading)
        within = f"not within {step.within_seconds * self._patience} s"
        self._tell(step.phase, f"MISSED: {step.what}, {within}{f' ({why})' if why else ''}")

    def _scene(self, before: Before, now: Reading, end: Reading | None, step: Step) -> Scene | None:
        """What a step is judged by; None while it is too early for it."""
        if step.after_end and end is None:
            return None
        return Scene(
            began_at=self._began_at or before.last.at,
            start=before.last,
            base=end if step.after_end and end is not None else before.last,
            now=now,
            hit_before=before.hit_rate,
            hit_now=self._meter.hit_now(),
            requests_a_second=before.requests_a_second,
        )

    def _seen_of(
        self, waiting: Sequence[Step], scene_of: Callable[[Step], Scene | None], *, last: bool = False
    ) -> list[Step]:
        """Tells of the steps whose sign shows now, in the order in which they showed; returns the others."""
        found: list[tuple[Step, Seen]] = []
        for step in waiting:
            scene = scene_of(step) if _is_last(step) is last else None
            if scene is not None and (seen := look(step.sign, scene)) is not None:
                found.append((step, seen))
        for step, seen in sorted(found, key=lambda pair: pair[1].at):
            self._tell(step.phase, f"{step.what}: {seen.text}", at=seen.at)
        seen_steps = [step for step, _ in found]
        return [step for step in waiting if step not in seen_steps]

    def _is_late(self, step: Step, since: dt.datetime) -> bool:
        return self._since(since) > step.within_seconds * self._patience

    def _since(self, moment: dt.datetime) -> float:
        return (self._clock() - moment).total_seconds()

    # -- readings and the end ---------------------------------------------------------------------------------------

    def _pause_and_read(self) -> Reading:
        self._sleep(LOOK_EVERY_SECONDS)
        return self._read()

    def _read(self) -> Reading:
        reading = self._deck.read(history=self._reads_history and self._began_at is not None)
        self._meter.take(reading)
        return reading

    def _tell(self, phase: str, text: str, at: dt.datetime | None = None) -> None:
        at = at or self._clock()
        offset = None if self._began_at is None else (at - self._began_at).total_seconds()
        event = Event(at=at, offset_seconds=offset, phase=str(phase), text=text)
        self.result.events.append(event)
        self._say(event)

    def _finish(self, before: Before | None) -> Result:
        sums, result = self._meter.sums, self.result
        result.hit_rate = HitRates(
            before=before.hit_rate if before else None, lowest=self._meter.lowest, after=self._meter.hit_now()
        )
        result.wrong_bytes, result.verified_bytes = int(sums[WRONG]), int(sums[VERIFIED])
        result.quarantined_files, result.quarantined_bytes = int(sums[FILES]), int(sums[BYTES])
        result.events.sort(key=lambda event: event.at)
        result.finished = True
        return result


def _is_last(step: Step) -> bool:
    return step.phase is Phase.RECOVERED


def put_back(
    deck: Deck,
    undo: list[Undo],
    journal: Journal,
    clock: Callable[[], dt.datetime],
    sleep: Callable[[float], None],
) -> None:
    """Undoes the newest change first; waits for a control plane that is away. Raises ControlPlaneError after a while,
    with what is left still in the journal."""
    began = clock()
    while undo:
        try:
            deck.put_back(undo[-1])
        except ControlPlaneError as error:
            if error.status != 503 or (clock() - began).total_seconds() > PUT_BACK_SECONDS:
                raise
            sleep(LOOK_EVERY_SECONDS)
        else:
            undo.pop()
            journal.note(undo)
