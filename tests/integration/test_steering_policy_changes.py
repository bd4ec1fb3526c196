"""Policies that people create and change, what starts them, and what their records say afterwards; on a real store."""

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
    add_engine,
    add_prefix,
    alive,
    deck_with_policies,
    deed,
    finish,
    prefix_id,
    recoveries,
)

from controlplane.auth import Role
from controlplane.clock import utc_now
from controlplane.errors import BadRequest, Conflict, Forbidden, NotFound
from controlplane.steering import commands
from controlplane.steering.policies import registry, runner
from controlplane.steering.policies.runner import Ground, Occasion, run_now, run_policy
from controlplane.steering.policies.settle import settle
from controlplane.steering.policies.why import why
from controlplane.store.models import Policy, PolicyRefusal, PolicyRun, PrefixLabel

SCHEDULED = Occasion(trigger="schedule")


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


def decisions(runs: list[dict[str, Any]]) -> list[str]:
    return [run["decision"] for run in runs]


def test_several_policies_of_a_kind_have_names_and_scopes_of_their_own(deck: Deck, ground: Ground) -> None:
    add_engine(deck, NOW, "engine-2")
    alive(deck, NOW, "engine-2", group_name="chat", stats={"fragmentation": {"all": 0.9}})
    alive(deck, NOW, stats={"fragmentation": {"all": 0.9}})
    with deck.client() as client:
        made = client.add_policy(
            "compact-chat",
            "compact",
            parameters={"fragmentation_above": 0.5},
            scope={"group": "chat"},
            cron="*/5 * * * *",
            time_zone="Europe/Berlin",
            reason="chat fragments",
        )
        assert (made["cron"], made["every_seconds"], made["parameters"]["max_pages"]) == ("*/5 * * * *", None, 4096)
        assert len(client.policy("compact-chat")["next_at"]) == 3
        with pytest.raises(Conflict, match="already"):
            client.add_policy("compact-chat", "compact", reason="again")
        with pytest.raises(Conflict, match="one store"):
            client.add_policy("retention-2", "retention", reason="two")
    assert [run["engine"] for run in run_policy(ground, "compact-chat", SCHEDULED)] == ["engine-2"]
    with deck.client() as client:
        changed = client.change_policy("compact-chat", every_seconds=30, scope={}, reason="everywhere")
        assert (changed["cron"], changed["every_seconds"], changed["scope"]) == (None, 30, {})
        back = client.change_policy("compact-chat", parameters={"fragmentation_above": None}, reason="default")
        assert back["parameters"]["fragmentation_above"] == 0.4
        client.remove_policy("compact-chat", reason="done")
        with pytest.raises(NotFound):
            client.policy("compact-chat")
        assert client.policy_why("compact-chat")["answers"], "what it decided stays on record"
        with pytest.raises(Conflict, match="Pause it"):
            client.remove_policy("degrade", reason="no")
        assert {"create_policy", "change_policy", "remove_policy"} <= {row["action"] for row in client.audit()}


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"name": "Bad"}, "cannot name a policy"),
        ({"name": "runs"}, "cannot name a policy"),
        ({"kind": "guess"}, "no policy kind"),
        ({"cron": "* * *"}, "has 3 fields"),
        ({"cron": "61 * * * *"}, "minute '61'"),
        ({"cron": "0 25 * * *"}, "hour '25'"),
        ({"cron": "0 0 * * 8"}, "day of week '8'"),
        ({"cron": "0 0 1 * mon"}, "day of the month and the day of the week"),
        ({"cron": "0 0 31 2 *"}, "never comes"),
        ({"cron": "0 0 * * *", "time_zone": "Mars/Base"}, "no time zone"),
        ({"cron": "0 0 * * *", "every_seconds": 5}, "both given"),
        ({"every_seconds": 0}, "every_seconds must be 1"),
        ({"parameters": {"max_bytes": "1 GiB"}}, "max_bytes must be a whole number of bytes"),
        ({"parameters": {"max_bytes": 0, "most_prefixes": 0}}, "max_bytes must be 1 .*; most_prefixes must be 1"),
        ({"parameters": {"labels": ["tier=gold", 5]}}, "labels must be a list"),
        ({"parameters": {"on_alerts": "all"}}, "on_alerts must be a list"),
        ({"scope": {"engine": "a", "group": "b"}}, "both given"),
        ({"kind": "scrub", "scope": {"namespace": "a"}}, "cannot be narrowed to a namespace"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_with_the_reason(deck: Deck, wanted: dict[str, Any], said: str) -> None:
    body = {"name": "mine", "kind": "warmup", "reason": "r"} | wanted
    with deck.client() as client, pytest.raises(BadRequest, match=said):
        client._post("/v1/policies", body)


def test_viewers_create_and_remove_nothing(deck: Deck) -> None:
    with deck.client(Role.VIEWER) as client:
        for write in (
            lambda: client.add_policy("mine", "warmup", reason="r"),
            lambda: client.remove_policy("warm-up", reason="r"),
        ):
            with pytest.raises(Forbidden):
                write()
        assert {kind["kind"] for kind in client.policy_kinds()} >= {"warmup", "degrade", "compress_idle"}


def test_a_pause_with_an_end_is_over_by_itself(deck: Deck, ground: Ground, time: Time) -> None:
    with deck.client() as client:
        until = utc_now() + dt.timedelta(hours=1)
        assert client.change_policy("scrub", paused_until=until.isoformat(), reason="busy")["paused"]
        with pytest.raises(BadRequest, match="next 31 days"):
            client.change_policy("scrub", paused_until="2020-01-01T00:00:00Z", reason="late")
    with deck.store.write() as session:
        session.get(Policy, "scrub").paused_until = NOW + dt.timedelta(minutes=5)
    assert run_policy(ground, "scrub", SCHEDULED) == []
    time.pass_(minutes=5)
    alive(deck, time.now)
    assert decisions(run_policy(ground, "scrub", SCHEDULED)) == ["scrub"]
    with deck.client() as client:
        resumed = client.change_policy("scrub", paused=False, reason="quiet again")
    assert (resumed["paused"], resumed["paused_until"]) == (False, None)


def test_warm_up_takes_pinned_and_labelled_prefixes_first_also_what_was_pinned_before_a_restart(
    deck: Deck, ground: Ground
) -> None:
    below = {"state": "PARTIAL_OFFLOAD", "gpu_bytes": 0, "disk_bytes": 10}
    add_prefix(deck, 1, tokens_served=900, **below)
    add_prefix(deck, 2, tokens_served=0, **below)
    add_prefix(deck, 3, tokens_served=0, **below)
    add_prefix(deck, 4, tokens_served=0, **below)
    with deck.store.write() as session:
        session.add(PrefixLabel(prefix_id=prefix_id(2), name="tier", value="gold", actor="a", at=NOW))
        pin = commands.Draft(engine_id=ENGINE, kind="pin", arguments={"prefix_ids": [prefix_id(3)], "ttl_s": 3600})
        command = commands.submit(session, deed(), pin)
        command.status = "succeeded"
    with deck.client() as client:
        client.change_policy("warm-up", parameters={"labels": ["tier=gold"]}, reason="gold first")
    (run,) = run_policy(ground, "warm-up", SCHEDULED)
    assert run["proposed"][0]["arguments"]["prefix_ids"] == [prefix_id(3), prefix_id(2), prefix_id(1)]
    assert (run["inputs"]["pinned"], run["inputs"]["labelled"]) == (1, 1)


def test_warm_up_of_a_namespace_leaves_the_others_and_keeps_its_rate(deck: Deck, ground: Ground, time: Time) -> None:
    add_prefix(deck, 1, namespace="tenant-a", state="PARTIAL_OFFLOAD", tokens_served=5, disk_bytes=60)
    add_prefix(deck, 2, state="PARTIAL_OFFLOAD", tokens_served=9, disk_bytes=60)
    with deck.client() as client:
        client.add_policy(
            "warm-a", "warmup", parameters={"max_bytes_per_hour": 100}, scope={"namespace": "tenant-a"}, reason="a"
        )
    (run,) = run_policy(ground, "warm-a", SCHEDULED)
    assert run["proposed"][0]["arguments"]["prefix_ids"] == [prefix_id(1)]
    finish(deck, "succeeded", {"warmed": 0, "bytes": 0, "failed": []})
    assert decisions(run_policy(ground, "warm-a", SCHEDULED)) == ["rate_spent"]
    time.pass_(hours=1, seconds=1)
    alive(deck, time.now)
    assert decisions(run_policy(ground, "warm-a", SCHEDULED)) == ["warm"]


def test_compress_idle_does_not_judge_refused_prefixes_again_at_once(deck: Deck, ground: Ground, time: Time) -> None:
    add_prefix(deck, 1, changed_at=NOW - dt.timedelta(hours=3))
    assert decisions(run_now(ground, deed(), "compress-idle", dry_run=False)) == ["compress"]
    refused = {"compressed": 0, "refused": [{"prefix_id": prefix_id(1), "reason": "quality_bound"}]}
    finish(deck, "refused", refused)
    (run,) = run_now(ground, deed(), "compress-idle", dry_run=False)
    assert (run["decision"], run["inputs"]["backing_off"]) == ("nothing_idle", 1)
    time.pass_(seconds=3601)
    alive(deck, time.now)
    assert decisions(run_now(ground, deed(), "compress-idle", dry_run=False)) == ["compress"]
    finish(deck, "refused", refused)
    with deck.store.write() as session:
        settle(session, time.now)
        row = session.scalars(select(PolicyRefusal)).one()
        assert (row.times, row.reason) == (2, "quality_bound")
        assert row.until - row.at == dt.timedelta(hours=2), "each refusal doubles the back-off"
    with deck.store.read() as session:
        first = session.scalars(select(PolicyRun).order_by(PolicyRun.id)).first()
    (end,) = first.changed["commands"].values()
    assert (end["status"], end["refused"]) == ("refused", {"quality_bound": 1})


def test_a_rule_that_raises_is_recorded_and_stops_nobody_else(
    deck: Deck, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_engine(deck, NOW, "engine-2")
    alive(deck, NOW, "engine-2")

    def broken(session: Any, standing: Any, engine_id: str, kept: Any, now: dt.datetime) -> Any:
        if engine_id == ENGINE:
            raise ZeroDivisionError("division by zero")
        return real(session, standing, engine_id, kept, now)

    real = runner.DECIDERS["scrub"]
    monkeypatch.setattr(runner, "DECIDERS", {**runner.DECIDERS, "scrub": broken})
    assert decisions(run_policy(ground, "scrub", SCHEDULED)) == ["failed", "scrub"]
    with deck.store.read() as session:
        run = session.scalars(select(PolicyRun).where(PolicyRun.decision == "failed")).one()
        assert run.error == "ZeroDivisionError: division by zero"
    monkeypatch.undo()
    finish(deck, "succeeded", {})
    assert decisions(run_policy(ground, "scrub", SCHEDULED)) == ["scrub", "scrub"]


def test_parameters_that_somebody_broke_in_the_table_are_recorded(deck: Deck, ground: Ground) -> None:
    with deck.store.write() as session:
        session.get(Policy, "scrub").parameters = {"max_bytes": "all"}
        session.get(Policy, "compact").every_seconds, session.get(Policy, "compact").cron = None, "nonsense"
    for name, said in (("scrub", "max_bytes"), ("compact", "nonsense")):
        (run,) = run_policy(ground, name, SCHEDULED)
        assert run["decision"] == "failed"
        assert said in run["error"]


def test_a_policy_whose_parameters_cannot_be_read_is_paused_but_not_tuned(deck: Deck) -> None:
    broken = {"max_bytes": "all"}
    with deck.store.write() as session:
        session.get(Policy, "scrub").parameters = broken
    with deck.store.write() as session:
        policy = registry.change(session, deed(), "scrub", {"paused": True})
        assert (policy.paused, policy.parameters) == (True, broken)
    with deck.store.write() as session, pytest.raises(BadRequest, match="max_bytes"):
        registry.change(session, deed(), "scrub", {"parameters": {"every": 1}})


def test_of_two_degrade_policies_the_nearer_one_steers(deck: Deck, ground: Ground) -> None:
    with deck.client() as client:
        client.add_policy("degrade-one", "degrade", scope={"engine": ENGINE}, every_seconds=10, reason="careful")
    (run,) = run_policy(ground, "degrade", SCHEDULED)
    assert (run["decision"], run["inputs"]["outranked_by"]) == ("outranked", "degrade-one")
    assert decisions(run_policy(ground, "degrade-one", SCHEDULED)) == ["too_few_samples"]


def test_why_is_answered_by_the_record_alone(deck: Deck, ground: Ground, time: Time) -> None:
    for number in range(1, 4):
        time.pass_(seconds=10)
        recoveries(deck, time.now - dt.timedelta(seconds=1), ok=0, failed=20 * number)
        run_policy(ground, "degrade", SCHEDULED)
    stepped = time.now
    alive(deck, stepped, observed_revision=1, observed={"mode": "no_disk"})
    with deck.store.write() as session:
        settle(session, stepped + dt.timedelta(seconds=5))
        session.get(Policy, "degrade").parameters = {**session.get(Policy, "degrade").parameters, "minimum_samples": 99}
    for _ in range(2):
        time.pass_(minutes=1)
        alive(deck, time.now)
        run_policy(ground, "degrade", SCHEDULED)
    with deck.store.read() as session:
        (answer,) = why(session, "degrade", stepped + dt.timedelta(seconds=20), ENGINE).answers
        said = "\n".join(answer.words)
        assert answer.run.decision == "step_down"
        assert "60 of 60 recoveries failed" in said
        assert "mode normal" in said
        assert "down above 20.0% for 3 evaluations" in said
        assert "at least 10 samples" in said, "the rule as it was then"
        assert "Rows: 3 bad, 0 good" in said
        assert "It set mode no_disk (revision 1): applied." in said
        (later,) = why(session, "degrade", time.now, ENGINE).answers
        assert (later.run.decision, later.acted.decision) == ("quiet", "step_down")
        assert why(session, "degrade", NOW - dt.timedelta(hours=1), ENGINE).answers == []
        with pytest.raises(NotFound):
            why(session, "nobody", NOW)
