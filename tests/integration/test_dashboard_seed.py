"""The seed of the dashboard's tests holds what it claims to hold, and its bad minutes are bad."""

from __future__ import annotations

import datetime as dt
import socket
from typing import Any

from dashboard_seed import seed
from dashboard_seed_series import requests
from databases import free_port
from sqlalchemy import func, select

from controlplane.store import models as m
from controlplane.store.session import Store


def test_the_seed_holds_every_state_a_page_must_show(tmp_path):
    url = f"sqlite:///{tmp_path / 'seed.sqlite3'}"
    seed(url, dt.datetime.now(dt.UTC))
    store = Store(url)
    with store.read() as session:
        states = set(session.scalars(select(m.Prefix.state)))
        assert {"FULL", "COMPRESSED", "PARTIAL_OFFLOAD", "QUARANTINED"} <= states
        assert session.scalar(select(func.count()).select_from(m.RequestRollup)) == 181 * 12
        assert set(session.scalars(select(m.Command.status))) == {"succeeded", "failed", "running"}
    store.dispose()


def test_an_empty_seed_holds_only_tokens(tmp_path):
    url = f"sqlite:///{tmp_path / 'seed.sqlite3'}"
    secrets = seed(url, dt.datetime.now(dt.UTC), rows=False)
    assert set(secrets) == {"viewer", "operator", "admin", "link"}
    store = Store(url)
    with store.read() as session:
        assert session.scalar(select(func.count()).select_from(m.Engine)) == 0
    store.dispose()


def _series() -> tuple[list[m.RequestRollup], list[m.LossRollup]]:
    """What the series says was asked for, and what of it was lost."""
    found: list[Any] = []

    class Session:
        add = staticmethod(found.append)

    requests(Session(), dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC))
    asked, lost = ([row for row in found if isinstance(row, kind)] for kind in (m.RequestRollup, m.LossRollup))
    return asked, lost


def test_ten_minutes_of_the_series_are_bad():
    asked, _ = _series()
    late = {row.minute for row in asked if row.reason == "restore_late"}
    assert len(late) == 11
    assert all(row.usable_tokens <= row.lcp_tokens <= row.prompt_tokens for row in asked)


def test_what_was_lost_and_what_was_used_are_what_was_asked_for():
    asked, lost = _series()
    assert sum(row.tokens for row in lost) == sum(row.prompt_tokens - row.usable_tokens for row in asked)


def test_a_free_port_is_free():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free_port()))
