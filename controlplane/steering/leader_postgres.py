"""Leadership over a Postgres that several control planes share: an advisory lock on a connection of its own."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from controlplane.steering.leader import begin_epoch
from controlplane.store.session import Store, open_engine

log = logging.getLogger(__name__)

LOCK_KEY = 0x6B766465636B  # "kvdeck"; one leader a database


class AdvisoryLockLeadership:
    """Leads while its connection lives: Postgres frees the lock with the session, so a dead leader never blocks.

    A leader whose connection broke notices at its next claim; until then its commands carry an old epoch, and engines
    that have heard of the new one refuse them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._engine = open_engine(store.url, pooled=False).execution_options(isolation_level="AUTOCOMMIT")
        self._claiming = threading.Lock()  # several jobs ask; a connection is for one thread at a time
        self._connection: Connection | None = None
        self.epoch = 0

    def try_lead(self) -> bool:
        """Whether this process leads now; takes the lock if it is free, and then a new epoch.

        Raises Unavailable when the lock was won and the epoch could not be begun: then it is given up again.
        """
        with self._claiming:
            return self._still_holds() or self._claim()

    def _claim(self) -> bool:
        try:
            connection = self._engine.connect()
        except SQLAlchemyError as error:
            log.warning("the leadership cannot be claimed: %s", error)
            return False
        try:
            won = bool(connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": LOCK_KEY}))
        except SQLAlchemyError as error:
            log.warning("the leadership cannot be claimed: %s", error)
            won = False
        if not won:
            _close(connection)
            return False
        self._connection = connection
        try:
            with self._store.write() as session:
                epoch = begin_epoch(session)
        except BaseException:
            self._forget()
            raise
        self.epoch = epoch
        return True

    def release(self) -> None:
        """Frees the lock."""
        with self._claiming:
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
            _close(self._connection)
        self._connection = None
        self.epoch = 0


def _close(connection: Connection) -> None:
    with suppress(SQLAlchemyError):  # it may be the connection that is broken
        connection.close()
