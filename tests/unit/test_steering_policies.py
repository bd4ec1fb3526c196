"""Warm-up's choice, counters' growth, and the parameters of policies."""

from __future__ import annotations

import datetime as dt

import pytest

from controlplane.errors import BadRequest
from controlplane.steering.policies.facts import Sample, counter_growth
from controlplane.steering.policies.kinds import DEFAULTS, read_rule
from controlplane.steering.policies.proposals import IssueCommand, Verdict
from controlplane.steering.policies.warmup import Candidate, WarmupFacts, WarmupRule, decide

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def candidate(number: int, *, served: int = 10, host: int = 0, disk: int = 100, pinned: bool = False) -> Candidate:
    return Candidate(prefix_id=f"{number:032x}", tokens_served=served, pinned=pinned, host_bytes=host, disk_bytes=disk)


def warm(*candidates: Candidate, mode: str = "normal", in_flight: bool = False, **rule: int) -> Verdict:
    facts = WarmupFacts(engine_id="e", now=AT, mode=mode, in_flight=in_flight, candidates=candidates)
    return decide(WarmupRule(**rule), facts, {})


def chosen(verdict: Verdict) -> list[int]:
    (proposal,) = verdict.proposals
    assert isinstance(proposal, IssueCommand)
    return [int(prefix_id, 16) for prefix_id in proposal.arguments["prefix_ids"]]


def test_warms_what_served_most_within_the_budget() -> None:
    verdict = warm(candidate(1, served=30), candidate(2, served=20, disk=950), candidate(3), max_bytes=1000)
    assert chosen(verdict) == [1, 3]


def test_warms_pinned_prefixes_first() -> None:
    assert chosen(warm(candidate(1, served=99), candidate(2, pinned=True))) == [2, 1]


def test_warms_at_most_so_many_prefixes() -> None:
    assert len(chosen(warm(*(candidate(n) for n in range(1, 100)), most_prefixes=7))) == 7


def test_leaves_alone_what_never_served() -> None:
    assert warm(candidate(1, served=0)).decision == "nothing_to_warm"


def test_does_not_warm_while_a_warm_command_is_in_flight() -> None:
    verdict = warm(candidate(1), in_flight=True)
    assert (verdict.decision, verdict.proposals) == ("in_flight", ())


def test_without_disk_warms_only_what_needs_none() -> None:
    assert chosen(warm(candidate(1, disk=5), candidate(2, disk=0, host=5), mode="no_disk")) == [2]


@pytest.mark.parametrize("mode", ["resident_only", "full_only", "bypass"])
def test_modes_without_restores_warm_nothing(mode: str) -> None:
    assert warm(candidate(1), mode=mode).decision == "mode_forbids"


def samples(*values: tuple[int, str, float]) -> list[Sample]:
    return [Sample(at=AT + dt.timedelta(seconds=s), boot_id=boot, value=value) for s, boot, value in values]


@pytest.mark.parametrize(
    ("series", "growth"),
    [
        ([], 0),
        ([(0, "a", 5), (10, "a", 5), (20, "a", 9)], 4),  # nothing, then four
        ([(0, "a", 5)], 0),  # all before the window
        ([(20, "a", 7)], 7),  # born inside the window
        ([(0, "a", 5), (10, "a", 8), (20, "b", 2)], 5),  # a restart: 3 and then 2
        ([(0, "a", 5), (10, "a", 1)], 1),  # fell without a new boot: a restart all the same
    ],
)
def test_growth_of_a_counter_over_restarts(series: list[tuple[int, str, float]], growth: float) -> None:
    assert counter_growth(samples(*series), AT + dt.timedelta(seconds=5)) == growth


def test_the_default_policies_are_valid() -> None:
    for standing in DEFAULTS:
        assert read_rule(standing.kind, {}) == standing.rule


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"step_down_abvoe": 0.5}, "step_down_abvoe"),
        ({"step_down_above": "much"}, "step_down_above"),
        ({"minimum_samples": 2.5}, "minimum_samples"),
        ({"minimum_samples": 0}, "minimum_samples"),
        ({"step_up_below": 0.5}, "step_up_below"),
        ({"lowest_mode": "off"}, "lowest_mode"),
        ({"cool_down_seconds": -1}, "cool_down_seconds"),
        ({"cool_down_seconds": True}, "cool_down_seconds"),
    ],
)
def test_wrong_parameters_are_named(parameters: dict[str, object], named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        read_rule("degrade", parameters)
