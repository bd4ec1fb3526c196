"""Who is told of alerts, by real HTTP receivers that work, fail, are slow or go away; on a real store."""

from __future__ import annotations

import datetime as dt
import json
import logging
import threading
import time as clock_of_the_machine
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from databases import Database
from sqlalchemy import select
from steering_support import ENGINE, NOW, Deck, Time, add_engine, free_port, running_deck

from controlplane.auth import Role
from controlplane.clock import utc_now
from controlplane.errors import BadRequest, Conflict, Forbidden
from controlplane.steering import alerts
from controlplane.steering.alerts import deliver, outbox
from controlplane.store.models import Engine, Notification
from controlplane.store.retention import forget_old

SECRET = "a secret of sixteen letters"


class Hook:
    """A receiver: what it got, and what it answers next (200 when nothing else was asked for)."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        self.headers: dict[str, str] = {}
        self.slow = threading.Event()
        self.slow.set()
        self.url = ""

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.got]


@contextmanager
def hook() -> Iterator[Hook]:
    state = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.got.append(({key.lower(): value for key, value in self.headers.items()}, body))
            state.slow.wait(30)
            try:
                self.send_response(state.answers.pop(0) if state.answers else 200)
                for key, value in state.headers.items():
                    self.send_header(key, value)
                self.end_headers()
            except OSError:
                pass  # the sender did not wait

        def log_message(self, *_: object) -> None:
            """Says nothing on the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/hook/very-secret-path"
    try:
        yield state
    finally:
        state.slow.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def deck(tmp_path: Path, database: Database) -> Iterator[Deck]:
    with running_deck(tmp_path, database) as running:
        add_engine(running, utc_now())
        with running.store.write() as session:
            alerts.seed(session, NOW)
        yield running


@pytest.fixture
def time() -> Time:
    return Time()


def add(deck: Deck, name: str, url: str, **more: Any) -> None:
    with deck.client(Role.ADMIN) as client:
        client.add_receiver(name, url, reason="test", **{"secret": SECRET, **more})


def silent(deck: Deck, time: Time, seconds: float) -> None:
    """One evaluation of an engine that is silent for so long: above 15 s it is an alert after 15 s more."""
    with deck.store.write() as session:
        session.get(Engine, ENGINE).last_seen_at = time.now - dt.timedelta(seconds=seconds)
        alerts.evaluate(session, time.now)


def fire(deck: Deck, time: Time) -> None:
    silent(deck, time, 20)
    time.pass_(seconds=15)
    silent(deck, time, 35)


def send(deck: Deck, time: Callable[[], dt.datetime]) -> int:
    return deliver.deliver_due(deck.store, time, lambda: 0.5)


def rows(deck: Deck) -> list[Notification]:
    with deck.store.read() as session:
        return list(session.scalars(select(Notification).order_by(Notification.created_at, Notification.id)))


def test_each_change_is_told_once_signed_and_with_an_id(deck: Deck, time: Time) -> None:
    with hook() as receiver:
        add(deck, "on-call", receiver.url)
        fire(deck, time)
        assert send(deck, time) == 1
        time.pass_(seconds=30)
        silent(deck, time, 65)
        assert send(deck, time) == 0, "it still fires: nothing new"
        silent(deck, time, 1)
        assert send(deck, time) == 1
        assert send(deck, time) == 0
        assert [body["state"] for body in receiver.bodies] == ["firing", "resolved"]
        for headers, body in receiver.got:
            stamp = headers[deliver.TIME_HEADER.lower()]
            assert headers[deliver.SIGNATURE_HEADER.lower()] == deliver.sign(SECRET, stamp, body)
            assert deliver.sign("another secret, also long", stamp, body) != deliver.sign(SECRET, stamp, body)
            assert headers[deliver.ID_HEADER.lower()] == json.loads(body)["id"]
        body = receiver.bodies[0]
        assert (body["rule"], body["engine"], body["severity"]) == ("engine_silent", ENGINE, "critical")
        assert body["runbook"].endswith("#engine_silent")
    assert [row.status for row in rows(deck)] == ["delivered", "delivered"]


def test_a_failing_receiver_is_tried_again_with_growing_waits_and_one_id(deck: Deck, time: Time) -> None:
    with hook() as receiver:
        add(deck, "on-call", receiver.url)
        receiver.answers = [500, 503, 200]
        fire(deck, time)
        assert send(deck, time) == 0
        assert send(deck, time) == 0, "not before its wait is over"
        assert len(receiver.got) == 1
        time.pass_(seconds=4)  # 5 s, of which half is chance: 3.75 s
        assert send(deck, time) == 0
        time.pass_(seconds=4)
        assert send(deck, time) == 0
        assert len(receiver.got) == 2, "the second wait is longer"
        time.pass_(seconds=4)
        assert send(deck, time) == 1
        assert len({body["id"] for body in receiver.bodies}) == 1
    (row,) = rows(deck)
    assert (row.status, row.attempts, row.last_error) == ("delivered", 3, None)


def test_a_receiver_that_asks_for_time_gets_it(deck: Deck, time: Time) -> None:
    with hook() as receiver:
        add(deck, "on-call", receiver.url)
        receiver.answers, receiver.headers = [429], {"Retry-After": "60"}
        fire(deck, time)
        send(deck, time)
        time.pass_(seconds=59)
        assert send(deck, time) == 0
        time.pass_(seconds=1)
        assert send(deck, time) == 1


def test_a_receiver_that_says_the_request_is_wrong_is_not_asked_again(deck: Deck, time: Time) -> None:
    with hook() as receiver:
        add(deck, "on-call", receiver.url)
        receiver.answers = [404]
        fire(deck, time)
        send(deck, time)
    (row,) = rows(deck)
    assert row.status == "failed"
    assert "answered 404" in row.last_error


def test_after_a_day_nobody_tries_any_more(deck: Deck, time: Time) -> None:
    add(deck, "on-call", f"http://127.0.0.1:{free_port()}/", secret="")
    fire(deck, time)
    send(deck, time)
    (row,) = rows(deck)
    assert (row.status, row.last_error.split()[0]) == ("pending", "ConnectError")
    time.pass_(hours=24)
    send(deck, time)
    assert rows(deck)[0].status == "failed"


def test_a_slow_receiver_is_cut_off_and_keeps_nobody_else_waiting(deck: Deck, time: Time) -> None:
    with hook() as slow, hook() as quick:
        slow.slow.clear()
        add(deck, "slow", slow.url, timeout_seconds=1)
        add(deck, "quick", quick.url)
        fire(deck, time)
        began = clock_of_the_machine.monotonic()
        assert send(deck, time) == 1
        assert clock_of_the_machine.monotonic() - began < 25, "the limit is the receiver's, not the hook's 30 s"
    by_receiver = {row.receiver: row for row in rows(deck)}
    assert by_receiver["quick"].status == "delivered"
    assert (by_receiver["slow"].status, by_receiver["slow"].last_error.split()[0]) == ("pending", "ReadTimeout")


def test_a_restart_loses_nothing_and_a_claim_is_not_sent_twice(deck: Deck, time: Time) -> None:
    with hook() as receiver:
        add(deck, "on-call", receiver.url)
        fire(deck, time)
        with deck.store.write() as session:
            assert len(deliver._claim(session, time.now)) == 1  # a leader that dies before it sends
        assert send(deck, time) == 0, "another leader waits for the claim to run out"
        time.pass_(seconds=90)
        assert send(deck, time) == 1
        assert len(receiver.got) == 1


def test_the_end_is_not_told_before_the_beginning(deck: Deck, time: Time) -> None:
    with hook() as receiver:
        add(deck, "on-call", receiver.url)
        receiver.answers = [500]
        fire(deck, time)
        send(deck, time)
        silent(deck, time, 1)
        assert send(deck, time) == 0, "the resolution waits for the firing"
        time.pass_(seconds=5)
        assert send(deck, time) == 1
        assert send(deck, time) == 1
        assert [body["state"] for body in receiver.bodies] == ["firing", "firing", "resolved"]


def test_only_severe_enough_alerts_are_told_and_only_who_heard_of_the_firing_hears_of_the_end(
    deck: Deck, time: Time
) -> None:
    with hook() as receiver:
        with deck.client() as client:
            client.change_rule("engine_silent", severity="warning", reason="less")
        add(deck, "pager", receiver.url, least_severity="critical")
        fire(deck, time)
        add(deck, "late", receiver.url, least_severity="info")
        silent(deck, time, 1)
    assert rows(deck) == []


def test_the_queue_of_a_receiver_is_bounded(deck: Deck, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST_PENDING", 1)
    add(deck, "on-call", f"http://127.0.0.1:{free_port()}/")
    fire(deck, time)
    silent(deck, time, 1)
    assert sorted(row.status for row in rows(deck)) == ["dropped", "pending"]
    with deck.client() as client:
        (seen,) = client.receivers()
        assert (seen["pending"], seen["dropped"]) == (1, 1)


def test_secrets_are_neither_read_nor_logged_nor_audited(
    deck: Deck, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = f"http://user:pass@127.0.0.1:{free_port()}/hook/very-secret-path"
    add(deck, "on-call", url)
    fire(deck, time)
    send(deck, time)
    with deck.client(Role.ADMIN) as client:
        client.change_receiver("on-call", secret="another secret of some length", reason="rotated")
        seen = json.dumps([client.receivers(), client.notifications(), client.audit()])
        with pytest.raises(BadRequest) as refused:
            client.add_receiver("bad", "ftp://host/very-secret-path", secret=SECRET, reason="r")
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("controlplane")]
    assert any("was not told" in message for message in ours)
    for said in (seen, str(refused.value), *ours):
        for secret in ("very-secret-path", SECRET, "another secret of", "user:pass"):
            assert secret not in said


def test_only_admins_say_who_is_told(deck: Deck) -> None:
    with deck.client() as client:
        for write in (
            lambda: client.add_receiver("x", "http://127.0.0.1/", reason="r"),
            lambda: client.change_receiver("x", reason="r", enabled=False),
            lambda: client.remove_receiver("x", reason="r"),
        ):
            with pytest.raises(Forbidden):
                write()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"url": "file:///etc/passwd"}, "http"),
        ({"url": "http://"}, "http"),
        ({"url": "http://host:99999/"}, "http"),
        ({"secret": "short"}, "16 to 256"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"least_severity": "dire"}, "least_severity"),
        ({"name": "Bad Name"}, "cannot name"),
    ],
)
def test_a_receiver_that_cannot_be_is_refused(deck: Deck, change: dict[str, Any], said: str) -> None:
    body = {"name": "x", "url": "http://127.0.0.1/", "reason": "r"} | change
    with deck.client(Role.ADMIN) as client, pytest.raises(BadRequest, match=said):
        client._post("/v1/receivers", body)


def test_a_receiver_can_be_switched_off_and_removed(deck: Deck, time: Time) -> None:
    add(deck, "on-call", f"http://127.0.0.1:{free_port()}/")
    fire(deck, time)
    with deck.client(Role.ADMIN) as client:
        with pytest.raises(Conflict, match="already"):
            client.add_receiver("on-call", "http://127.0.0.1/", reason="again")
        client.remove_receiver("on-call", reason="gone")
        assert client.receivers() == []
        (row,) = client.notifications(status="failed")
        assert row["last_error"] == "the receiver was removed"
    assert send(deck, time) == 0


def test_old_notifications_are_forgotten_and_waiting_ones_are_not(deck: Deck, time: Time) -> None:
    add(deck, "on-call", f"http://127.0.0.1:{free_port()}/")
    fire(deck, time)
    far = time.now + dt.timedelta(days=deck.settings.keep_history_days + 1)
    assert forget_old(deck.store, deck.settings, far).get("notifications") == 0
    with deck.store.write() as session:
        row = session.scalars(select(Notification)).one()
        row.status, row.ended_at = "failed", time.now
    assert forget_old(deck.store, deck.settings, far)["notifications"] == 1
