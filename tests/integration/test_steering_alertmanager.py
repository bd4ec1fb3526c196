"""Alerts that start policies: Alertmanager's webhook, and our own alerts; each once, however often it is told."""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from databases import Database
from sqlalchemy import func, select
from steering_support import ENGINE, NOW, Deck, Time, add_prefix, deck_with_policies, recoveries

from controlplane.auth import Role
from controlplane.errors import BadRequest, Forbidden, NotFound, Unavailable
from controlplane.steering import alerts
from controlplane.steering.alerts.inbound import run_waiting, take_change
from controlplane.steering.policies import runner
from controlplane.steering.policies.runner import Ground
from controlplane.store.models import Command, InboundAlert, PolicyRun

PAYLOAD: dict[str, Any] = {
    "version": "4",
    "groupKey": '{}:{alertname="NodeRestarted"}',
    "truncatedAlerts": 0,
    "status": "firing",
    "receiver": "kvdeck",
    "groupLabels": {"alertname": "NodeRestarted"},
    "commonLabels": {"alertname": "NodeRestarted"},
    "commonAnnotations": {},
    "externalURL": "http://127.0.0.1:9093",
    "alerts": [
        {
            "status": "firing",
            "labels": {"alertname": "NodeRestarted", "kvdeck_policy": "warm-up", "kvdeck_engine": ENGINE},
            "annotations": {"summary": "the node came back"},
            "startsAt": "2026-03-01T11:59:00.123Z",
            "endsAt": "0001-01-01T00:00:00Z",
            "generatorURL": "http://127.0.0.1:9090/graph",
            "fingerprint": "c6eb94a1b3e4f2d0",
        }
    ],
}


@pytest.fixture
def deck(tmp_path: Path, database: Database) -> Iterator[Deck]:
    with deck_with_policies(tmp_path, database) as running:
        with running.store.write() as session:
            alerts.seed(session, NOW)
        add_prefix(running, 1, state="PARTIAL_OFFLOAD", tokens_served=500, gpu_bytes=0, host_bytes=10)
        yield running


@pytest.fixture
def ground(deck: Deck) -> Ground:
    return Ground(deck.store, deck.settings, Time())


def payload(**labels: str | None) -> dict[str, Any]:
    body = copy.deepcopy(PAYLOAD)
    for key, value in labels.items():
        if value is None:
            del body["alerts"][0]["labels"][key]
        else:
            body["alerts"][0]["labels"][key] = value
    return body


def sent_commands(deck: Deck) -> int:
    with deck.store.read() as session:
        return session.scalar(select(func.count()).select_from(Command)) or 0


def test_an_outside_alert_starts_a_warm_up_once(deck: Deck, ground: Ground) -> None:
    with deck.client() as client:
        assert client.alertmanager(PAYLOAD) == {"will_run": ["warm-up"], "repeated": 0, "ignored": 0, "refused": []}
        assert run_waiting(ground, 1) == 1
        for _ in range(3):
            assert client.alertmanager(PAYLOAD)["repeated"] == 1
        assert run_waiting(ground, 1) == 0
        assert sent_commands(deck) == 1
        (seen,) = client.get("/v1/alertmanager")
        assert (seen["deliveries"], seen["outcome"]["runs"][0]["decision"]) == (4, "warm")
    with deck.store.read() as session:
        run = session.scalars(select(PolicyRun)).one()
    assert (run.trigger, run.inputs["event"]) == ("alert", "outside alert NodeRestarted: the node came back")


def test_the_same_alert_that_begins_again_runs_again(deck: Deck, ground: Ground) -> None:
    again = copy.deepcopy(PAYLOAD)
    again["alerts"][0]["startsAt"] = "2026-03-01T13:00:00Z"
    with deck.client() as client:
        client.alertmanager(PAYLOAD)
        assert client.alertmanager(again)["will_run"] == ["warm-up"]
    assert run_waiting(ground, 1) == 2


def test_without_a_fingerprint_the_labels_make_it_one(deck: Deck) -> None:
    body = copy.deepcopy(PAYLOAD)
    del body["alerts"][0]["fingerprint"]
    with deck.client() as client:
        assert client.alertmanager(body)["will_run"] == ["warm-up"]
        assert client.alertmanager(body)["repeated"] == 1


def test_resolved_alerts_and_those_without_the_label_start_nothing(deck: Deck, ground: Ground) -> None:
    over = copy.deepcopy(PAYLOAD)
    over["alerts"][0]["status"] = "resolved"
    with deck.client() as client:
        assert client.alertmanager(over)["ignored"] == 1
        assert client.alertmanager(payload(kvdeck_policy=None))["ignored"] == 1
    assert run_waiting(ground, 1) == 0


def test_another_kind_of_policy_can_be_started_and_a_paused_one_is_not(deck: Deck, ground: Ground) -> None:
    with deck.client() as client:
        client.alertmanager(payload(kvdeck_policy="scrub"))
        client.change_policy("warm-up", paused=True, reason="quiet")
        client.alertmanager(PAYLOAD)
    assert run_waiting(ground, 1) == 2
    with deck.store.read() as session:
        assert session.scalars(select(Command.kind)).all() == ["scrub"]
        rows = {row.policy: row.outcome for row in session.scalars(select(InboundAlert))}
    assert rows["warm-up"] == {"runs": []}


@pytest.mark.parametrize(("label", "said"), [("kvdeck_policy", "no policy 'nobody'"), ("kvdeck_engine", "no engine")])
def test_names_there_are_none_of_are_refused(deck: Deck, label: str, said: str) -> None:
    with deck.client() as client, pytest.raises(NotFound, match=said):
        client.alertmanager(payload(**{label: "nobody"}))


def test_one_mistake_does_not_lose_the_others(deck: Deck) -> None:
    body = payload(kvdeck_policy="nobody")
    body["alerts"].append(PAYLOAD["alerts"][0])
    with deck.client() as client:
        said = client.alertmanager(body)
    assert said["will_run"] == ["warm-up"]
    assert said["refused"] == ["There is no policy 'nobody'."]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": "3"}, "version"),
        ({"version": None}, "version"),
        ({"alerts": []}, "alerts"),
        ({"alerts": None}, "alerts"),
        ({"status": "odd"}, "status"),
        ({"alerts": [{"status": "firing", "labels": {}, "startsAt": "then"}]}, "startsAt"),
        ({"alerts": [{"status": "firing", "labels": {"a": 5}, "startsAt": "2026-03-01T13:00:00Z"}]}, "labels"),
    ],
)
def test_a_bad_payload_is_refused_with_the_field(deck: Deck, change: dict[str, Any], said: str) -> None:
    with deck.client() as client, pytest.raises(BadRequest, match=said):
        client.alertmanager({**PAYLOAD, **change})


def test_it_needs_an_operators_bearer_token(deck: Deck) -> None:
    with deck.client(Role.VIEWER) as client, pytest.raises(Forbidden):
        client.alertmanager(PAYLOAD)
    assert httpx.post(f"{deck.url}/v1/alertmanager", json=PAYLOAD, trust_env=False).status_code == 401
    as_alertmanager = {"Authorization": f"Bearer {deck.tokens[Role.OPERATOR]}", "User-Agent": "Alertmanager/0.27.0"}
    taken = httpx.post(f"{deck.url}/v1/alertmanager", json=PAYLOAD, headers=as_alertmanager, trust_env=False)
    assert taken.status_code == 202


def test_what_a_dead_leader_took_is_taken_again(deck: Deck, ground: Ground) -> None:
    with deck.client() as client:
        client.alertmanager(PAYLOAD)
    with deck.store.write() as session:
        session.scalars(select(InboundAlert)).one().taken_at = NOW
    assert run_waiting(ground, 1) == 0
    late = Ground(deck.store, deck.settings, lambda: NOW + dt.timedelta(seconds=121))
    recoveries(deck, NOW + dt.timedelta(seconds=120), ok=0, failed=0)
    assert run_waiting(late, 1) == 1
    assert sent_commands(deck) == 1


def test_what_a_database_that_was_away_kept_from_running_is_taken_again(
    deck: Deck, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise Unavailable("database", "The database is away.", "Start it.")

    with deck.client() as client:
        client.alertmanager(PAYLOAD)
    monkeypatch.setattr(runner, "apply", away)
    with pytest.raises(Unavailable):
        run_waiting(ground, 1)
    monkeypatch.undo()
    late = Ground(deck.store, deck.settings, lambda: NOW + dt.timedelta(seconds=121))
    recoveries(deck, NOW + dt.timedelta(seconds=120), ok=0, failed=0)
    assert run_waiting(late, 1) == 1
    assert sent_commands(deck) == 1


def test_our_own_alerts_start_the_warm_ups_that_wait_for_them(deck: Deck, ground: Ground) -> None:
    change = alerts.Change(
        alert_id=1,
        rule="recovery_failure_rate",
        engine_id=ENGINE,
        state="firing",
        severity="critical",
        summary="Recoveries fail",
    )
    with deck.client() as client:
        client.add_policy("on-gaps", "warmup", parameters={"on_alerts": ["history_gaps_open"]}, reason="another")
    with deck.store.write() as session:
        assert take_change(session, change, NOW) == ["warm-up"]
    assert run_waiting(ground, 1) == 1
    with deck.store.read() as session:
        run = session.scalars(select(PolicyRun)).one()
    assert (run.policy, run.decision) == ("warm-up", "warm")
    assert "recovery_failure_rate is firing" in run.inputs["event"]
