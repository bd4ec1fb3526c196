"""The driver: what it does to an engine that fails, stops, or holds leases; the engine here is a stand-in."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from controlplane.workload.driver import Driver, DriverConfig
from controlplane.workload.report import rows_of
from controlplane.workload.request import Request
from engine.errors import CorruptObject, OutOfMemory
from engine.integrations.synthetic import SyntheticModel
from engine.model.presets import preset

SPEC = preset("small-gpt-oss")


@dataclass
class Lease:
    engine: StandIn
    prompt: np.ndarray
    usable_tokens: int
    lcp_tokens: int = 130
    replay_tokens: int = 0
    released: bool = False
    checkpoint_hints: tuple[int, ...] = (130, 200, 999)

    @property
    def resume_tokens(self):
        return self.usable_tokens - self.replay_tokens

    @property
    def explanation(self):
        outcome = "partial" if self.usable_tokens else "miss"
        return SimpleNamespace(outcome=outcome, reason="window_missing", state="FULL", tier="gpu")

    def load(self):
        if self.engine.load_error:
            raise self.engine.load_error
        return self.engine.model.truth(self.engine.loads_of(self.prompt), self.usable_tokens)

    def release(self):
        self.released = True


@dataclass
class StandIn:
    """Finds 100 usable tokens of every prompt; remembers what it was asked."""

    usable_tokens: int = 100
    load_error: Exception | None = None
    commit_error: Exception | None = None
    loads_of: object = lambda prompt: prompt
    model: SyntheticModel = field(default_factory=lambda: SyntheticModel(SPEC))
    leases: list[Lease] = field(default_factory=list)
    commits: list[tuple] = field(default_factory=list)
    open_at_commit: list[int] = field(default_factory=list)
    verified: list[tuple[int, int]] = field(default_factory=list)
    ticks: int = 0

    def acquire(self, tokens, *, namespace, deadline_s):
        self.leases.append(Lease(self, tokens, self.usable_tokens))
        return self.leases[-1]

    def commit(self, tokens, state, *, lease, checkpoints):
        if self.commit_error:
            raise self.commit_error
        self.open_at_commit.append(sum(not x.released for x in self.leases))
        self.commits.append((tokens, state, checkpoints))
        return SimpleNamespace(outcome="admitted", reason="none")

    def report_verification(self, checked, wrong):
        self.verified.append((checked, wrong))

    def tick(self):
        self.ticks += 1


def requests(count):
    rng = np.random.default_rng(0)
    for at in range(count):
        prompt, output = (rng.integers(0, 1000, n, dtype=np.int32) for n in (200, 20))
        yield Request(at_s=at, namespace="default", session="", prompt=prompt, output=output)


def drive(engine, source, model=True, **options):
    driver = Driver(engine, engine.model if model else None, DriverConfig(**options))
    return driver.run(source)


def test_a_request_is_loaded_verified_computed_from_its_page_and_committed_with_its_output():
    engine = StandIn()
    report = drive(engine, requests(1))
    ((tokens, state, checkpoints),) = engine.commits
    assert len(tokens) == 220
    assert (state.start_tokens, state.end_tokens) == (64, 220)
    assert checkpoints == [130, 200, 220]  # the hint beyond the tokens is left out
    assert set(state.checkpoints) == {130, 200, 220}
    assert report.verified_bytes > 0
    assert report.wrong_bytes == 0
    assert engine.verified == [(report.verified_bytes, 0)]
    assert engine.leases[0].released


def test_wrong_bytes_are_counted_and_reported_to_the_engine():
    engine = StandIn(loads_of=lambda prompt: prompt[::-1])
    report = drive(engine, requests(1))
    assert report.wrong_bytes > 0
    assert report.first_wrong
    assert engine.verified[0][1] == report.wrong_bytes


def test_a_load_that_fails_is_counted_and_the_request_computed_from_its_start():
    engine = StandIn(load_error=CorruptObject("torn"))
    report = drive(engine, requests(1))
    assert report.errors == {"corrupt_object": 1}
    assert engine.commits[0][1].start_tokens == 0
    assert engine.leases[0].released


def test_a_commit_that_fails_is_counted_and_the_lease_released():
    engine = StandIn(commit_error=OutOfMemory("full"))
    report = drive(engine, requests(2))
    assert report.errors == {"out_of_memory": 2}
    assert report.committed == 0
    assert all(lease.released for lease in engine.leases)


def test_leases_stay_open_while_later_requests_start():
    engine = StandIn()
    report = drive(engine, requests(10), inflight=3)
    assert report.committed == 10
    assert engine.open_at_commit == [4] * 7 + [3, 2, 1]


def test_without_a_model_only_the_books_are_kept():
    engine = StandIn()
    report = drive(engine, requests(2), model=False)
    assert [state for _, state, _ in engine.commits] == [None, None]
    assert report.loads == report.verified_bytes == 0


def test_a_source_that_breaks_leaves_what_came_before_finished():
    def broken():
        yield from requests(3)
        raise ValueError("line 4")

    engine = StandIn()
    driver = Driver(engine, engine.model, DriverConfig(inflight=8))
    with pytest.raises(ValueError, match="line 4"):
        driver.run(broken())
    assert driver.report.committed == 3


def test_a_stop_releases_open_leases_without_committing_them():
    engine, stop = StandIn(), threading.Event()
    driver = Driver(engine, engine.model, DriverConfig(inflight=8), stop=stop, on_request=lambda r: stop.set())
    report = driver.run(requests(5))
    assert report.requests == 1
    assert engine.commits == []
    assert engine.leases[0].released


def test_requests_keep_their_own_times_divided_by_the_speed():
    now, started_at = [0.0], []

    class Waiting(threading.Event):
        def wait(self, timeout=None):
            now[0] += timeout
            return False

    engine = StandIn()
    driver = Driver(
        engine,
        engine.model,
        DriverConfig(speed=2.0),
        stop=Waiting(),
        on_request=lambda report: started_at.append(now[0]),
        clock=lambda: now[0],
    )
    driver.run(requests(5))
    assert started_at == pytest.approx([0, 0.5, 1.0, 1.5, 2.0])
    assert engine.ticks == 3


def test_the_report_names_hits_by_tier_and_gaps_by_reason():
    report = drive(StandIn(), requests(4))
    body = report.as_dict()
    assert body["tokens"] == {"prompt": 800, "lcp": 520, "usable": 400, "replay": 0}
    assert body["hit_ratio"]["usable"] == 0.5
    assert body["hits"]["tokens_by_tier"] == {"gpu": 400}
    assert body["gaps"] == {"window_missing": {"requests": 4, "tokens": 120}}
    text = [" ".join(row) for row in rows_of(report, {"violations": ["a leak"]})]
    assert any("window_missing" in row for row in text)
    assert any("VIOLATIONS" in row for row in text)
