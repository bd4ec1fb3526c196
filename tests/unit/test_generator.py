"""The built-in workload: the same from the same seed, in order of time, with prefixes worth caching."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from controlplane.errors import BadRequest
from controlplane.workload.generator import Generator, GeneratorConfig


def first(count, **config):
    return list(itertools.islice(Generator(GeneratorConfig(**config)), count))


def test_the_same_seed_gives_the_same_requests_and_another_seed_others():
    one, again, other = first(50, seed=3), first(50, seed=3), first(50, seed=4)
    assert [r.at_s for r in one] == [r.at_s for r in again]
    assert all(np.array_equal(a.tokens, b.tokens) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one[0].prompt, other[0].prompt)


def test_time_moves_forward_at_the_rate_asked_for():
    times = [r.at_s for r in first(2000, rate_per_s=20)]
    assert times == sorted(times)
    assert 2000 / times[-1] == pytest.approx(20, rel=0.1)


def test_prompts_stay_within_the_limit_and_are_int32():
    requests = first(500, max_prompt_tokens=5000)
    assert max(len(r.prompt) for r in requests) <= 5000
    assert min(len(r.prompt) for r in requests) > 512
    assert {r.tokens.dtype for r in requests} == {np.dtype(np.int32)}


def test_a_later_turn_continues_the_session_with_its_output_or_branches_off_it():
    continued = branched = 0
    last = {}
    for request in first(800):
        before = last.get(request.session)
        if before is not None:
            if np.array_equal(request.prompt[: len(before)], before):
                continued += 1
            else:
                branched += 1
        last[request.session] = request.tokens
    assert continued > branched > 0


def test_sessions_share_system_prompts_unevenly_in_several_namespaces():
    starts = {}
    for request in first(800):
        starts.setdefault(request.session, (request.namespace, request.prompt[:512].tobytes()))
    counts = sorted((list(starts.values()).count(s) for s in set(starts.values())), reverse=True)
    assert len({namespace for namespace, _ in starts.values()}) == 3
    assert counts[0] >= 3 * counts[-1]


@pytest.mark.parametrize(
    "config",
    [{"rate_per_s": 0}, {"namespaces": ()}, {"agent_ratio": 1.5}, {"max_prompt_tokens": 100}],
)
def test_impossible_settings_are_refused_by_name(config):
    with pytest.raises(BadRequest, match=next(iter(config))):
        GeneratorConfig(**config)
