"""What time does to commands, and what a new leadership does."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest
from databases import Database
from sqlalchemy import select
from steering_support import (
    ENGINE,
    NOW,
    Deck,
    add_engine,
    deed,
    draft,
    running_deck,
)

from controlplane.clock import utc_now
from controlplane.errors import Conflict, NotFound
from controlplane.steering import commands
from controlplane.steering.deed import Deed
from controlplane.steering.leader import SingleProcessLeadership, newest_epoch
from controlplane.steering.scheduler import Scheduler
from controlplane.store.models import Command, Engine, LeadershipRow


@pytest.fixture
def deck(tmp_path: Path, database: Database) -> Iterator[Deck]:
    with running_deck(tmp_path, database) as running:
        add_engine(running, utc_now())
        yield running


def test_what_no_engine_takes_expires(deck: Deck) -> None:
    with deck.store.write() as session:
        command = commands.submit(session, deed(), draft(expires_seconds=10))
    for seconds, expired in ((9, 0), (10, 1), (11, 0)):
        with deck.store.write() as session:
            assert len(commands.expire_overdue(session, NOW + dt.timedelta(seconds=seconds))) == expired
    with deck.store.read() as session:
        assert session.get(Command, command.id).outcome == {"reason": "not_taken_in_time"}


def test_a_taken_command_waits_for_a_live_engine_but_not_for_a_dead_one(deck: Deck) -> None:
    with deck.store.write() as session:
        session.get(Engine, ENGINE).last_seen_at = NOW
        commands.submit(session, deed(), draft(expires_seconds=10))
        assert len(commands.take_waiting(session, ENGINE, NOW)) == 1
        assert commands.expire_overdue(session, NOW + dt.timedelta(seconds=30)) == []
        (dead,) = commands.expire_overdue(session, NOW + dt.timedelta(seconds=61))
        assert dead.outcome == {"reason": "engine_silent"}


def test_the_engines_own_word_replaces_the_guess_of_the_sweep(deck: Deck) -> None:
    with deck.store.write() as session:
        session.get(Engine, ENGINE).last_seen_at = NOW
        command = commands.submit(session, deed(), draft(expires_seconds=10))
        commands.take_waiting(session, ENGINE, NOW)
        commands.expire_overdue(session, NOW + dt.timedelta(hours=1))
        said = commands.Report(status="succeeded", progress={}, outcome={"unpinned": 1})
        commands.report(session, ENGINE, command.id, said, NOW + dt.timedelta(hours=2))
        commands.report(session, ENGINE, command.id, said, NOW + dt.timedelta(hours=3))
        assert (command.status, command.outcome) == ("succeeded", {"unpinned": 1, "late": True})
        other = commands.Report(status="failed", progress={}, outcome={})
        with pytest.raises(Conflict):
            commands.report(session, ENGINE, command.id, other, NOW)


def test_a_command_unheard_of_is_handed_out_again(deck: Deck) -> None:
    with deck.store.write() as session:
        command = commands.submit(session, deed(), draft())
        assert [c.id for c in commands.take_waiting(session, ENGINE, NOW)] == [command.id]
        assert commands.take_waiting(session, ENGINE, NOW + dt.timedelta(seconds=14)) == []
        assert len(commands.take_waiting(session, ENGINE, NOW + dt.timedelta(seconds=15))) == 1
        assert commands.take_waiting(session, ENGINE, NOW + dt.timedelta(seconds=16)) == []


def test_another_engines_outcome_is_not_taken(deck: Deck) -> None:
    with deck.store.write() as session:
        command = commands.submit(session, deed(), draft())
        with pytest.raises(NotFound):
            commands.report(
                session, "engine-2", command.id, commands.Report(status="failed", progress={}, outcome={}), NOW
            )


def test_a_new_leadership_adopts_what_people_have_waiting_and_fences_policies(deck: Deck) -> None:
    from controlplane.steering.deed import policy_principal

    first = SingleProcessLeadership(deck.store)
    first.try_lead()
    with deck.store.write() as session:
        by_person = commands.submit(session, deed(), draft())
        by_policy = commands.submit(session, Deed(principal=policy_principal("warm-up"), reason="r"), draft(epoch=1))
    second = SingleProcessLeadership(deck.store)
    second.try_lead()
    assert (first.epoch, second.epoch) == (1, 2)
    with deck.store.read() as session:
        assert newest_epoch(session) == 2
        assert session.get(Command, by_person.id).epoch == 2
        assert session.get(Command, by_policy.id).epoch == 1


def test_a_leader_with_nothing_to_do_says_that_it_leads(deck: Deck) -> None:
    began = utc_now()
    at = [began]
    scheduler = Scheduler(deck.store, deck.settings, clock=lambda: at[0])
    for later, seen in ((0, None), (30, 30), (45, 30), (51, 51)):
        at[0] = began + dt.timedelta(seconds=later)
        scheduler.sync()
        with deck.store.read() as session:
            said = session.scalars(select(LeadershipRow.seen_at)).one()
        if seen is not None:
            assert said == began + dt.timedelta(seconds=seen)
    scheduler.stop()
