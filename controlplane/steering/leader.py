"""Who may run policies: one leader, with an epoch that grows with every leadership and fences the one before.

With SQLite the one control plane process is the leader; with Postgres, whoever holds an advisory lock
(`leader_postgres.py`).
"""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from controlplane.auth import Principal, Role
from controlplane.steering.deed import POLICY_PREFIX, Deed
from controlplane.store.models import Audit, Command
from controlplane.store.session import Store

LEAD = "lead"
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
    # The audit trail is the record of leaderships; commands are asked too because audit rows have a retention.
    led = session.scalars(select(Audit.after).where(Audit.action == LEAD).order_by(Audit.id.desc()).limit(1)).first()
    issued = session.scalar(select(func.max(Command.epoch))) or 0
    return max(issued, int(led["epoch"]) if led else 0)


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


def begin_epoch(session: Session) -> int:
    """Starts a leadership: records its epoch and takes over the commands that people have waiting.

    What a policy of the leader before had waiting keeps its epoch, so engines that know the new one refuse it: the
    decision was made by somebody who may have been wrong about leading.
    """
    epoch = newest_epoch(session) + 1
    session.execute(
        update(Command)
        .where(Command.status.in_(("pending", "delivered")), Command.actor.not_like(f"{POLICY_PREFIX}%"))
        .values(epoch=epoch)
    )
    deed = Deed(principal=SCHEDULER, reason=f"control plane leadership {epoch} begins")
    deed.record(session, LEAD, "scheduler", after={"epoch": epoch})
    return epoch
