"""The clockwork of the control plane: policies on their intervals, and the sweeps that nothing else would do.

Jobs live in memory and are rebuilt from the `policies` table, which is the only truth; a change there is seen within
`SYNC_SECONDS`. Only the leader runs anything, and everything a policy issues carries the leadership's epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import select

from controlplane.clock import Clock, utc_now
from controlplane.errors import ControlPlaneError
from controlplane.settings import Settings
from controlplane.steering import alerts, commands, desired
from controlplane.steering.deed import Deed
from controlplane.steering.leader import SCHEDULER, Leadership, SingleProcessLeadership
from controlplane.steering.leader_postgres import AdvisoryLockLeadership
from controlplane.steering.notify import post_changes
from controlplane.steering.policies import registry
from controlplane.steering.policies.runner import Ground, Occasion, run_kind, run_policy
from controlplane.steering.wakeups import WAKEUPS
from controlplane.store.models import Policy
from controlplane.store.session import Store

log = logging.getLogger(__name__)

SYNC_SECONDS = 5
SWEEP_SECONDS = 5
WORKERS = 4
# What is late by more than this is skipped: a policy that missed its moment decides on the next one's facts.
MISFIRE_GRACE_SECONDS = 30
POLICY_JOB = "policy:"


def leadership_of(store: Store) -> Leadership:
    """How control planes on this kind of database agree on a leader."""
    return AdvisoryLockLeadership(store) if store.dialect == "postgresql" else SingleProcessLeadership(store)


class Scheduler:
    """Runs in the control plane process as its background work. `start` and `stop` are for one thread, once each."""

    def __init__(
        self, store: Store, settings: Settings, leadership: Leadership | None = None, clock: Clock = utc_now
    ) -> None:
        self._store = store
        self._settings = settings
        self._ground = Ground(store, settings, clock)
        self._leadership = leadership or leadership_of(store)
        self._clock = clock
        self._jobs: dict[str, int] = {}  # policy -> seconds; owned by the sync job
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
        self._scheduler.start()

    def stop(self) -> None:
        """Ends the jobs, waiting for those that run, and gives the leadership up."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)
        self._leadership.release()

    def sync(self) -> None:
        """Makes the jobs equal to the `policies` table, or to nothing if another process leads."""
        wanted: dict[str, int] = {}
        if self._leadership.try_lead():
            with self._store.write() as session:
                registry.seed(session, self._clock())
            with self._store.read() as session:
                wanted = {p.name: p.every_seconds for p in session.scalars(select(Policy)) if not p.paused}
        for name in set(self._jobs) - set(wanted):
            self._scheduler.remove_job(POLICY_JOB + name)
        for name, seconds in wanted.items():
            if self._jobs.get(name) != seconds:
                self._add(name, seconds)
        self._jobs = wanted

    def _add(self, name: str, seconds: int) -> None:
        job: dict[str, Any] = {"id": POLICY_JOB + name, "args": [name], "replace_existing": True}
        self._scheduler.add_job(self._run, "interval", seconds=seconds, **job)

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
        now = self._clock()
        with self._store.write() as session:
            commands.expire_overdue(session, now)
            ended = desired.expire_modes(
                session, Deed(principal=SCHEDULER, reason="the hold on the mode ended", now=now)
            )
            changes = alerts.evaluate(session, now)
        for scope in ended:
            WAKEUPS.notify(scope.engine_id)
        for change in changes:
            log.warning("alert %s on %s is %s: %s", change.rule, change.engine_id, change.state, change.summary)
            if change.rule == "recovery_failure_rate":
                self._warm(change)
        post_changes(self._settings.alert_webhook_url, changes)

    def _warm(self, change: alerts.Change) -> None:
        event = f"alert {change.rule} is {change.state}: {change.summary}"
        occasion = Occasion(trigger="alert", epoch=self._leadership.epoch, event=event, only_engine=change.engine_id)
        run_kind(self._ground, "warmup", occasion)
