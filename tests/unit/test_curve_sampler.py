"""The live sampler: what a reference is, how it ages, what it costs in memory."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from engine import EngineConfig
from engine.consistency.curve import CurveSampler
from engine.consistency.shards import Shards, share_at
from engine.errors import ConfigError
from tests.engine_support import prompt

PAGE = 16


def sampler(**more) -> CurveSampler:
    return CurveSampler(**{"page_tokens": PAGE, "samples": 2048, "namespaces": 2, "fits_pages": 1000, **more})


class Asking:
    """Requests as an engine tells them: what was found does not matter here but to the sums."""

    def __init__(self, curve: CurveSampler) -> None:
        self.curve, self.leases = curve, 0

    def __call__(self, tokens: np.ndarray, *, answer: int = 0, namespace: str = "default", lcp: int = 0) -> None:
        self.leases += 1
        lease = SimpleNamespace(
            namespace=namespace, lease_id=self.leases, prompt_tokens=len(tokens), lcp_tokens=lcp, usable_tokens=lcp,
            node=None, pages=0,
        )  # fmt: skip
        self.curve.asked(tokens.tobytes(), lease)
        if answer:
            whole = np.concatenate([tokens, prompt(answer, seed=self.leases)])
            self.curve.kept(namespace, whole.tobytes(), lease)


def total(curve: CurveSampler) -> dict:
    return curve.document()["total"]


def test_the_same_prompt_again_hits_whatever_its_neighbours_in_the_batch():
    curve = sampler()
    ask = Asking(curve)
    for _ in range(3):
        for seed in range(5):
            ask(prompt(10 * PAGE, seed))
    found = total(curve)
    assert found["references"] == pytest.approx(150, rel=0.01)
    assert share_at(found["points"], 55) == pytest.approx(2 / 3, abs=0.01)
    assert share_at(found["points"], 20) == 0.0


def test_one_other_token_makes_every_page_from_there_on_another():
    curve = sampler()
    ask = Asking(curve)
    tokens = prompt(10 * PAGE, 1)
    changed = tokens.copy()
    changed[4 * PAGE + 3] += 1
    ask(tokens)
    ask(changed)
    assert share_at(total(curve)["points"], 1000) == pytest.approx(4 / 20, abs=0.001)


def test_the_same_page_at_another_place_or_in_another_namespace_is_another():
    curve = sampler()
    ask = Asking(curve)
    page = prompt(PAGE, 1)
    ask(np.concatenate([page, page, page]))
    ask(np.concatenate([page, page]), namespace="other")
    assert total(curve)["points"] == []


def test_an_answer_takes_room_and_is_found_by_the_next_turn_but_was_never_looked_up():
    curve = sampler()
    ask = Asking(curve)
    first = prompt(4 * PAGE, 1)
    ask(first, answer=6 * PAGE)
    ask(np.concatenate([first, prompt(6 * PAGE, seed=1)]))  # the answer of the first lease
    found = total(curve)
    assert found["references"] == pytest.approx(14, rel=0.01)
    assert share_at(found["points"], 11) == pytest.approx(10 / 14, abs=0.01)


def test_an_odd_number_of_tokens_a_page_is_summed_up_as_well():
    curve = sampler(page_tokens=7)
    ask = Asking(curve)
    ask(prompt(21, 1))
    ask(prompt(21, 1))
    assert share_at(total(curve)["points"], 3) == pytest.approx(0.5, abs=0.001)


def test_namespaces_past_the_bound_share_one_curve():
    curve = sampler()
    ask = Asking(curve)
    for name in ("a", "b", "c", "d"):
        for _ in range(2):
            ask(prompt(4 * PAGE, 1), namespace=name, lcp=PAGE)
    document = curve.document()
    assert sorted(document["namespaces"]) == ["a", "b"]
    assert document["others"]["requests"] == pytest.approx(4, rel=0.01)
    assert document["total"]["lcp_tokens"] == pytest.approx(8 * PAGE, rel=0.01)


def test_what_was_asked_long_ago_weighs_less_than_what_is_asked_now():
    curve = sampler(samples=512, fits_pages=100)
    ask = Asking(curve)
    for seed in range(400):
        ask(prompt(10 * PAGE, 1000 + seed))  # nothing comes twice
    for n in range(4000):
        ask(prompt(10 * PAGE, n % 4))  # then all does
    found = total(curve)
    assert share_at(found["points"], 100) > 0.95
    assert found["references"] < 4400 * 10


def test_an_endless_stream_of_new_pages_does_not_end_the_watch():
    shards = Shards(256, horizon_pages=4096.0)
    rng = np.random.default_rng(1)
    for _ in range(3000):
        path = [int(x) for x in rng.integers(0, 1 << 64, 20, dtype=np.uint64)]
        shards.request(len(path), path, len(path))
    assert shards.facts().rate > 256 / 4096 / 4
    assert shards.facts().points == () or shards.facts().points[-1][1] < 0.02


def test_when_fewer_pages_are_in_use_more_of_them_are_watched_and_the_curve_stays_true():
    shards = Shards(256, half_life_samples=2048.0, horizon_pages=4096.0)
    rng = np.random.default_rng(1)
    for _ in range(1000):
        path = [int(x) for x in rng.integers(0, 1 << 64, 20, dtype=np.uint64)]
        shards.request(len(path), path, len(path))
    small = [[int(x) for x in rng.integers(0, 1 << 64, 20, dtype=np.uint64)] for _ in range(10)]
    before = shards.facts().rate
    for n in range(20_000):
        shards.request(20, small[n % 10], 20)
        if n % 100 == 0:
            shards.forget()
    assert shards.facts().rate > before
    assert share_at(shards.facts().points, 250) > 0.9


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"curve_samples": 100}, "curve_samples is 100; it must be 512 to 65,536, or 0 for none"),
        ({"curve_namespaces": -1}, "curve_namespaces is -1; it must be 0 to 256"),
    ],
)
def test_a_sample_that_cannot_be_is_refused_with_what_can(knobs, said):
    with pytest.raises(ConfigError, match=said):
        EngineConfig(**knobs)
