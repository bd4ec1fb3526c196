"""The sampled curve against the exact one, on random workloads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.insight.exact import exact_curve
from engine.consistency.shards import EVERYTHING, Shards, share_at

PAGES_A_PROMPT = 12


def zipf_paths(seed: int, exponent: float, heads: int, requests: int) -> list[list[int]]:
    """Prompts of a shared head each, popular by Zipf's law, and a tail of which some is shared by fewer."""
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, heads + 1) ** exponent
    chosen = rng.choice(heads, requests, p=weights / weights.sum())
    found = []
    for head in chosen.tolist():
        branch = int(rng.integers(0, 40))
        path = [(head, 0, page) if page < 6 else (head, branch, page) for page in range(PAGES_A_PROMPT)]
        found.append([hash64(page) for page in path])
    return found


def hash64(page: tuple[int, int, int]) -> int:
    """splitmix64 of the page's name."""
    mask = EVERYTHING - 1
    x = (page[0] * 1_000_003 + page[1] * 10_007 + page[2] + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def sampled(paths: list[list[int]], shards: Shards) -> Shards:
    for path in paths:
        shards.request(len(path), path, len(path))
    return shards


def mean_error(paths: list[list[int]], shards: Shards) -> float:
    exact, points = exact_curve(paths), sampled(paths, shards).facts().points
    caps = [max(1, int(exact.distinct * share)) for share in (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)]
    return sum(abs(share_at(points, cap) - exact.share_at(cap)) for cap in caps) / len(caps)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), exponent=st.floats(0.6, 1.3), heads=st.integers(200, 800))
def test_two_thousand_watched_pages_are_within_four_points_of_the_exact_curve(seed, exponent, heads):
    paths = zipf_paths(seed, exponent, heads, 3000)
    assert mean_error(paths, Shards(2048)) < 0.04


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), exponent=st.floats(0.6, 1.3), heads=st.integers(5, 60))
def test_what_fits_the_sample_is_exact_but_for_the_width_of_a_bucket(seed, exponent, heads):
    paths = zipf_paths(seed, exponent, heads, 400)
    exact, facts = exact_curve(paths), sampled(paths, Shards(1 << 20)).facts()
    assert facts.rate == 1.0
    assert facts.references == facts.samples == exact.references
    assert facts.points[-1][1] == pytest.approx(exact.share_at(exact.distinct))
    for cap in (1, exact.distinct // 10, exact.distinct // 3, exact.distinct):
        low, high = exact.share_at(cap / 1.05 - 1), exact.share_at(cap * 1.05 + 1)
        assert low - 0.02 <= share_at(facts.points, cap) <= high + 0.02


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), heads=st.integers(50, 800), most=st.integers(64, 512))
def test_a_curve_rises_stays_within_bounds_and_watches_no_more_than_it_may(seed, heads, most):
    shards = Shards(most, half_life_samples=500.0, horizon_pages=2000.0)
    for path in zipf_paths(seed, 1.0, heads, 1000):
        shards.request(len(path), path, len(path) - 2)
        assert len(shards._last) <= most
    shares = [share for _, share in shards.facts().points]
    assert shares == sorted(shares)
    assert all(0.0 <= share <= 1.0 for share in shares)


def test_the_exact_curve_counts_what_an_engine_of_that_size_would_hit():
    """By a plain simulation: look the whole prompt up, then hold it, tail first."""
    paths = zipf_paths(3, 1.0, 40, 300)
    exact = exact_curve(paths)
    for cap in (13, 60, 200, exact.distinct):
        held: dict[int, None] = {}
        hits = 0
        for path in paths:
            hits += sum(page in held for page in path)
            for page in reversed(path):
                held.pop(page, None)
                held[page] = None
            while len(held) > cap:
                del held[next(iter(held))]
        assert exact.share_at(cap) == hits / exact.references
