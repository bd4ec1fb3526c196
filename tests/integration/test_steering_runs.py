"""Policies on a real store: what they read, do and record."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest
from databases import Database
from sqlalchemy import func, select
from steering_support import (
    ENGINE,
    NOW,
    Deck,
    Time,
    add_engine,
    add_prefix,
    deed,
    prefix_id,
    recoveries,
    running_deck,
)

from controlplane.clock import utc_now
from controlplane.errors import BadRequest
from controlplane.ingest.engines import register_engine
from controlplane.steering import desired
from controlplane.steering.policies import registry
from controlplane.steering.policies.kinds import DEFAULTS
from controlplane.steering.policies.runner import Ground, Occasion, run_now, run_policy
from controlplane.steering.policies.when import When
from controlplane.steering.scheduler import Scheduler
from controlplane.store.models import Command, Engine, Policy, PolicyRun


@pytest.fixture
def deck(tmp_path: Path, database: Database) -> Iterator[Deck]:
    with running_deck(tmp_path, database) as running:
        add_engine(running, utc_now())
        yield running


@pytest.fixture
def time(deck: Deck) -> Time:
    clock = Time()
    with deck.store.write() as session:
        registry.seed(session, NOW)
    return clock


def failing(deck: Deck, ground: Ground, time: Time, runs: int) -> list[str]:
    decisions = []
    for number in range(1, runs + 1):
        time.pass_(seconds=10)
        recoveries(deck, time.now - dt.timedelta(seconds=1), ok=0, failed=20 * number)
        decisions += [run["decision"] for run in run_policy(ground, "degrade", Occasion(trigger="schedule"))]
    return decisions


def test_degrade_steps_down_on_recorded_failures_and_warms_after_it(deck: Deck, time: Time) -> None:
    add_prefix(deck, 1, state="PARTIAL_OFFLOAD", tokens_served=500, gpu_bytes=0, host_bytes=10)
    ground = Ground(deck.store, deck.settings, time)
    assert failing(deck, ground, time, 3) == ["failing", "failing", "step_down"]
    with deck.store.read() as session:
        assert desired.effective(session, ENGINE, time.now).document == {"mode": "no_disk"}
        runs = session.scalars(select(PolicyRun).order_by(PolicyRun.id)).all()
        command = session.scalars(select(Command)).one()
    assert [run.decision for run in runs] == ["failing", "step_down", "warm"]
    assert runs[1].did["revisions"] == [1]
    assert runs[2].trigger == "alert"
    assert "no_disk" in runs[2].inputs["event"]
    assert (command.kind, command.actor) == ("warm", "policy:warm-up")
    assert command.arguments["prefix_ids"] == [prefix_id(1)]


def test_what_finds_nothing_new_waits_for_no_writer(deck: Deck, time: Time) -> None:
    ground = Ground(deck.store, deck.settings, time)
    first = run_policy(ground, "degrade", Occasion(trigger="schedule"))
    time.pass_(seconds=10)
    with deck.store.write():  # as long as somebody writes
        again = run_policy(ground, "degrade", Occasion(trigger="schedule"))
    assert [run["decision"] for run in again] == [run["decision"] for run in first]
    assert first[0]["id"] is not None
    assert again[0]["id"] is None


def test_a_run_settles_what_its_own_engine_was_asked_and_no_others(deck: Deck, time: Time) -> None:
    with deck.store.write() as session:
        register_engine(
            session, "other", boot_id="b", model="m", fingerprint="f", page_tokens=64, labels={}, observed={}
        )
    ground = Ground(deck.store, deck.settings, time)
    run_policy(ground, "scrub", Occasion(trigger="schedule"))
    with deck.store.write() as session:
        for command in session.scalars(select(Command)):
            command.status = "succeeded"
    time.pass_(seconds=10)
    run_policy(ground, "scrub", Occasion(trigger="schedule", only_engine="other"))
    with deck.store.read() as session:
        first = session.execute(select(PolicyRun.engine_id, PolicyRun.settled_at).order_by(PolicyRun.id).limit(2)).all()
    assert {engine: at is not None for engine, at in first} == {ENGINE: False, "other": True}


def test_a_person_who_holds_the_mode_is_left_alone(deck: Deck, time: Time) -> None:
    ground = Ground(deck.store, deck.settings, time)
    with deck.store.write() as session:
        desired.revise(
            session,
            deed(),
            engine_id=None,
            changes={"mode": "normal", "mode_expires_at": (NOW + dt.timedelta(hours=1)).isoformat()},
        )
    assert set(failing(deck, ground, time, 5)) == {"held_by_person"}


def test_a_dry_run_decides_and_changes_nothing(deck: Deck, time: Time) -> None:
    add_prefix(deck, 1, state="PARTIAL_OFFLOAD", tokens_served=500)
    recoveries(deck, NOW, ok=0, failed=0)
    runs = run_now(Ground(deck.store, deck.settings, time), deed(), "warm-up", dry_run=True)
    assert runs[0]["decision"] == "warm"
    assert runs[0]["did"] == {}
    with deck.store.read() as session:
        assert session.scalar(select(func.count()).select_from(Command)) == 0
        assert session.scalars(select(PolicyRun)).one().dry_run


def test_only_one_warm_command_is_in_flight(deck: Deck, time: Time) -> None:
    add_prefix(deck, 1, state="PARTIAL_OFFLOAD", tokens_served=500)
    recoveries(deck, NOW, ok=0, failed=0)
    ground = Ground(deck.store, deck.settings, time)
    decisions = [run_policy(ground, "warm-up", Occasion(trigger="schedule"))[0]["decision"] for _ in range(3)]
    assert decisions == ["warm", "in_flight", "in_flight"]


def test_runs_are_recorded_when_something_changes_and_now_and_then(deck: Deck, time: Time) -> None:
    ground = Ground(deck.store, deck.settings, time)
    for _ in range(6 * 60):  # an hour of nothing
        time.pass_(seconds=10)
        recoveries(deck, time.now, ok=0, failed=0)
        run_policy(ground, "degrade", Occasion(trigger="schedule"))
    with deck.store.read() as session:
        runs = session.scalars(select(PolicyRun)).all()
    assert {run.decision for run in runs} == {"too_few_samples"}
    assert len(runs) == 4


def test_a_silent_engine_is_not_steered(deck: Deck, time: Time) -> None:
    recoveries(deck, NOW - dt.timedelta(minutes=5), ok=0, failed=100)
    assert run_policy(Ground(deck.store, deck.settings, time), "degrade", Occasion(trigger="schedule")) == []


def test_a_paused_policy_runs_only_by_hand(deck: Deck, time: Time) -> None:
    recoveries(deck, NOW, ok=0, failed=0)
    with deck.client() as client:
        assert client.change_policy("degrade", reason="quiet", paused=True)["paused"]
    ground = Ground(deck.store, deck.settings, time)
    assert run_policy(ground, "degrade", Occasion(trigger="schedule")) == []
    assert len(run_now(ground, deed(), "degrade", dry_run=False)) == 1


def test_retention_runs_as_a_policy_and_says_what_went(deck: Deck, time: Time) -> None:
    recoveries(deck, NOW - dt.timedelta(days=2), ok=0, failed=1)
    ground = Ground(deck.store, deck.settings, time)
    (run,) = run_policy(ground, "retention", Occasion(trigger="schedule"))
    assert run["did"] == {"deleted_rows": {"metric_points": 2}}
    (run,) = run_policy(ground, "retention", Occasion(trigger="schedule"))
    assert run["decision"] == "nothing_to_trim"


def test_changed_parameters_are_checked_and_audited(deck: Deck, time: Time) -> None:
    with deck.client() as client:
        with pytest.raises(BadRequest, match="flap"):
            client.change_policy("degrade", reason="r", parameters={"step_up_below": 0.9})
        policy = client.change_policy("degrade", reason="r", parameters={"minimum_samples": 3}, every_seconds=20)
        assert (policy["parameters"]["minimum_samples"], policy["every_seconds"]) == (3, 20)
        (row,) = client.audit(action="change_policy")
        assert row["before"]["every_seconds"] == 10


def test_the_scheduler_seeds_once_and_follows_the_table(deck: Deck) -> None:
    scheduler = Scheduler(deck.store, deck.settings)
    scheduler.sync()
    always = {standing.name: standing.when for standing in DEFAULTS if not standing.paused}
    assert scheduler._jobs == always
    assert {"degrade", "warm-up", "retention", "compact", "scrub"} <= set(always)
    with deck.store.write() as session:
        session.get(Policy, "degrade").paused = True
        session.get(Policy, "warm-up").every_seconds = 7
    scheduler.sync()
    assert "degrade" not in scheduler._jobs
    assert scheduler._jobs["warm-up"] == When(every_seconds=7)
    with deck.store.write() as session:
        session.get(Policy, "degrade").paused_until = utc_now() - dt.timedelta(seconds=1)
        session.get(Policy, "scrub").cron = "0 3 * * sun"
    scheduler.sync()
    assert "degrade" in scheduler._jobs, "a pause that is over is over"
    assert scheduler._jobs["scrub"].cron == "0 3 * * sun"
    scheduler.stop()


def test_upkeep_sends_one_command_at_a_time(deck: Deck, time: Time) -> None:
    add_prefix(deck, 1, served_at=NOW - dt.timedelta(hours=2), changed_at=NOW - dt.timedelta(hours=3))
    add_prefix(deck, 2, served_at=NOW, changed_at=NOW - dt.timedelta(hours=3))
    add_prefix(deck, 3, pinned=True, changed_at=NOW - dt.timedelta(hours=3))
    recoveries(deck, NOW, ok=0, failed=0)
    with deck.store.write() as session:
        session.get(Engine, ENGINE).stats = {"fragmentation": {"all": 0.6}}
    ground = Ground(deck.store, deck.settings, time)
    for name, kind in (
        ("compact", "compact"),
        ("scrub", "scrub"),
        ("compress-idle", "compress"),
        ("offload-idle", "offload"),
    ):
        decisions = [run_now(ground, deed(), name, dry_run=False)[0]["decision"] for _ in range(2)]
        assert decisions == [kind, "in_flight"]
    with deck.store.read() as session:
        sent = {command.kind: command.arguments for command in session.scalars(select(Command))}
    assert sent["compress"] == {"prefix_ids": [prefix_id(1)]}
    assert sent["offload"] == {"prefix_ids": [prefix_id(1)], "tier": "host"}


def test_upkeep_leaves_a_tidy_engine_alone(deck: Deck, time: Time) -> None:
    recoveries(deck, NOW, ok=0, failed=0)
    ground = Ground(deck.store, deck.settings, time)
    for name, decision in (("compact", "fragmentation_unknown"), ("offload-idle", "nothing_idle")):
        assert run_now(ground, deed(), name, dry_run=False)[0]["decision"] == decision
