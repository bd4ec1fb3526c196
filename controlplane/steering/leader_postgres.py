"""Leadership over a Postgres that several control planes share: an advisory lock on a connection of its own."""

from __future__ import annotations

import logging
from contextlib import suppress

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from controlplane.steering.leader import begin_epoch
from controlplane.store.session import Store

log = logging.getLogger(__name__)

LOCK_KEY = 0x6B766465636B  # "kvdeck"; one leader for a database


class AdvisoryLockLeadership:
    """Leads while its connection lives: Postgres frees the lock with the session, so a dead leader never blocks.

    A leader whose connection broke notices at its next claim; until then its commands carry an old epoch, and engines
    that have heard of the new one refuse them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._connection: Connection | None = None
        self.epoch = 0

    def try_lead(self) -> bool:
        """Whether this process leads now; takes the lock if it is free, and then a new epoch."""
        if self._still_holds():
            return True
        try:
            connection = self._store.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            won = bool(connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": LOCK_KEY}))
        except SQLAlchemyError as error:
            log.warning("the leadership cannot be claimed: %s", error)
            return False
        if not won:
            connection.close()
            return False
        self._connection = connection
        with self._store.write() as session:
            self.epoch = begin_epoch(session)
        return True

    def release(self) -> None:
        """Frees the lock."""
        if self._connection is not None:
            with suppress(SQLAlchemyError):
                self._connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": LOCK_KEY})
        self._forget()

    def _still_holds(self) -> bool:
        if self._connection is None:
            return False
        try:
            self._connection.execute(text("SELECT 1"))
        except SQLAlchemyError:
            log.warning("the connection that held the leadership of epoch %s is gone", self.epoch)
            self._forget()
            return False
        return self.epoch > 0

    def _forget(self) -> None:
        if self._connection is not None:
            with suppress(SQLAlchemyError):
                self._connection.invalidate()  # never back into the pool: its session may still hold the lock
                self._connection.close()
        self._connection = None
        self.epoch = 0
