"""Every token of a prompt is a hit or has a cause, whatever was asked, kept, refused and evicted before."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import CacheEngine, CommandRequest, EngineConfig, preset
from engine.consistency.lost import LostMemory
from engine.model.objects import bytes_per_token
from engine.schedule.losses import LOSSES

SPEC = preset("bench-full-swa")
PAGE = SPEC.page_tokens

# A prompt is a walk through few shared runs of tokens, so that prompts meet, part and come again.
prompts = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5 * PAGE)), min_size=1, max_size=4)
steps = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "ask", "evict"]), prompts, st.sampled_from(["a", "b"])), max_size=14
)


def tokens_of(walk: list[tuple[int, int]]) -> np.ndarray:
    parts = [np.arange(length, dtype=np.int32) + 10_000 * run + 100_000 * depth
             for depth, (run, length) in enumerate(walk)]  # fmt: skip
    return np.concatenate(parts)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=steps,
    pages=st.integers(4, 40),
    rule=st.sampled_from(["all", "second_touch", "first_pages:2"]),
    memory=st.sampled_from([0, 600, 1 << 20]),
    replay=st.booleans(),
)
def test_causes_and_usable_tokens_add_up_to_the_prompt(steps, pages, rule, memory, replay) -> None:  # type: ignore[no-untyped-def]
    config = EngineConfig(
        gpu_bytes=int(pages * PAGE * bytes_per_token(SPEC)), materialise=False, codec="none", spans=False,
        admission_rule=rule, lost_memory_bytes=memory, replay=replay, cap_prefixes=5, curve_samples=0,
    )  # fmt: skip
    total: dict[str, int] = {}
    with CacheEngine(SPEC, config) as engine:
        for what, walk, namespace in steps:
            tokens = tokens_of(walk)
            if what == "evict":
                ids = [row["prefix.id"] for row in engine.snapshot()][:2]
                request = CommandRequest(id="c", kind="evict", arguments={"prefix_ids": ids, "descendants": True})
                engine.execute(request)
                continue
            with engine.acquire(tokens, namespace=namespace) as lease:
                lost = dict(lease.explanation.lost)
                assert sum(lost.values()) + lease.usable_tokens == lease.prompt_tokens == len(tokens)
                assert set(lost) <= {str(cause) for cause in LOSSES}
                assert min(lost.values(), default=1) > 0
                engine.commit(tokens, None, lease=lease, checkpoints=lease.checkpoint_hints)
            for cause, n in lost.items():
                total[cause] = total.get(cause, 0) + n
        counters = engine.counters()
        assert dict(counters.lost) == total
        assert sum(total.values()) + counters.usable_tokens == counters.prompt_tokens
        assert engine.check() == []


@settings(max_examples=100, deadline=None)
@given(
    runs=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 30), st.integers(0, 3)), max_size=60),
    budget=st.integers(0, 6000),
)
def test_the_memory_of_losses_stays_within_its_budget_and_knows_the_newest(runs, budget) -> None:  # type: ignore[no-untyped-def]
    memory = LostMemory(4, budget)
    for path, pages, seed in runs:
        tokens = np.random.default_rng(seed).integers(0, 1 << 30, pages * 4).astype("<i4").tobytes()
        memory.remember(f"path{path}", tokens, "evicted_cap", f"id{seed}")
        assert memory.held_bytes <= budget
        found = memory.find(f"path{path}", tokens)
        if budget < 512 + 8 * pages:
            assert found is None
        else:
            assert found is not None
            assert memory.may_have(tokens[:16])
            assert found[1] == pages
    assert (len(memory) == 0) == (memory.held_bytes == 0)
