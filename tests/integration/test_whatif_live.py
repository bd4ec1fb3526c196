"""The curve of a live engine: what it foretells of other caps, its way to the control plane, and its trial."""

from __future__ import annotations

import datetime as dt
import itertools
import shlex
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest
from steering_support import QUICK, running_agent, running_deck, wait_for
from test_whatif_trace import write_trace
from typer.testing import CliRunner

from controlplane.auth import Role
from controlplane.cli.main import app
from controlplane.errors import BadRequest, NotFound
from controlplane.host.agent import Agent
from controlplane.insight import live, predictions
from controlplane.insight.curves import curve_of
from controlplane.insight.predictions import Patience
from controlplane.store.models import CapPrediction, CurveSample, Engine, RequestRollup
from controlplane.workload.generator import Generator, GeneratorConfig
from engine import CacheEngine, EngineConfig, preset

SPEC = preset("bench-full-swa")
MIB = 1 << 20
REQUESTS = 1500
NAMESPACES = ("assistant", "support")
TOLERANCE = 0.05
"""Of the usable hit rate: the stated accuracy of a prediction for a cap in bytes, on a workload that stays the same."""


def books(**config) -> CacheEngine:
    settings = {"gpu_bytes": 8 * MIB, "materialise": False, "codec": "none", "spans": False, **config}
    return CacheEngine(SPEC, EngineConfig(engine_id="live", **settings))


def serve(engine: CacheEngine, count: int = REQUESTS, seed: int = 1) -> float:
    """The generator's chats and agents through the books; the usable hit rate."""
    config = GeneratorConfig(seed=seed, namespaces=NAMESPACES, prompts_per_namespace=30, max_prompt_tokens=4096)
    prompt = usable = 0
    for request in itertools.islice(Generator(config), count):
        with engine.acquire(request.prompt, namespace=request.namespace) as lease:
            prompt, usable = prompt + len(request.prompt), usable + lease.usable_tokens
            at = (*lease.checkpoint_hints, len(request.tokens))
            engine.commit(request.tokens, None, lease=lease, checkpoints=at)
    return usable / prompt


@pytest.fixture(scope="module")
def sampled():
    """An engine that has served with room for a few per cent of what was asked."""
    with books() as engine:
        rate = serve(engine)
        yield engine.curve(), rate


@pytest.mark.parametrize("mib", [4, 16, 32, 128])
def test_the_curve_foretells_the_hit_rate_at_another_cap_in_bytes(sampled, mib):
    document, _ = sampled
    curve = curve_of(document)
    with books(gpu_bytes=mib * MIB) as other:
        measured = serve(other)
    assert curve.hit_ratio(curve.pages_at(n_bytes=mib * MIB)) == pytest.approx(measured, abs=TOLERANCE)


@pytest.mark.parametrize("cap", [60, 200, 800])
def test_the_curve_foretells_the_hit_rate_at_a_cap_in_prefixes(sampled, cap):
    document, _ = sampled
    curve = curve_of(document)
    with books(gpu_bytes=512 * MIB, cap_prefixes=cap) as other:
        measured = serve(other)
    assert curve.hit_ratio(curve.pages_at(prefixes=cap)) == pytest.approx(measured, abs=1.4 * TOLERANCE)


def test_the_curve_says_of_the_cap_in_force_what_was_measured_under_it(sampled):
    document, rate = sampled
    curve = curve_of(document)
    assert curve.measured_ratio == pytest.approx(rate, abs=0.01)
    assert curve.hit_ratio(predictions.capacity_pages(curve, document["held"])) == pytest.approx(rate, abs=TOLERANCE)


def test_each_namespace_has_a_curve_of_its_own(sampled):
    document, _ = sampled
    assert sorted(document["namespaces"]) == sorted(NAMESPACES)
    parts = [curve_of(document, name) for name in NAMESPACES]
    whole = curve_of(document)
    assert sum(part.prompt_tokens for part in parts) == pytest.approx(whole.prompt_tokens, rel=0.05)
    for part in parts:
        assert not part.missing_samples
        assert part.hit_ratio(1e9) == pytest.approx(part.ceiling_ratio)


def test_an_engine_that_does_not_sample_has_no_curve_and_serves_the_same():
    with books(curve_samples=0) as off, books() as on:
        assert serve(off, 200) == serve(on, 200)
        assert off.curve() == {}


@contextmanager
def engine_beside(deck, engine: CacheEngine):
    agent = Agent(
        engine, url=deck.url, token=deck.tokens[Role.ENGINE], data_dir=deck.folder / uuid.uuid4().hex, options=QUICK
    )
    with running_agent(agent):
        yield


def test_a_curve_reaches_the_control_plane_when_the_policy_asks_and_a_new_cap_is_foretold(tmp_path):
    with (
        running_deck(tmp_path, with_scheduler=True) as deck,
        books() as engine,
        engine_beside(deck, engine),
        deck.client() as client,
    ):
        serve(engine)
        _sample(deck, client)
        found = client.whatif(engine="live", cap_bytes=64 * MIB, within_points=2)
        assert found["refused"] == ""
        assert found["proposed"]["hit_ratio"] > found["now"]["hit_ratio"]
        assert found["proposed"]["evicts_prefixes"] == 0
        smaller = client.whatif(engine="live", cap_bytes=4 * MIB)["proposed"]
        assert smaller["hit_ratio"] < found["now"]["hit_ratio"]
        assert smaller["evicts_prefixes"] > 0
        assert smaller["evicts_bytes"] >= found["now"]["bytes"] - 4 * MIB - MIB
        revision = client.set_desired({"cap_gpu_bytes": 4 * MIB}, reason="try a smaller cap")["revision"]
        wait_for(lambda: engine.observed()["cap_gpu_bytes"] == 4 * MIB, "the engine to apply the cap")
        wait_for(lambda: client.engines()[0]["observed_revision"] == revision, "the agent to say so")
        _sample(deck, client)
        (row,) = client.predictions(engine="live")
        assert row["revision"] == revision
        assert row["state"] == "waiting"
        assert row["predicted_ratio"] == pytest.approx(smaller["hit_ratio"], abs=0.01)
        assert row["caps"]["cap_gpu_bytes"] == 4 * MIB
        with pytest.raises(NotFound, match="has no curve"):
            client.whatif(engine="live", namespace="nobody")


HOWTO = Path(__file__).resolve().parents[2] / "docs" / "howto" / "caps.md"


def commands_of_the_page() -> list[list[str]]:
    """Every `kvdeck whatif` in the page's blocks, in order."""
    blocks = HOWTO.read_text(encoding="utf-8").split("```")[1::2]
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("kvdeck whatif")]
    return [shlex.split(line)[1:] for line in lines]


def test_every_what_if_of_the_howto_runs(tmp_path):
    """TRACE.jsonl stands for a trace of one's own, tenant-a for a namespace."""
    trace = write_trace(tmp_path / "trace.jsonl", 300)
    found = commands_of_the_page()
    assert len(found) == 7
    with (
        running_deck(tmp_path / "deck", with_scheduler=True) as deck,
        books() as engine,
        engine_beside(deck, engine),
        deck.client() as client,
    ):
        serve(engine)
        _sample(deck, client)
        line = ["--url", deck.url, "--token", deck.tokens[Role.VIEWER]]
        for command in found:
            named = {"TRACE.jsonl": str(trace), "tenant-a": NAMESPACES[0]}
            arguments = [named.get(word, word) for word in command]
            quick = ["--limit", "40", "--rate", "1.0"] if str(trace) in arguments else line
            done = CliRunner().invoke(app, [*arguments, *quick])
            assert done.exit_code == 0, (command, done.output, done.exception)


def _sample(deck, client) -> None:
    def count() -> int:
        with deck.store.read() as session:
            return session.query(CurveSample).count()

    before = count()
    client.run_policy("curve-sampling", reason="now")
    wait_for(lambda: count() > before, "the curve")


NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def add_sample(session, document, at: dt.datetime) -> CurveSample:
    row = CurveSample(engine_id="live", boot_id="b", at=at, samples=document["total"]["samples"], document=document)
    session.add(row)
    session.flush()
    return row


def with_caps(document, **caps):
    held = document["held"]
    return {**document, "held": {**held, "caps": {**held["caps"], **caps}}}


def served(session, minute: dt.datetime, *, requests: int, prompt: int, usable: int, namespace: str = "a") -> None:
    session.add(
        RequestRollup(
            engine_id="live", minute=minute, namespace=namespace, outcome="hit", reason="none", state="FULL",
            tier="gpu", requests=requests, prompt_tokens=prompt, lcp_tokens=usable, usable_tokens=usable,
            replay_tokens=0,
        )
    )  # fmt: skip


@pytest.fixture
def store(tmp_path, sampled):
    with running_deck(tmp_path) as deck:
        with deck.store.write() as session:
            session.add(_engine())
        yield deck.store


def _engine() -> Engine:
    values = {
        "id": "live", "boot_id": "b", "model": "m", "fingerprint": "f", "page_tokens": 64, "labels": {},
        "registered_at": NOW, "last_seen_at": NOW, "observed": {}, "stats": {}, "observed_revision": 7,
    }  # fmt: skip
    blank = {
        c.name: {} for c in Engine.__table__.c if not c.nullable and "JSON" in str(c.type) and c.name not in values
    }
    return Engine(**values, **blank)


PATIENCE = Patience(least_requests=100)


def test_what_was_foretold_is_measured_after_the_cache_has_settled(store, sampled):
    document, _ = sampled
    with store.write() as session:
        add_sample(session, document, NOW)
        smaller = with_caps(document, gpu_bytes=4 * MIB)
        changed = add_sample(session, smaller, NOW + dt.timedelta(minutes=1))
        assert predictions.keep_up(session, changed, NOW + dt.timedelta(minutes=1), PATIENCE) == 1
        served(session, NOW + dt.timedelta(minutes=3), requests=900, prompt=900, usable=0)  # while it settles
        served(session, NOW + dt.timedelta(minutes=10), requests=150, prompt=1000, usable=400)
        later = NOW + dt.timedelta(minutes=30)
        assert predictions.keep_up(session, add_sample(session, smaller, later), later, PATIENCE) == 0
    with store.read() as session:
        (row,) = live.outcomes(session, "live")
    assert (row.state, row.revision, row.measured_requests) == ("measured", 7, 150)
    assert row.measured_ratio == pytest.approx(0.4)
    assert row.error_points == pytest.approx((0.4 - row.predicted_ratio) * 100, abs=0.01)


def test_a_second_change_ends_the_trial_of_the_first_and_too_few_requests_end_it_too(store, sampled):
    document, _ = sampled
    with store.write() as session:
        add_sample(session, document, NOW)
        for minute, n_bytes in ((1, 4 * MIB), (2, 5 * MIB)):
            at = NOW + dt.timedelta(minutes=minute)
            predictions.keep_up(session, add_sample(session, with_caps(document, gpu_bytes=n_bytes), at), at, PATIENCE)
        day = NOW + dt.timedelta(hours=25)
        predictions.keep_up(session, add_sample(session, with_caps(document, gpu_bytes=5 * MIB), day), day, PATIENCE)
    with store.read() as session:
        assert [row.state for row in live.outcomes(session, "live")] == ["too_few", "superseded"]


def test_a_cap_of_one_namespace_is_foretold_from_its_own_curve(store, sampled):
    document, _ = sampled
    with store.write() as session:
        add_sample(session, document, NOW)
        capped = with_caps(document, namespaces={"support": {"max_bytes": 2 * MIB}})
        predictions.keep_up(session, add_sample(session, capped, NOW), NOW, PATIENCE)
    curve = curve_of(document, "support")
    with store.read() as session:
        (row,) = live.outcomes(session)
    assert row.namespace == "support"
    assert row.predicted_ratio == pytest.approx(curve.hit_ratio(curve.pages_at(n_bytes=2 * MIB)))


def test_too_few_samples_foretell_nothing_and_say_how_many_are_missing(store):
    with books() as engine:
        serve(engine, 5)
        document = engine.curve()
    with store.write() as session:
        add_sample(session, document, NOW)
        capped = with_caps(document, prefixes=10)
        predictions.keep_up(session, add_sample(session, capped, NOW), NOW, PATIENCE)
        assert [row.state for row in session.query(CapPrediction)] == ["no_curve"]
        found = live.what_if(session, "live", cap_prefixes=10)
    assert found.curve == []
    assert found.recommendation is None
    assert found.proposed is None
    have = int(document["total"]["samples"])
    assert found.refused == f"{have:,} samples so far; a curve takes 2,000, so {2000 - have:,} more are needed"


def test_a_curve_that_cannot_be_is_refused_by_the_name_of_its_field(store, sampled):
    from controlplane.ingest.curves import keep_curve

    document, _ = sampled
    for broken, said in (
        ({**document, "total": {**document["total"], "rate": 2.0}}, "total.rate"),
        ({**document, "total": {**document["total"], "points": [[1.0, 7.0]]}}, "total.points.0.1"),
        ({"total": {}}, "page_tokens"),
        ({**document, "page_bytes": float("nan")}, "page_bytes"),
    ):
        with store.write() as session, pytest.raises(BadRequest, match=said.replace(".", r"\.")):
            keep_curve(session, "live", broken, boot_id="b", now=NOW)
