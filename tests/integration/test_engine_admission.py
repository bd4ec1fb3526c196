"""Rules of admission in a real engine: what is kept, what is said of the rest, and nothing wrong for the caller."""

from __future__ import annotations

import numpy as np
import pytest
from engine_support import SMALL, fork, prompt

from engine.consistency.admission import GHOST_MULTIPLE


def pages(rig, n, seed=0):
    return prompt(n * rig.page, seed)


def test_second_touch_keeps_a_prompt_that_two_requests_brought(make_rig):
    rig = make_rig(admission_rule="second_touch")
    tokens = pages(rig, 4)
    first, second, third = (rig.serve(tokens) for _ in range(3))
    assert (first.commit.outcome, first.commit.reason) == ("refused", "second_touch")
    assert (second.commit.outcome, second.commit.reason, second.commit.new_pages) == ("admitted", "ok", 4)
    assert (third.usable, third.wrong_bytes) == (len(tokens), 0)
    assert rig.engine.counters().refusals == {"second_touch": 1}
    rig.assert_clean()


def test_second_touch_keeps_what_prompts_share_with_a_checkpoint_at_its_end(make_rig):
    rig = make_rig(admission_rule="second_touch")
    trunk = pages(rig, 8)
    rig.serve(trunk)
    other = rig.serve(fork(trunk, 5 * rig.page, 8 * rig.page, 1))
    assert (other.commit.reason, other.commit.new_pages, other.commit.checkpoints) == (
        "second_touch",
        5,
        (5 * rig.page,),
    )
    found = rig.look(fork(trunk, 5 * rig.page, 9 * rig.page, 2))
    assert (found.usable, found.wrong_bytes) == (5 * rig.page, 0)
    span = rig.log.named("kvcache.commit") if rig.engine.flush_telemetry() is None else []
    assert (span[-1]["kvcache.outcome"], span[-1]["kvcache.reason"]) == ("admitted", "second_touch")
    assert rig.engine.stats()["commits"] == {"admitted": 1, "refused": {"second_touch": 1}, "cut": {"second_touch": 1}}
    rig.assert_clean()


def test_a_prompt_and_its_answer_under_one_lease_are_one_touch(make_rig):
    rig = make_rig(admission_rule="second_touch")
    tokens = pages(rig, 6)
    half = tokens[: 3 * rig.page]
    with rig.engine.acquire(half, deadline_s=9.0) as lease:
        one = rig.engine.commit(half, rig.model.prefill(half, 0, [len(half)]), lease=lease)
        two = rig.engine.commit(tokens, rig.model.prefill(tokens, 0, [len(tokens)]), lease=lease)
    assert (one.reason, two.reason) == ("second_touch", "second_touch")
    with rig.engine.acquire(half, deadline_s=9.0) as lease:
        one = rig.engine.commit(half, rig.model.prefill(half, 0, [len(half)]), lease=lease)
        two = rig.engine.commit(tokens, rig.model.prefill(tokens, 0, [len(tokens)]), lease=lease)
    assert [(done.outcome, done.new_pages) for done in (one, two)] == [("admitted", 3), ("admitted", 3)]
    assert rig.look(tokens).usable == len(tokens)
    rig.assert_clean()


@pytest.mark.parametrize("name", SMALL)
def test_first_pages_keeps_the_beginning_and_serves_from_its_end(make_rig, name):
    rig = make_rig(name, admission_rule="first_pages:3")
    done = rig.serve(pages(rig, 6)).commit
    assert (done.outcome, done.reason, done.new_pages) == ("admitted", "past_first_pages", 3)
    assert done.checkpoints == (3 * rig.page,)
    found = rig.serve(pages(rig, 6))
    assert (found.usable, found.wrong_bytes) == (3 * rig.page, 0)
    assert (found.commit.outcome, found.commit.reason) == ("refused", "past_first_pages")
    short = rig.serve(pages(rig, 2, 7))
    assert (short.commit.reason, rig.look(pages(rig, 2, 7)).usable) == ("ok", 2 * rig.page)
    rig.assert_clean()


def test_a_checkpoint_in_the_page_after_the_last_admitted_one_is_kept_and_those_past_it_say_why(make_rig):
    rig = make_rig(admission_rule="first_pages:2")
    tokens = pages(rig, 5)
    inside, past = 2 * rig.page + 7, 3 * rig.page + 7
    done = rig.commit(tokens, [inside, past, len(tokens)])
    assert done.checkpoints == (inside,)
    assert rig.engine.stats()["checkpoints_dropped"] == {"past_first_pages": 2}
    found = rig.look(tokens)
    assert (found.usable, found.wrong_bytes) == (inside, 0)
    rig.assert_clean()


def test_what_is_held_already_gets_new_checkpoints_whatever_the_rule(make_rig):
    rig = make_rig()
    tokens = pages(rig, 4)
    rig.commit(tokens, [])
    rig.engine.reconfigure({"admission_rule": "first_pages:1"}, revision=1)
    done = rig.commit(tokens, [len(tokens)])
    assert (done.outcome, done.reason, done.checkpoints) == ("admitted", "ok", (len(tokens),))
    longer = fork(tokens, len(tokens), 6 * rig.page, 1)
    assert rig.commit(longer, [2 * rig.page]).reason == "past_first_pages"
    assert rig.look(longer).usable == len(tokens)
    rig.assert_clean()


def test_a_rule_is_desired_state_and_what_it_remembers_stays_while_it_does(make_rig):
    rig = make_rig()
    assert rig.engine.observed()["admission_rule"] == "all"
    rig.engine.reconfigure({"admission_rule": "second_touch"}, revision=1)
    tokens = pages(rig, 3)
    assert rig.commit(tokens).reason == "second_touch"
    observed = rig.engine.reconfigure({"admission_rule": "second_touch", "cap_prefixes": 50}, revision=2)
    assert observed["admission_rule"] == "second_touch"
    assert rig.commit(tokens).outcome == "admitted"
    rig.engine.reconfigure({}, revision=3)
    assert rig.commit(pages(rig, 3, 1)).outcome == "admitted"


def test_the_ghost_list_is_a_multiple_of_what_the_gpu_tier_may_hold(make_rig):
    rig = make_rig(admission_rule="second_touch", cap_gpu_bytes=64 << 10)
    page_bytes = sum(rig.ledger.layouts.of(kind).slot_bytes for kind in rig.ledger.layouts.span_kinds)
    rule = rig.engine._publisher._gate._rule
    assert rule._ghost_pages == GHOST_MULTIPLE * ((64 << 10) // page_bytes)
    for seed in range(200):
        rig.commit(pages(rig, 4, seed))
    assert len(rule) == rule._ghost_pages


def test_approximate_prefixes_are_another_run_of_pages(make_rig):
    rig = make_rig(admission_rule="second_touch")
    tokens = pages(rig, 3)
    rig.commit(tokens)
    keys = rig.engine._publisher._gate._keys
    assert set(keys("default", tokens.tobytes(), 3, 0)).isdisjoint(keys("other", tokens.tobytes(), 3, 0))
    assert list(keys("default", tokens.tobytes(), 3, 1)) == list(keys("default", tokens.tobytes(), 3, 0))[1:]


def test_a_commit_without_pages_is_refused_with_its_reason_and_counted(make_rig):
    rig = make_rig()
    assert rig.commit(np.arange(5, dtype=np.int32), []).reason == "shorter_than_a_page"
    assert rig.engine.stats()["commits"]["refused"] == {"shorter_than_a_page": 1}
