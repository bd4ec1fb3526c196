"""Plans: how many tokens a replay takes, what a plan costs, and what is said where none pays."""

from __future__ import annotations

import threading

import pytest
from engine_support import fork, prompt

from engine import ModelSpec, preset
from engine.consistency.lease import Cost
from engine.model.spec import Compressed, Field, Full, Layer, Sliding
from engine.schedule.pace import REPORTS_WANTED, PrefillPace

KEYS = (Field(name="keys", dtype="bfloat16", width=4),)


def swa(window):
    return Sliding(window=window, fields=KEYS)


def csa(ratio):
    return Compressed(ratio=ratio, fields=KEYS, buffers=KEYS, overlaps=KEYS, name=f"csa{ratio}")


FULL = Full(fields=KEYS)


@pytest.mark.parametrize(
    ("layers", "tokens"),
    [
        ([[swa(16)], [swa(16)], [swa(16)]], 45),
        ([[swa(16)], [FULL], [swa(16)]], 30),
        ([[swa(8)], [FULL], [swa(32)]], 38),  # different windows: the sum
        ([[swa(4)], [swa(4), csa(32)]], 3 + 32),  # an overlap wider than the last window
        ([[swa(4)], [swa(4), csa(4)]], 3 + 4),
        ([[swa(16)], [swa(16), csa(4)]], 30),  # and one that the window covers
        ([[swa(16)], [swa(16)], [csa(8)]], 30 + 8),  # above the last window: clean only once that is
        ([[csa(8)], [swa(16)]], 15),  # below: nothing has to be clean before it
        ([[csa(8)], [FULL]], 8),
        ([[FULL]], 0),
    ],
)
def test_a_replay_is_as_long_as_the_deepest_boundary_object_needs(layers, tokens):
    made = tuple(Layer(parts=tuple(parts)) for parts in layers)
    spec = ModelSpec(name="x", revision="1", page_tokens=64, layers=made)
    assert spec.replay_tokens == tokens


@pytest.mark.parametrize("name", ["small-deepseek-v4", "small-gemma-3", "small-gpt-oss"])
def test_with_one_window_everywhere_a_replay_is_n_layers_of_it(name):
    spec = preset(name)
    assert spec.replay_tokens == spec.sliding_layers * (spec.window - 1)


def test_a_replay_resumes_at_a_page_boundary_and_its_cost_is_said(make_rig):
    rig = make_rig("small-deepseek-v4")
    tokens = prompt(8 * rig.page)
    rig.commit(tokens, [])
    with rig.engine.acquire(tokens) as lease:
        assert (lease.usable_tokens, lease.replay_tokens) == (512, 128)
        assert lease.resume_tokens % rig.page == 0
        cost = lease.explanation.cost
    assert cost == Cost(512, 128, 0, 0.0, 20_000.0)
    assert cost.saving_s == pytest.approx(384 / 20_000)
    assert cost.text == "saves 512 tokens (0.026 s at 20,000 tokens/s) for 128 replayed (0.006 s)"
    rig.engine.flush_telemetry()
    span = rig.log.named("kvcache.acquire")[-1]
    assert span["kvcache.plan.saving_s"] == cost.saving_s
    assert span["kvcache.plan.restore_s"] == 0.0


def test_a_restore_is_part_of_the_cost(make_rig):
    rig = make_rig("small-llama", host_bytes=4 << 20)
    tokens = prompt(8 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    rig.command("offload", prefix_ids=[prefix_id], tier="host")
    held = sum(h.below_bytes for h in rig.node(prefix_id).record.holdings())
    with rig.engine.acquire(tokens, deadline_s=3600.0) as lease:
        cost = lease.explanation.cost
    assert (cost.saved_tokens, cost.restore_bytes) == (512, held)
    assert cost.restore_s > 0
    assert cost.saving_s == pytest.approx(512 / 20_000 - cost.restore_s)


def test_a_cost_reads_as_a_sentence():
    cost = Cost(4096, 128, 12_000_000, 0.0104, 20_000.0)
    assert cost.text == (
        "saves 4,096 tokens (0.205 s at 20,000 tokens/s) for 128 replayed (0.006 s) and 12 MB restored (0.010 s)"
    )
    assert Cost(64, 0, 0, 0.0, 1000.0).text == "saves 64 tokens (0.064 s at 1,000 tokens/s)"
    assert "999 B restored" in Cost(64, 0, 999, 0.1, 1000.0).text


def test_a_replay_that_would_save_nothing_is_the_reason_and_its_arithmetic_is_kept(make_rig):
    rig = make_rig("small-deepseek-v4")
    tokens = prompt(2 * rig.page)
    rig.commit(tokens, [])
    with rig.engine.acquire(tokens) as lease:
        assert (lease.usable_tokens, lease.explanation.reason) == (0, "replay_costs_more")
        assert lease.explanation.cost == Cost(128, 128, 0, 0.0, 20_000.0)
        assert lease.explanation.cost.saving_s == 0.0


def test_a_checkpoint_that_saves_more_than_a_replay_at_a_deeper_boundary_is_taken_and_that_is_said(make_rig):
    rig = make_rig("small-deepseek-v4")
    tokens = prompt(8 * rig.page)
    rig.commit(tokens, [7 * rig.page])
    with rig.engine.acquire(tokens) as lease:
        assert (lease.usable_tokens, lease.lcp_tokens) == (7 * rig.page, 8 * rig.page)
        assert lease.explanation.reason == "replay_costs_more"
        assert lease.explanation.cost.saved_tokens == 7 * rig.page


def test_a_miss_of_new_content_has_no_cost(make_rig):
    rig = make_rig()
    with rig.engine.acquire(prompt(200)) as lease:
        assert lease.explanation.cost is None


def test_where_replay_is_switched_off_no_checkpoint_is_the_reason(make_rig):
    rig = make_rig("small-gemma-3", replay=False)
    tokens = prompt(8 * rig.page)
    rig.commit(tokens, [rig.page])
    with rig.engine.acquire(fork(tokens, 6 * rig.page, 8 * rig.page, 1)) as lease:
        assert (lease.usable_tokens, lease.explanation.reason) == (rig.page, "no_checkpoint")


def test_the_measured_pace_replaces_the_guess_after_enough_reports(make_rig):
    rig = make_rig("small-llama")
    tokens = prompt(8 * rig.page)
    rig.commit(tokens)
    for i in range(REPORTS_WANTED):
        assert rig.engine.stats()["prefill"] == {"tokens_per_s": 20_000.0, "reports": i}
        rig.engine.report_prefill(1000, 1.0)
    assert rig.engine.stats()["prefill"] == {"tokens_per_s": pytest.approx(1000.0), "reports": REPORTS_WANTED}
    with rig.engine.acquire(tokens) as lease:
        assert lease.explanation.cost.saving_s == pytest.approx(512 / 1000.0)


def test_a_pace_follows_what_is_reported_and_ignores_what_says_nothing():
    pace = PrefillPace(5.0)
    for tokens, seconds in ((0, 1.0), (-1, 1.0), (1, 0.0), (1, -1.0), (1, float("nan")), (1, float("inf"))):
        pace.report(tokens, seconds)
    assert (pace.reports, pace.tokens_per_s) == (0, 5.0)
    for _ in range(40):
        pace.report(100, 1.0)
    for _ in range(40):
        pace.report(300, 1.0)
    assert pace.tokens_per_s == pytest.approx(300.0, rel=0.01)


def test_reports_from_many_threads_are_all_counted():
    pace = PrefillPace(5.0)
    threads = [threading.Thread(target=lambda: [pace.report(10, 0.1) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pace.reports == 2000
    assert pace.tokens_per_s == pytest.approx(100.0)
