"""Realistic rows for the dashboard's tests, written through the ORM over our own schema."""

from __future__ import annotations

import datetime as dt
from typing import Any

from dashboard_seed_engines import engines
from dashboard_seed_prefixes import prefixes
from dashboard_seed_series import metrics, requests, validations
from dashboard_seed_steering import alerts, policies, steering
from sqlalchemy import text

from controlplane.auth import Role, issue_token
from controlplane.store import models as m
from controlplane.store.migrate import upgrade
from controlplane.store.session import Store


def seed(url: str, now: dt.datetime, *, rows: bool = True) -> dict[str, str]:
    """Build the schema and fill it. Returns one token a role; `rows=False` leaves everything but tokens empty."""
    upgrade(url)
    store = Store(url)
    try:
        with store.write() as session:
            secrets = {
                role.word: issue_token(session, f"test {role.word}", role, ttl=None)
                for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN)
            }
            secrets["link"] = issue_token(
                session, "local operator", Role.ADMIN, ttl=dt.timedelta(hours=1), one_time=True
            )
            if rows:
                engines(session, now)
                session.flush()
                for part in (prefixes, requests, metrics, validations, steering, policies, alerts):
                    part(session, now)
                session.flush()
                _sum_hours(session)
        return secrets
    finally:
        store.dispose()


def _sum_hours(session: Any) -> None:
    """The hours of the minutes that were poured in past ingest, which keeps both."""
    for minutes, hours in (
        (m.RequestRollup, m.RequestHour),
        (m.ValidationRollup, m.ValidationHour),
        (m.MetricRollup, m.MetricHour),
        (m.LossRollup, m.LossHour),
    ):
        names = [column.name for column in hours.__table__.columns if column.name != "hour"]
        keys = [name for name in names if name in hours.__table__.primary_key.columns]
        sums = [name for name in names if name not in keys]
        hour = '"minute" - "minute" % 3600000000'
        listed, totals = ", ".join(f'"{name}"' for name in keys), ", ".join(f'SUM("{name}")' for name in sums)
        added = ", ".join(f'"{name}"' for name in sums)
        session.execute(
            text(
                f'INSERT INTO {hours.__tablename__} ({listed}, "hour", {added}) '
                f"SELECT {listed}, {hour}, {totals} FROM {minutes.__tablename__} GROUP BY {listed}, {hour}"
            )
        )
