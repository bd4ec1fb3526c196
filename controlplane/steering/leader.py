"""Who may run policies: one leader, with an epoch that grows with every leadership and fences the one before.

With SQLite the one control plane process is the leader; with Postgres, whoever holds an advisory lock
(`leader_postgres.py`).
"""

from __future__ import annotations

import datetime as dt
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from controlplane.auth import Principal, Role
from controlplane.clock import utc_now
from controlplane.errors import Conflict
from controlplane.steering.deed import POLICY_PREFIX, Deed
from controlplane.store.models import Command, LeadershipRow
from controlplane.store.session import Store

LEAD = "lead"
HOLDER = f"{socket.gethostname()}:{os.getpid()}"[:128]
SAID_EVERY = dt.timedelta(seconds=20)
SCHEDULER = Principal("scheduler", Role.ADMIN)


class Leadership(Protocol):
    """A claim to lead. `epoch` is 0 until it is won."""

    epoch: int

    def try_lead(self) -> bool:
        """Whether this process leads now; wins the leadership if nobody else has it. Never blocks for long."""

    def release(self) -> None:
        """Lets another process lead."""


def newest_epoch(session: Session) -> int:
    """The epoch of the newest leadership; 0 when nobody has led yet."""
    return session.scalar(select(func.max(LeadershipRow.epoch))) or 0


class SingleProcessLeadership:
    """Leads always: there is one control plane process on this database."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.epoch = 0

    def try_lead(self) -> bool:
        """True; the first call takes the next epoch."""
        if self.epoch == 0:
            with self._store.write() as session:
                self.epoch = begin_epoch(session)
        return True

    def release(self) -> None:
        """Forgets the epoch; a later claim takes a new one."""
        self.epoch = 0


class FencedStore(Store):
    """The store as the scheduler has it: what it writes is written under its own epoch, or not at all.

    A leader that was deposed may be in the middle of a policy and not know it. Whoever took over began its epoch in a
    `write` of its own, and no two of those overlap; so either this one was first and the new leader sees it, or it is
    refused. That is why a policy never acts twice.
    """

    def __init__(self, store: Store, leadership: Leadership) -> None:
        self._store, self._leadership = store, leadership
        self.url, self.engine, self.dialect = store.url, store.engine, store.dialect

    @contextmanager
    def read(self) -> Iterator[Session]:
        """As the store's: anybody may look."""
        with self._store.read() as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """As the store's. Raises Conflict, before the block, when another leads."""
        with self._store.write() as session:
            self._require_newest(session)
            yield session

    @contextmanager
    def write_beside(self) -> Iterator[Session]:
        """As the store's. Raises Conflict, before the block, when another leads."""
        with self._store.write_beside() as session:
            self._require_newest(session)
            yield session

    def _require_newest(self, session: Session) -> None:
        newest = newest_epoch(session)
        if self._leadership.epoch != newest:
            raise Conflict(
                "deposed",
                f"This process leads no more: epoch {newest} began after its own ({self._leadership.epoch}).",
                "Nothing was written; the process that leads now decides again.",
            )


def begin_epoch(session: Session) -> int:
    """Starts a leadership: records its epoch and takes over the commands that people have waiting.

    What a policy of the leader before had waiting keeps its epoch, so engines that know the new one refuse it: the
    decision was made by somebody who may have been wrong about leading.
    """
    epoch = newest_epoch(session) + 1
    session.add(LeadershipRow(epoch=epoch, holder=HOLDER, began_at=utc_now(), seen_at=utc_now()))
    session.execute(
        update(Command)
        .where(Command.status.in_(("pending", "delivered")), Command.actor.not_like(f"{POLICY_PREFIX}%"))
        .values(epoch=epoch)
    )
    deed = Deed(principal=SCHEDULER, reason=f"control plane leadership {epoch} begins")
    deed.record(session, LEAD, "scheduler", after={"epoch": epoch})
    return epoch


def say_alive(session: Session, epoch: int, now: dt.datetime) -> None:
    """The leader of this epoch leads still; written down every `SAID_EVERY`."""
    mine = update(LeadershipRow).where(LeadershipRow.epoch == epoch)
    old = or_(LeadershipRow.seen_at.is_(None), LeadershipRow.seen_at < now - SAID_EVERY)
    session.execute(mine.where(old).values(seen_at=now))
