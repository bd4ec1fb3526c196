"""What-if on traces: the sampled curve against the exact one, and the simulated rules against the whole trace."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from controlplane.errors import BadRequest
from controlplane.insight.curves import LEAST_SAMPLES
from controlplane.insight.simulate import Rules, page_spec, sampled, simulate
from controlplane.insight.whatif import WhatIf, ask_trace
from controlplane.workload.traces import Trace
from engine import preset

BLOCK = 16
TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"


def write_trace(path: Path, requests: int, *, seed: int = 0, conversations: int = 60) -> Path:
    """Conversations that grow turn by turn, behind one system prompt of four blocks, and one-off prompts between."""
    rng = np.random.default_rng(seed)
    system, fresh = list(range(4)), 1000
    histories: list[list[int]] = [[] for _ in range(conversations)]
    weights = 1.0 / np.arange(1, conversations + 1)
    lines = []
    for n in range(requests):
        grow = list(range(fresh, fresh + 6))
        fresh += 6
        if rng.random() < 0.3:
            path_ids = [*system, *grow]
        else:
            chat = int(rng.choice(conversations, p=weights / weights.sum()))
            if len(histories[chat]) > 60:
                histories[chat] = []
            histories[chat] += grow
            path_ids = [*system, *histories[chat]]
        row = {"timestamp": n * 10, "input_length": len(path_ids) * BLOCK, "output_length": 8, "hash_ids": path_ids}
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    return write_trace(tmp_path_factory.mktemp("traces") / "chats.jsonl", 3000)


QUICK = {"admissions": ("all",), "evictions": ("lru",), "checkpoints": ("end_and_branch",)}


def test_the_sampled_curve_is_within_two_points_of_the_exact_one(trace):
    answer = ask_trace(WhatIf(trace=trace, samples=1024, **QUICK))
    assert answer.curve.rate < 0.2
    assert answer.mean_error_points < 2.0
    assert answer.as_dict()["mean_error_points"] == round(answer.mean_error_points, 3)


def test_the_recommended_cap_holds_what_it_promises_when_it_is_simulated(trace):
    found = ask_trace(WhatIf(trace=trace, **QUICK)).recommendation
    cap = found.near_ceiling
    kept = ask_trace(WhatIf(trace=trace, caps_bytes=(cap["bytes"],), rate=1.0, **QUICK)).simulated[0]
    assert kept.hit_ratio == pytest.approx(found.ceiling_ratio, abs=0.05)
    assert cap["hit_ratio"] >= found.ceiling_ratio - 0.0201


def test_a_cap_in_prefixes_is_predicted_as_the_engine_s_books_have_it(trace):
    answer = ask_trace(WhatIf(trace=trace, caps_prefixes=(100, 400), rate=1.0, **QUICK))
    for outcome in answer.simulated:
        expected = answer.curve.hit_ratio(answer.curve.pages_at(prefixes=outcome.cap_prefixes))
        assert outcome.hit_ratio == pytest.approx(expected, abs=0.1)  # smaller caps make longer prefixes


def test_a_sample_of_the_families_stands_for_the_whole_trace(tmp_path):
    path = write_trace(tmp_path / "many.jsonl", 4000, conversations=400)
    records = list(whole := Trace(path, block_tokens=BLOCK))
    spec = page_spec(preset("bench-full-swa"), BLOCK)
    cap = int(2000 * 400 * BLOCK)
    everything = simulate(sampled(whole, records, 1.0), spec, Rules(), cap_bytes=cap)
    chosen = sampled(whole, records, 0.3)
    part = simulate(chosen, spec, Rules(), cap_bytes=cap, rate=0.3)
    assert len(chosen) == pytest.approx(0.3 * len(records), rel=0.2)
    assert part.hit_ratio == pytest.approx(everything.hit_ratio, abs=0.04)


def test_rules_are_those_of_the_engine_and_an_unknown_one_is_refused_by_it(trace):
    for what, said in (
        ({"admissions": ("twice",)}, "admission_rule is 'twice'"),
        ({"evictions": ("fifo",)}, "eviction is 'fifo'"),
        ({"checkpoints": ("sometimes",)}, "no checkpoint rule 'sometimes'"),
        ({"spec": "no-such"}, "no-such"),
    ):
        with pytest.raises(BadRequest, match=said):
            ask_trace(WhatIf(trace=trace, limit=50, **{**QUICK, **what}))


def test_first_pages_keeps_system_prompts_and_nothing_else(trace):
    rules = {**QUICK, "admissions": ("all", "first_pages:4")}
    every, first = ask_trace(WhatIf(trace=trace, limit=600, caps_bytes=(1 << 30,), **rules)).simulated
    prompts = [record.input_tokens for _, record in zip(range(600), Trace(trace, block_tokens=BLOCK), strict=False)]
    assert every.hit_ratio > first.hit_ratio
    assert first.hit_ratio == pytest.approx((len(prompts) - 1) * 4 * BLOCK / sum(prompts), abs=0.001)


def test_too_short_a_trace_gets_no_curve_and_hears_how_many_samples_are_missing(trace):
    answer = ask_trace(WhatIf(trace=trace, limit=40, **QUICK))
    body = answer.as_dict()
    assert answer.curve.samples < LEAST_SAMPLES
    assert "too few" in body["refused"]
    assert "curve" not in body
    assert body["simulated"]


@pytest.mark.parametrize("name", ["mooncake_conversation", "agent_miniswe"])
def test_the_published_traces_are_within_two_points(name):
    path = TRACES / f"{name}.jsonl"
    if not path.is_file():
        pytest.skip(f"no {path}: the published traces are not part of the product")
    answer = ask_trace(WhatIf(trace=path, caps_bytes=(1 << 28,), **QUICK))
    assert answer.mean_error_points < 2.0
