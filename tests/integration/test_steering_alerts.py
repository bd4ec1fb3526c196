"""Alerts on a real store: pending, firing, resolved, acknowledged."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from databases import Database
from sqlalchemy import select
from steering_support import (
    ENGINE,
    NOW,
    Deck,
    add_engine,
    prefix_id,
    recoveries,
    running_deck,
)

from controlplane.clock import utc_now
from controlplane.errors import Conflict
from controlplane.steering import alerts
from controlplane.steering.notify import post_changes
from controlplane.store.models import Alert, Engine, HistoryGap


@pytest.fixture
def deck(tmp_path: Path, database: Database) -> Iterator[Deck]:
    with running_deck(tmp_path, database) as running:
        add_engine(running, utc_now())
        yield running


def alert_states(deck: Deck, now: dt.datetime) -> dict[str, str]:
    with deck.store.write() as session:
        alerts.evaluate(session, now)
    with deck.store.read() as session:
        return {alert.rule: alert.state for alert in session.scalars(select(Alert))}


def test_an_alert_is_pending_then_fires_then_is_over(deck: Deck) -> None:
    with deck.store.write() as session:
        session.get(Engine, ENGINE).last_seen_at = NOW + dt.timedelta(hours=1)
        gap = HistoryGap(
            engine_id=ENGINE, prefix_id=prefix_id(1), life=1, first_version=2, last_version=3, found_at=NOW
        )
        session.add(gap)
    assert alert_states(deck, NOW) == {"history_gaps_open": "pending"}
    assert alert_states(deck, NOW + dt.timedelta(seconds=29)) == {"history_gaps_open": "pending"}
    assert alert_states(deck, NOW + dt.timedelta(seconds=30)) == {"history_gaps_open": "firing"}
    with deck.client() as client:
        (alert,) = client.alerts(state="firing")
        assert client.acknowledge(alert["id"])["acknowledged_by"] == "test-operator"
    with deck.store.write() as session:
        session.get(HistoryGap, gap.id).closed_at = NOW
    assert alert_states(deck, NOW + dt.timedelta(seconds=40)) == {"history_gaps_open": "resolved"}
    with deck.client() as client, pytest.raises(Conflict, match="already over"):
        client.acknowledge(alert["id"])


def test_what_clears_before_it_fires_leaves_nothing(deck: Deck) -> None:
    with deck.store.write() as session:
        engine = session.get(Engine, ENGINE)
        engine.last_seen_at, engine.stats = NOW, {"fragmentation": {"all": 0.8}}
    assert alert_states(deck, NOW) == {"fragmentation_high": "pending"}
    with deck.store.write() as session:
        session.get(Engine, ENGINE).stats = {"fragmentation": {"all": 0.3}}
    assert alert_states(deck, NOW + dt.timedelta(seconds=5)) == {}


def test_a_silent_engine_raises_an_alert_but_not_while_a_restarted_deck_gathers(deck: Deck) -> None:
    with deck.store.write() as session:
        session.get(Engine, ENGINE).last_seen_at = NOW
    assert alert_states(deck, NOW + dt.timedelta(seconds=15)) == {}
    assert alert_states(deck, NOW + dt.timedelta(seconds=16)) == {"engine_silent": "pending"}
    assert alert_states(deck, NOW + dt.timedelta(seconds=31)) == {"engine_silent": "firing"}


def test_failing_recoveries_fire_and_an_end_of_recoveries_resolves(deck: Deck) -> None:
    recoveries(deck, NOW, ok=1, failed=9)
    assert alert_states(deck, NOW + dt.timedelta(seconds=5)) == {"recovery_failure_rate": "pending"}
    recoveries(deck, NOW + dt.timedelta(seconds=20), ok=1, failed=19)
    assert alert_states(deck, NOW + dt.timedelta(seconds=25)) == {"recovery_failure_rate": "firing"}
    recoveries(deck, NOW + dt.timedelta(seconds=200), ok=1, failed=19)
    assert alert_states(deck, NOW + dt.timedelta(seconds=201)) == {"recovery_failure_rate": "resolved"}


class Webhook(BaseHTTPRequestHandler):
    """Takes alerts, and refuses those of one rule."""

    got: ClassVar[list[dict[str, str]]] = []

    def do_POST(self) -> None:
        change = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.got.append(change)
        self.send_response(500 if change["rule"] == "refused" else 204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing on the terminal."""


def test_a_webhook_is_told_of_each_change_and_may_fail() -> None:
    with HTTPServer(("127.0.0.1", 0), Webhook) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/"
        changes = [
            alerts.Change(rule=rule, engine_id=ENGINE, state="firing", summary="s") for rule in ("refused", "taken")
        ]
        assert post_changes(url, changes) == 1
        server.shutdown()
        thread.join()
    assert [change["rule"] for change in Webhook.got] == ["refused", "taken"]
    assert Webhook.got[1] == {"rule": "taken", "engine_id": ENGINE, "state": "firing", "summary": "s"}
    assert post_changes(url, changes) == 0
    assert post_changes("", changes) == 0
