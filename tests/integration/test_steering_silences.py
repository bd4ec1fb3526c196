"""Silences of alerts on a real store: what they keep quiet, that they are seen and end, and which cannot be."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest
from alert_support import alert_deck, alive, open_gap
from databases import Database
from sqlalchemy import select
from steering_support import ENGINE, Deck

from controlplane.clock import utc_now
from controlplane.errors import BadRequest, Conflict
from controlplane.steering import alerts
from controlplane.steering.alerts import silences
from controlplane.store.models import (
    Alert,
    Engine,
)


@pytest.fixture
def deck(tmp_path: Path, database: Database) -> Iterator[Deck]:
    with alert_deck(tmp_path, database) as running:
        yield running


def test_a_silence_keeps_quiet_is_seen_and_ends(deck: Deck) -> None:
    open_gap(deck)
    until = utc_now() + dt.timedelta(hours=1)
    with deck.client() as client:
        made = client.silence({"rule": "history_*", "engine": ENGINE}, until=until.isoformat(), reason="moving")
        assert made["holds"]
    at = utc_now()
    alive(deck, at)
    with deck.store.write() as session:
        alerts.evaluate(session, at)
        session.get(Engine, ENGINE).last_seen_at = at + dt.timedelta(seconds=31)
        alerts.evaluate(session, at + dt.timedelta(seconds=31))
        alert = session.scalars(select(Alert)).one()
        assert (alert.state, alert.silence_id, alert.notified_at) == ("firing", made["id"], None)
    with deck.client() as client:
        assert not client.unsilence(made["id"], reason="moved")["holds"]
        assert client.silences() == []
        assert client.silences(everything=True)[0]["removed_by"] == "test-operator"
        with pytest.raises(Conflict, match="already over"):
            client.unsilence(made["id"], reason="again")
    with deck.store.write() as session:
        alerts.evaluate(session, at + dt.timedelta(seconds=32))
        alert = session.scalars(select(Alert)).one()
        assert (alert.silence_id, alert.notified_at) == (None, at + dt.timedelta(seconds=32))


def test_a_silence_of_another_group_or_namespace_does_not_match(deck: Deck) -> None:
    facets = silences.Facets(rule="engine_silent", engine=ENGINE, group="chat", namespace="")
    assert silences.matches({"group": "ch*"}, facets)
    assert not silences.matches({"group": "batch"}, facets)
    assert not silences.matches({"rule": "engine_silent", "namespace": "tenant-a"}, facets)


@pytest.mark.parametrize(
    ("matchers", "hours", "said"),
    [({}, 1, "needs a matcher"), ({"rule": "x"}, -1, "until must lie"), ({"rule": "x"}, 24 * 40, "until must lie")],
)
def test_a_silence_that_cannot_be_is_refused(deck: Deck, matchers: dict[str, str], hours: int, said: str) -> None:
    until = (utc_now() + dt.timedelta(hours=hours)).isoformat()
    with deck.client() as client, pytest.raises(BadRequest, match=said):
        client.silence(matchers, until=until, reason="r")
