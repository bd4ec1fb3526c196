"""Each rule of the doctor by facts that are just bad enough, and just not."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from controlplane.insight.doctor import RULES, examine
from controlplane.insight.doctor_facts import (
    CurveFact,
    DeckFacts,
    EngineFacts,
    FailedCommands,
    PolicyFacts,
    Refusals,
    StoreFacts,
    Thrash,
    TierIo,
)
from controlplane.insight.whymiss import LossRow, WhyMiss
from controlplane.store.queries_engines import EngineView
from controlplane.store.query_types import TimeRange

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
AGO = NOW - dt.timedelta(minutes=10)
GIB = 1 << 30

VIEW = EngineView(
    id="e", boot_id="b", model="m", fingerprint="f", page_tokens=64, labels={}, registered_at=AGO, last_seen_at=NOW,
    last_seen_seconds=1.0, health="live", observed_revision=3, desired_revision=3, sync="in_sync",
    observed={"mode": "normal"}, stats={"prefixes": {"FULL": 100}}, snapshot_wanted=False, open_gaps=0,
)  # fmt: skip
STORE = StoreFacts(
    dialect="sqlite", size_bytes=1, overdue={}, epoch=1, leader="h:1", leads_since=AGO, leader_seen_at=NOW
)
POLICY = PolicyFacts(
    name="degrade", paused=False, paused_until=None, changed_at=AGO, last_run_at=NOW,
    failures_in_a_row=0, error="",
)  # fmt: skip
FAILED = FailedCommands(engine_id="e", kind="warm", status="failed", count=2, last_at=AGO, said="x")


def why(prompt: int = 0, **lost: int) -> WhyMiss:
    rows = [LossRow(cause=c, tokens=n, requests=1, share=0.0, meaning="", advice="") for c, n in lost.items()]
    return WhyMiss(
        requests=1, prompt_tokens=prompt, lcp_tokens=0, usable_tokens=prompt - sum(lost.values()), replay_tokens=0,
        rows=rows,
    )  # fmt: skip


def engine(view: dict[str, object] | None = None, **facts: object) -> EngineFacts:
    return EngineFacts(now=replace(VIEW, **(view or {})), **({"why": why()} | facts))  # type: ignore[arg-type]


def deck(one: EngineFacts | None = None, **facts: object) -> DeckFacts:
    values: dict[str, object] = {
        "at": NOW, "window": TimeRange(AGO, NOW), "engines": (one or engine(),), "commands": (), "policies": (POLICY,),
        "store": STORE,
    } | facts  # fmt: skip
    return DeckFacts(**values)  # type: ignore[arg-type]


def io(tier: str = "disk", count: int = 20, p50: float = 0.005, p99: float = 0.1) -> tuple[TierIo, ...]:
    return (TierIo(tier=tier, direction="read", count=count, p50_seconds=p50, p99_seconds=p99),)


def curve(gain: float, better_bytes: int = 2 * GIB) -> CurveFact:
    return CurveFact(
        hit_ratio=0.4, better_ratio=0.4 + gain, cap_bytes=GIB, better_bytes=better_bytes, samples=3000
    )  # fmt: skip


BAD: dict[str, list[tuple[DeckFacts, str]]] = {
    "wrong_bytes": [(deck(engine({"stats": {"wrong_bytes": 1}})), "severe")],
    "engine_silent": [
        (deck(engine({"health": "stale"})), "warning"),
        (deck(engine({"health": "unreachable"})), "severe"),
    ],
    "desired_unobserved": [
        (deck(engine({"desired_revision": 4}, behind_since=NOW - dt.timedelta(seconds=61))), "warning"),
        (deck(engine({"observed": {"error": "no such codec"}})), "severe"),
    ],
    "breaker_open": [(deck(engine({"stats": {"io": {"disk": {"breaker": "open"}}}})), "severe")],
    "restores_failing": [(deck(engine(recoveries=10, failed_recoveries=2)), "severe")],
    "quarantine_filling": [
        (deck(engine({"stats": {"prefixes": {"FULL": 99, "QUARANTINED": 1}}})), "warning"),
        (deck(engine({"stats": {"prefixes": {"FULL": 95, "QUARANTINED": 5}}})), "severe"),
    ],
    "disk_slow": [(deck(engine(io=io())), "warning")],
    "caps_too_small": [(deck(engine(curve=curve(0.031))), "warning")],
    "checkpoints_missing": [
        (deck(engine(why=why(20_000, checkpoint_missing=600, replay_refused=400))), "warning"),
    ],
    "namespace_maximum": [(deck(engine(why=why(20_000, evicted_namespace=1000))), "warning")],
    "namespace_thrashing": [
        (deck(engine(thrash=(Thrash(namespace="a", evicted=80, came_back=20),))), "warning"),
    ],
    "telemetry_dropped": [(deck(engine(dropped_spans=1)), "warning")],
    "history_gaps": [(deck(engine({"open_gaps": 1}, oldest_gap_at=AGO)), "warning")],
    "clock_skew": [
        (deck(engine(clock_ahead_seconds=5.1)), "warning"),
        (deck(engine(clock_ahead_seconds=-5.1)), "warning"),
    ],
    "mode_degraded": [(deck(engine({"observed": {"mode": "no_disk"}})), "notice")],
    "commands_failed": [(deck(commands=(FAILED,)), "warning")],
    "policy_failing": [(deck(policies=(replace(POLICY, failures_in_a_row=2, error="boom"),)), "warning")],
    "policy_paused": [(deck(policies=(replace(POLICY, paused=True, last_run_at=None),)), "notice")],
    "leader_missing": [
        (deck(store=replace(STORE, leader_seen_at=NOW - dt.timedelta(seconds=91))), "severe"),
    ],
    "telemetry_refused": [(deck(refused=(Refusals(of="spans", reason="time", count=3, last_at=NOW),)), "warning")],
    "database_growing": [
        (deck(store=replace(STORE, overdue={"requests": AGO})), "warning"),
        (deck(store=replace(STORE, size_bytes=8 * GIB)), "warning"),
    ],
}  # fmt: skip

FINE = [
    deck(),
    deck(refused=(Refusals(of="spans", reason="time", count=3, last_at=AGO - dt.timedelta(seconds=1)),)),
    deck(engine({"desired_revision": 4}, behind_since=NOW - dt.timedelta(seconds=59))),
    deck(engine({"stats": {"io": {"disk": {"breaker": "half_open"}}}})),
    deck(engine(recoveries=9, failed_recoveries=9)),
    deck(engine(recoveries=11, failed_recoveries=2)),
    deck(engine(io=io(count=19))),
    deck(engine(io=io(p99=0.099))),
    deck(engine(io=io(p50=0.02))),
    deck(engine(io=io(tier="host"))),
    deck(engine(curve=curve(0.029))),
    deck(engine(curve=curve(0.1, better_bytes=GIB))),
    deck(engine(why=why(19_999, checkpoint_missing=19_999, evicted_namespace=0))),
    deck(engine(why=why(20_000, checkpoint_missing=999))),
    deck(engine(thrash=(Thrash(namespace="a", evicted=19, came_back=19),))),
    deck(engine(thrash=(Thrash(namespace="b", evicted=81, came_back=20),))),
    deck(engine(clock_ahead_seconds=-4.9)),
    deck(policies=(replace(POLICY, last_run_at=AGO),)),  # a run that finds nothing new is recorded now and then
    deck(store=replace(STORE, leader_seen_at=NOW - dt.timedelta(seconds=89))),
    deck(store=replace(STORE, leader_seen_at=None)),
    deck(store=replace(STORE, dialect="postgresql", size_bytes=8 * GIB)),
]  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_rule_finds_what_it_is_about_and_nothing_else_does(name: str) -> None:
    for facts, severity in BAD[name]:
        findings = examine(facts)
        assert [(f.rule, f.severity) for f in findings] == [(name, severity)]
        (finding,) = findings
        assert finding.summary
        assert finding.evidence
        assert finding.advice


@pytest.mark.parametrize("facts", FINE)
def test_what_is_just_well_is_not_found(facts: DeckFacts) -> None:
    assert examine(facts) == []


def test_every_rule_is_tried_and_says_what_it_looks_for() -> None:
    assert [rule.name for rule in RULES] == list(dict.fromkeys(rule.name for rule in RULES))
    assert {rule.name for rule in RULES} == BAD.keys()
    assert all(rule.looks_for and rule.advice for rule in RULES)


def test_the_worst_comes_first() -> None:
    found = examine(deck(engine({"stats": {"wrong_bytes": 1}, "open_gaps": 2, "observed": {"mode": "bypass"}})))
    assert [f.severity for f in found] == ["severe", "warning", "notice"]
