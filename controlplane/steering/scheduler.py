"""The clockwork of the control plane: policies on their intervals, and the sweeps that nothing else would do.

Jobs live in memory and are rebuilt from the `policies` table, which is the only truth; a change there is seen within
`SYNC_SECONDS`. Only the leader runs anything, and everything a policy issues carries the leadership's epoch.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger
from sqlalchemy import select
from sqlalchemy.orm import Session

from controlplane.clock import Clock, utc_now
from controlplane.errors import BadRequest, ControlPlaneError
from controlplane.settings import Settings
from controlplane.steering import alerts, commands, desired
from controlplane.steering.alerts.deliver import deliver_due
from controlplane.steering.alerts.inbound import run_waiting, take_change
from controlplane.steering.deed import Deed
from controlplane.steering.leader import SCHEDULER, FencedStore, Leadership, SingleProcessLeadership, say_alive
from controlplane.steering.leader_postgres import AdvisoryLockLeadership
from controlplane.steering.policies import registry
from controlplane.steering.policies.runner import Ground, Occasion, run_policy
from controlplane.steering.policies.settle import settle
from controlplane.steering.policies.starts import run_on_starts
from controlplane.steering.policies.when import When
from controlplane.steering.wakeups import WAKEUPS
from controlplane.store.models import Policy
from controlplane.store.session import Store

log = logging.getLogger(__name__)

SYNC_SECONDS = 5
SWEEP_SECONDS = 5
DELIVER_SECONDS = 2
WORKERS = 4
# What is late by more than this is skipped: a policy that missed its moment decides on the next one's facts.
MISFIRE_GRACE_SECONDS = 30
CRON_GRACE_SECONDS = 600  # but what was set for a time of day is worth doing a little late
POLICY_JOB = "policy:"
UNREADABLE = IntervalTrigger(seconds=300, timezone="UTC")  # for a row whose cron expression somebody broke


def leadership_of(store: Store) -> Leadership:
    """How control planes on this kind of database agree on a leader."""
    return AdvisoryLockLeadership(store) if store.dialect == "postgresql" else SingleProcessLeadership(store)


class Scheduler:
    """Runs in the control plane process as its background work. `start` and `stop` are for one thread, once each."""

    def __init__(
        self, store: Store, settings: Settings, leadership: Leadership | None = None, clock: Clock = utc_now
    ) -> None:
        self._leadership = leadership or leadership_of(store)
        self._store = FencedStore(store, self._leadership)
        self._settings = settings
        self._ground = Ground(self._store, settings, clock)
        self._clock = clock
        self._health = alerts.Health()
        self._jobs: dict[str, When] = {}  # policy -> when it runs; owned by the sync job
        self._scheduler = BackgroundScheduler(
            timezone="UTC",
            executors={"default": ThreadPoolExecutor(WORKERS)},
            job_defaults={
                "coalesce": True,
                "max_instances": 1,
                "misfire_grace_time": MISFIRE_GRACE_SECONDS,
            },
        )

    def start(self) -> None:
        """Claims the leadership, seeds the default policies and starts the jobs."""
        logging.getLogger("apscheduler").setLevel(logging.WARNING)
        self.sync()
        self._scheduler.add_job(self._guarded, "interval", args=[self.sync], seconds=SYNC_SECONDS, id="sync")
        self._scheduler.add_job(self._guarded, "interval", args=[self.sweep], seconds=SWEEP_SECONDS, id="sweep")
        self._scheduler.add_job(self._guarded, "interval", args=[self.deliver], seconds=DELIVER_SECONDS, id="deliver")
        self._scheduler.start()

    @property
    def leads(self) -> bool:
        """Whether this process runs the policies now."""
        return self._leadership.epoch > 0

    def stop(self) -> None:
        """Ends the jobs, waiting for those that run, and gives the leadership up."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)
        self._leadership.release()

    def sync(self) -> None:
        """Makes the jobs equal to the `policies` table, or to nothing if another process leads."""
        wanted: dict[str, When] = {}
        if self._leadership.try_lead():
            with self._store.write() as session:
                registry.seed(session, self._clock())
                alerts.seed(session, self._clock())
                say_alive(session, self._leadership.epoch, self._clock())
            with self._store.read() as session:
                wanted = self._wanted(session)
        for name in set(self._jobs) - set(wanted):
            self._scheduler.remove_job(POLICY_JOB + name)
        for name, when in wanted.items():
            if self._jobs.get(name) != when:
                self._add(name, when)
        self._jobs = wanted

    def _wanted(self, session: Session) -> dict[str, When]:
        """What time alone runs now. A row that cannot be read has a job too: its run records what is wrong with it."""
        wanted: dict[str, When] = {}
        for policy in session.scalars(select(Policy)):
            resting = policy.paused and (policy.paused_until is None or policy.paused_until > self._clock())
            when = When(every_seconds=policy.every_seconds, cron=policy.cron, time_zone=policy.time_zone)
            if not resting and (when.every_seconds is not None or when.cron is not None):
                wanted[policy.name] = when
        return wanted

    def _add(self, name: str, when: When) -> None:
        try:
            trigger = when.trigger()
        except BadRequest:
            trigger = UNREADABLE  # its run records what is wrong with it
        self._scheduler.add_job(
            self._run,
            trigger,
            id=POLICY_JOB + name,
            args=[name],
            replace_existing=True,
            coalesce=True,
            max_instances=1,
            misfire_grace_time=MISFIRE_GRACE_SECONDS if when.cron is None else CRON_GRACE_SECONDS,
        )

    def _run(self, name: str) -> None:
        occasion = Occasion(trigger="schedule", epoch=self._leadership.epoch)
        self._guarded(lambda: run_policy(self._ground, name, occasion))

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except ControlPlaneError as error:
            # The top of a job: the next interval tries again, and the log says why this one did nothing.
            log.warning("the scheduler: %s", error)

    def sweep(self) -> None:
        """What time alone changes: commands and holds that ended, alerts that begin or end."""
        if not self._leadership.try_lead():
            return
        began = time.monotonic()
        try:
            self._sweep_store(self._clock())
        except ControlPlaneError:
            self._health.note(self._clock(), time.monotonic() - began, failed=True)
            raise
        self._health.note(self._clock(), time.monotonic() - began)
        run_on_starts(self._ground, self._leadership.epoch)
        run_waiting(self._ground, self._leadership.epoch)

    def _sweep_store(self, now: dt.datetime) -> None:
        with self._store.write() as session:
            commands.expire_overdue(session, now)
            ended = desired.expire_modes(
                session, Deed(principal=SCHEDULER, reason="the hold on the mode ended", now=now)
            )
            settle(session, now)
            changes = alerts.evaluate(session, now, self._health)
            for change in changes:
                take_change(session, change, now)
        for scope in ended:
            WAKEUPS.notify(scope.engine_id)
        for change in changes:
            log.warning("alert %s on %s is %s: %s", change.rule, change.engine_id, change.state, change.summary)

    def deliver(self) -> None:
        """Tells receivers what waits for them."""
        if self._leadership.try_lead():
            deliver_due(self._store, self._clock)
