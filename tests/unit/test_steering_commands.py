"""Commands: the state table, and the arguments of each kind."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from controlplane.errors import BadRequest, Conflict
from controlplane.steering.command_kinds import KINDS, check_arguments
from controlplane.steering.command_states import LIVE, MEANINGS, TERMINAL, TRANSITIONS, move
from controlplane.store.models import Command

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
PREFIX = "ab" * 16
EDGES = [(a, b) for a in TRANSITIONS for b in TRANSITIONS]


def in_status(status: str) -> Command:
    return Command(id="c", status=status, finished_at=None, delivered_at=None)


@pytest.mark.parametrize(("before", "after"), [edge for edge in EDGES if edge[1] in TRANSITIONS[edge[0]]])
def test_every_edge_of_the_table_is_taken(before: str, after: str) -> None:
    command = in_status(before)
    move(command, after, NOW)
    assert command.status == after
    assert (command.finished_at is not None) == (after in TERMINAL)


@pytest.mark.parametrize(("before", "after"), [edge for edge in EDGES if edge[1] not in TRANSITIONS[edge[0]]])
def test_every_other_edge_is_refused_and_changes_nothing(before: str, after: str) -> None:
    command = in_status(before)
    with pytest.raises(Conflict, match=f"is {before} and cannot become {after}"):
        move(command, after, NOW)
    assert command.status == before
    assert command.finished_at is None


def test_the_table_knows_every_status_and_only_those() -> None:
    named = set(TRANSITIONS) | {status for after in TRANSITIONS.values() for status in after}
    assert named == {*LIVE, *TERMINAL}


def test_what_is_not_over_can_be_cancelled_and_what_the_sweep_guessed_is_not_final() -> None:
    cancellable = [status for status in TRANSITIONS if "cancelled" in TRANSITIONS[status]]
    assert cancellable == [*LIVE, "expired"]


def test_every_status_has_its_meaning() -> None:
    assert MEANINGS.keys() == TRANSITIONS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_takes_its_required_arguments_alone(kind: str) -> None:
    values: dict[str, Any] = {"prefix_ids": [PREFIX], "tier": "disk", "document": {"cap_prefixes": 5}, "plan": []}
    values["prefix_id"] = PREFIX
    required = {name: values[name] for name in KINDS[kind].required}
    assert check_arguments(kind, required).items() >= required.items()


@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        ("explode", {}, "no command 'explode'"),
        ("evict", {}, "prefix_ids is missing"),
        ("evict", {"prefix_ids": []}, "1 to 10000"),
        ("evict", {"prefix_ids": ["xyz"]}, "'xyz', which is no prefix id"),
        ("evict", {"prefix_ids": [PREFIX], "recursive": True}, "recursive is no argument of evict"),
        ("evict", {"prefix_ids": [PREFIX], "descendants": 1}, "true or false"),
        ("evict", {"prefix_ids": [PREFIX], "expect_versions": {PREFIX: 0}}, "versions you saw"),
        ("offload", {"prefix_ids": [PREFIX], "tier": "gpu"}, "one of host, disk"),
        ("pin", {"prefix_ids": [PREFIX], "ttl_s": 0}, "whole number from 1"),
        ("scrub", {"max_bytes": "all"}, "whole number"),
        ("offload", {"prefix_ids": [PREFIX], "tier": "disk", "prefixes_per_s": 0}, "whole number from 1"),
        ("drain", {"then": "explode"}, "one of keep, offload, evict"),
        ("drain", {"prefix_ids": [PREFIX]}, "prefix_ids is no argument of drain"),
        ("foresee", {"document": 3}, "must be a document"),
        ("inspect", {"prefix_id": PREFIX[:8]}, "32 hex digits"),
        ("inspect", {"prefix_ids": [PREFIX]}, "prefix_id is missing"),
    ],
)
def test_wrong_arguments_are_named(kind: str, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest) as refused:
        check_arguments(kind, arguments)
    assert said in str(refused.value)
