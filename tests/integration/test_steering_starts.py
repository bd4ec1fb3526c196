"""Engines that start again: the warm-ups that wait for it run once, and none is lost on its way; on a real store."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from databases import Database
from sqlalchemy import select
from steering_support import (
    ENGINE,
    NOW,
    Deck,
    Time,
    add_prefix,
    alive,
    deck_with_policies,
    deed,
    finish,
    prefix_id,
)

from controlplane.errors import Unavailable
from controlplane.steering import commands
from controlplane.steering.policies import runner
from controlplane.steering.policies.runner import Ground
from controlplane.steering.policies.starts import run_on_starts
from controlplane.store.models import PolicyRun


@pytest.fixture
def deck(tmp_path: Path, database: Database) -> Iterator[Deck]:
    with deck_with_policies(tmp_path, database) as running:
        yield running


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def ground(deck: Deck, time: Time) -> Ground:
    return Ground(deck.store, deck.settings, time)


def test_an_engine_that_starts_again_is_warmed_once_when_its_snapshot_has_come(
    deck: Deck, ground: Ground, time: Time
) -> None:
    add_prefix(deck, 1, state="PARTIAL_OFFLOAD", tokens_served=500, gpu_bytes=0, disk_bytes=10)
    alive(deck, NOW, snapshot_wanted=False)
    assert run_on_starts(ground, 1) == [], "the first boot heard of is no restart"
    alive(deck, NOW, boot_id="boot-2", snapshot_wanted=True)
    assert run_on_starts(ground, 1) == []
    alive(deck, NOW, snapshot_wanted=False)
    assert run_on_starts(ground, 1) == [("warm-up", ENGINE)]
    assert run_on_starts(ground, 1) == []
    with deck.store.read() as session:
        run = session.scalars(select(PolicyRun)).one()
    assert (run.trigger, run.decision) == ("engine_start", "warm")
    assert "boot-2" in run.inputs["event"]


def restarted(deck: Deck, ground: Ground, at: dt.datetime = NOW) -> None:
    """An engine that was known has a new boot, with something to warm."""
    add_prefix(deck, 1, state="PARTIAL_OFFLOAD", tokens_served=500, gpu_bytes=0, disk_bytes=10)
    alive(deck, at, snapshot_wanted=False)
    assert run_on_starts(ground, 1) == []
    alive(deck, at, boot_id="boot-2", registered_at=at)


def recorded(deck: Deck) -> list[tuple[str, str]]:
    with deck.store.read() as session:
        return [(run.trigger, run.decision) for run in session.scalars(select(PolicyRun).order_by(PolicyRun.id))]


def test_a_start_waits_for_a_warm_command_that_the_boot_before_left_under_way(deck: Deck, ground: Ground) -> None:
    alive(deck, NOW)
    draft = commands.Draft(engine_id=ENGINE, kind="warm", arguments={"prefix_ids": [prefix_id(2)]})
    with deck.store.write() as session:
        commands.submit(session, deed(), draft)
    restarted(deck, ground)
    for _ in range(3):
        assert run_on_starts(ground, 1) == [("warm-up", ENGINE)]
    assert recorded(deck) == [("engine_start", "in_flight")]
    finish(deck, "succeeded", {"warmed": 1, "bytes": 1, "failed": []})
    assert run_on_starts(ground, 1) == [("warm-up", ENGINE)]
    assert run_on_starts(ground, 1) == []
    assert recorded(deck) == [("engine_start", "in_flight"), ("engine_start", "warm")]


def test_a_start_waits_for_a_mode_that_allows_it_but_not_for_ever(deck: Deck, ground: Ground, time: Time) -> None:
    def mode(name: str) -> None:
        with deck.client() as client:
            client.set_desired({"mode": name}, engine=ENGINE, reason="for this test")

    mode("resident_only")
    restarted(deck, ground)
    assert run_on_starts(ground, 1) == run_on_starts(ground, 1) == [("warm-up", ENGINE)]
    assert recorded(deck) == [("engine_start", "mode_forbids")]
    time.pass_(minutes=11)
    alive(deck, time.now)
    mode("normal")
    assert run_on_starts(ground, 1) == run_on_starts(ground, 1) == [], "ten minutes later it is no start any more"
    alive(deck, time.now, boot_id="boot-3", registered_at=time.now)
    assert run_on_starts(ground, 1) == [("warm-up", ENGINE)]
    assert recorded(deck)[-1] == ("engine_start", "warm")


def test_a_start_is_not_lost_to_a_database_that_was_away(
    deck: Deck, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarted(deck, ground)

    def away(*_: Any, **__: Any) -> None:
        raise Unavailable("database", "The database is away.", "Start it.")

    monkeypatch.setattr(runner, "apply", away)
    with pytest.raises(Unavailable):
        run_on_starts(ground, 1)
    assert recorded(deck) == []
    monkeypatch.undo()
    assert run_on_starts(ground, 1) == [("warm-up", ENGINE)]
    assert (run_on_starts(ground, 1), recorded(deck)) == ([], [("engine_start", "warm")])


def test_a_rule_that_fails_on_a_start_is_not_run_for_it_again(
    deck: Deck, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarted(deck, ground)

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(runner, "DECIDERS", {**runner.DECIDERS, "warmup": broken})
    assert run_on_starts(ground, 1) == [("warm-up", ENGINE)]
    assert (run_on_starts(ground, 1), recorded(deck)) == ([], [("engine_start", "failed")])
