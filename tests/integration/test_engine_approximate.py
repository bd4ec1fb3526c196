"""Approximate hits: only for who asks, kept apart, and never below the GPU."""

from __future__ import annotations

import pytest
from engine_support import fork, prompt
from lineage_support import Run

from engine.consistency.state import State
from engine.errors import ConfigError
from engine.index.space import space_of

NAMES = ("small-deepseek-v4", "small-gemma-3")


class Ward:
    """An engine with pages of the exact run `a` and no checkpoints, and a run `b`: what an approximate basis gives."""

    def __init__(self, rig, pages=8):
        self.rig, self.page = rig, rig.page
        self.a, self.b = Run(rig.spec, 1 << 40), Run(rig.spec, 2 * rig.page)
        self.tokens = prompt(pages * rig.page)
        self.longer = fork(self.tokens, len(self.tokens), (pages + 3) * rig.page, 1)
        self.put(self.a, self.tokens, at=[])

    def put(self, run, tokens, *, at=None, start=0, lease=None):
        done = self.rig.engine.commit(tokens, run.prefill(tokens, start, at), lease=lease)
        self.rig.assert_clean()
        return done

    def ask(self, tokens, **how):
        return self.rig.engine.acquire(tokens, deadline_s=3600.0, approximate=True, **how)

    def keep(self):
        """One request on an approximate basis, its state kept; the prefix's id."""
        with self.ask(self.longer) as lease:
            assert lease.approximate
            done = self.put(self.b, self.longer, lease=lease)
        assert (done.outcome, done.reason) == ("admitted", "ok")
        return done.prefix_id

    def spans(self, name):
        self.rig.engine.flush_telemetry()
        return self.rig.log.named(name)


@pytest.fixture(params=NAMES)
def ward(request, make_rig):
    return Ward(make_rig(request.param))


def test_a_replay_of_one_window_is_offered_only_to_who_asks(ward):
    with ward.rig.engine.acquire(ward.tokens) as lease:
        exact = lease.replay_tokens
        assert (lease.usable_tokens, lease.approximate) == (len(ward.tokens), False)
    with ward.ask(ward.tokens) as lease:
        assert (lease.usable_tokens, lease.replay_tokens, lease.approximate) == (len(ward.tokens), ward.page, True)
        assert lease.replay_tokens < exact
        why = lease.explanation
        assert (why.outcome, why.state, why.reason) == ("hit", "APPROXIMATE", "none")
        assert ward.a.made(lease.load(), ward.tokens)
    span = ward.spans("kvcache.acquire")[-1]
    assert (span["kvcache.basis"], span["kvcache.state"]) == ("approximate", "APPROXIMATE")
    assert [s["kvcache.basis"] for s in ward.spans("kvcache.acquire")[:-1]] == ["exact"]
    reasons = {key[1:] for key in ward.rig.engine.counters().by_validation if key[0] == "window_fresh"}
    assert {("repairable", "replay_approximates"), ("pass", "replay_approximates")} >= reasons - {
        ("repairable", "replay_rebuilds"),
        ("pass", "replay_rebuilds"),
    }


def test_an_exact_hit_that_saves_as_much_is_preferred(ward):
    ward.put(ward.a, ward.tokens, at=[len(ward.tokens) - ward.page])
    with ward.ask(ward.tokens) as lease:
        assert (lease.usable_tokens, lease.replay_tokens) == (len(ward.tokens) - ward.page, 0)
        assert not lease.approximate
    with ward.ask(prompt(300, 9)) as lease:
        assert (lease.usable_tokens, lease.approximate) == (0, False)


def test_what_is_computed_on_an_approximate_basis_has_an_id_and_a_state_of_its_own(ward):
    before = ward.rig.ids
    prefix_id = ward.keep()
    assert prefix_id not in before
    rows = {r["prefix.id"]: r for r in ward.rig.engine.snapshot()}
    row = rows[prefix_id]
    assert (row["state.to"], row["namespace"], row["basis"]) == ("APPROXIMATE", "default", "approximate")
    assert {rows[i]["basis"] for i in before} == {"exact"}
    moved = [t for t in ward.spans("kvcache.transition") if t["kvcache.prefix.id"] == prefix_id]
    assert [(t["kvcache.state.from"], t["kvcache.state.to"], t["kvcache.basis"]) for t in moved] == [
        ("NEW", "APPROXIMATE", "approximate")
    ]
    assert ward.spans("kvcache.commit")[-1]["kvcache.basis"] == "approximate"
    exact = ward.put(ward.a, ward.longer)
    assert exact.outcome == "admitted"
    assert exact.prefix_id != prefix_id


def test_approximate_state_is_served_to_who_asks_and_to_nobody_else(ward):
    ward.keep()
    with ward.ask(ward.longer) as lease:
        assert (lease.usable_tokens, lease.replay_tokens, lease.approximate) == (len(ward.longer), 0, True)
        assert lease.explanation.state == "APPROXIMATE"
        assert ward.b.made(lease.load(), ward.longer)
    with ward.rig.engine.acquire(ward.longer) as lease:
        assert (lease.lcp_tokens, lease.approximate) == (len(ward.tokens), False)
        assert ward.a.made(lease.load(), ward.tokens)
    tokens = {key: n for key, (n, _) in ward.rig.engine.counters().by_hit.items()}
    assert {state for _, state, _ in tokens} == {"APPROXIMATE", "FULL"}


def test_state_on_an_approximate_basis_must_be_whole(ward):
    with ward.ask(ward.longer) as lease:
        done = ward.put(ward.b, ward.longer, start=lease.resume_tokens, lease=lease)
    assert (done.outcome, done.reason) == ("refused", "approximate_needs_whole_state")
    assert ward.rig.engine.counters().refusals == {"approximate_needs_whole_state": 1}
    assert State.APPROXIMATE not in ward.rig.states


def test_a_conversation_goes_on_in_the_approximate_space(ward):
    first = ward.keep()
    more = fork(ward.longer, len(ward.longer), len(ward.longer) + 2 * ward.page, 2)
    with ward.ask(more) as lease:
        assert lease.usable_tokens == len(ward.longer)
        assert ward.put(ward.b, more, lease=lease).outcome == "admitted"
    assert ward.rig.states["APPROXIMATE"] == 2
    assert ward.rig.node(first).record.state == "APPROXIMATE"
    with ward.ask(more) as lease:
        assert ward.b.made(lease.load(), more)


def test_a_split_of_approximate_state_is_approximate(ward):
    ward.keep()
    with ward.ask(ward.longer) as lease:
        assert lease.approximate
        ward.put(ward.b, ward.longer[: 5 * ward.page], at=[5 * ward.page], lease=lease)
    assert ward.rig.states["APPROXIMATE"] == 2
    assert all(r["basis"] == "approximate" for r in ward.rig.engine.snapshot() if r["state.to"] == "APPROXIMATE")
    ward.rig.assert_clean()


def test_approximate_state_is_neither_coded_nor_offloaded(make_rig, tmp_path):
    ward = Ward(make_rig(host_bytes=1 << 20, disk_bytes=1 << 20, data_dir=tmp_path))
    prefix_id = ward.keep()
    for kind in ("compress", "offload"):
        done = ward.rig.command(kind, prefix_ids=[prefix_id])
        assert (done.status, done.outcome["refused"][0]["reason"]) == ("refused", "state_is_approximate")
    assert ward.rig.node(prefix_id).record.state == "APPROXIMATE"
    assert ward.rig.command("compact").status == "succeeded"
    with ward.ask(ward.longer) as lease:
        assert ward.b.made(lease.load(), ward.longer)
    assert ward.rig.command("evict", prefix_ids=[prefix_id]).outcome["evicted"] == 1
    ward.rig.assert_clean()


def test_under_pressure_approximate_state_is_evicted_and_goes_nowhere_else(make_rig, tmp_path):
    ward = Ward(make_rig(gpu_bytes=512 << 10, host_bytes=4 << 20, disk_bytes=4 << 20, data_dir=tmp_path))
    prefix_id = ward.keep()
    for seed in range(2, 40):
        ward.put(ward.a, prompt(6 * ward.page, seed))
        node = ward.rig.ledger.nodes.get(prefix_id)
        if node is None:
            break
        assert not any(h.host or h.disk for h in node.record.holdings())
    gone = [t for t in ward.spans("kvcache.transition") if t["kvcache.prefix.id"] == prefix_id][-1]
    assert (gone["kvcache.state.to"], gone["kvcache.cause"]) == ("EVICTED", "pressure")


def test_approximate_state_does_not_outlive_the_engine(make_rig, tmp_path):
    ward = Ward(make_rig(disk_bytes=4 << 20, data_dir=tmp_path))
    ward.keep()
    ward.rig.engine.close()
    rig = make_rig(disk_bytes=4 << 20, data_dir=tmp_path)
    assert {r["basis"] for r in rig.engine.snapshot()} == {"exact"}
    with rig.engine.acquire(ward.longer, deadline_s=3600.0, approximate=True) as lease:
        assert lease.lcp_tokens == len(ward.tokens)


def test_damaged_approximate_state_is_quarantined_and_renewed_by_its_own_run(make_rig):
    ward = Ward(make_rig())
    node = ward.rig.node(ward.keep())
    arena, copy = ward.rig.ledger.tiers.gpu, node.record.spans["compressed_kv"].gpu
    arena.buffer[int(arena.addresses(copy.page_class, copy.slots)[1])] ^= 0x20
    ward.rig.engine._server._recovery.prove_in_memory(node)
    assert node.record.state == "QUARANTINED"
    with ward.ask(ward.longer) as lease:
        assert lease.lcp_tokens == len(ward.longer)
        assert lease.usable_tokens == len(ward.tokens)
        assert ward.put(ward.b, ward.longer, lease=lease).outcome == "admitted"
    assert node.record.state == "APPROXIMATE"
    with ward.ask(ward.longer) as lease:
        assert ward.b.made(lease.load(), ward.longer)


def test_a_lossy_hit_is_approximate_for_who_asked_and_its_state_is_kept_apart(make_rig):
    rig = make_rig("small-gpt-oss", codec="int8")
    tokens = prompt(4 * rig.page)
    rig.command("compress", prefix_ids=[rig.commit(tokens).prefix_id], codec="int8")
    longer = fork(tokens, len(tokens), 6 * rig.page, 1)
    with rig.engine.acquire(longer, approximate=True) as lease:
        assert (lease.usable_tokens, lease.approximate, lease.lossy) == (len(tokens), True, True)
        assert (lease.explanation.state, lease.explanation.outcome) == ("APPROXIMATE", "hit")
        assert rig.engine.commit(longer, rig.model.prefill(longer, 0, [len(longer)]), lease=lease).outcome == "admitted"
    with rig.engine.acquire(longer) as lease:
        assert (lease.usable_tokens, lease.approximate) == (len(tokens), False)
        result = rig.engine.commit(longer, rig.model.prefill(longer, 0, [len(longer)]), lease=lease)
        assert result.reason == "lossy_basis"
    with rig.engine.acquire(longer, approximate=True) as lease:
        assert (lease.usable_tokens, lease.approximate) == (len(longer), True)
    rig.assert_clean()


def test_modes_that_allow_only_exact_state_serve_nothing_approximate(ward):
    ward.keep()
    ward.rig.engine.reconfigure({"mode": "full_only"}, revision=1)
    with ward.ask(ward.longer) as lease:
        assert (lease.usable_tokens, lease.approximate) == (len(ward.tokens), False)
    ward.rig.engine.reconfigure({"mode": "bypass"}, revision=2)
    with ward.ask(ward.longer) as lease:
        assert lease.usable_tokens == 0


def test_no_namespace_is_another_ones_approximate_space(ward):
    from engine.errors import BadNamespace

    with pytest.raises(BadNamespace):
        ward.rig.engine.acquire(ward.tokens, namespace=space_of("default", approximate=True))


def test_models_with_recurrent_state_are_not_offered_a_replay_of_any_length(make_rig):
    rig = make_rig("small-qwen3-next")
    tokens = prompt(8 * rig.page)
    rig.commit(tokens, [])
    with rig.engine.acquire(tokens, approximate=True) as lease:
        assert (lease.usable_tokens, lease.explanation.reason) == (0, "recurrent_missing")


def test_a_caller_whose_weights_have_changed_gets_a_miss_and_may_not_commit(ward):
    with ward.rig.engine.acquire(ward.longer, refuse="weights_changed") as lease:
        assert (lease.usable_tokens, lease.lcp_tokens) == (0, len(ward.tokens))
        assert (lease.explanation.outcome, lease.explanation.reason) == ("miss", "weights_changed")
        done = ward.put(ward.b, ward.longer, lease=lease)
    assert (done.outcome, done.reason) == ("refused", "weights_changed")
    assert ward.spans("kvcache.acquire")[-1]["kvcache.reason"] == "weights_changed"
    assert ward.spans("kvcache.commit")[-1]["kvcache.reason"] == "weights_changed"
    with ward.rig.engine.acquire(prompt(300, 5), refuse="weights_changed") as lease:
        assert lease.explanation.reason == "weights_changed"


def test_a_caller_that_could_not_load_gets_a_miss_and_may_commit(ward):
    with ward.rig.engine.acquire(ward.longer, refuse="load_failed") as lease:
        assert (lease.usable_tokens, lease.explanation.reason) == (0, "load_failed")
        assert ward.put(ward.a, ward.longer, lease=lease).outcome == "admitted"


def test_a_refusal_for_no_known_reason_is_none(ward):
    with pytest.raises(ConfigError, match="weights_changed"):
        ward.rig.engine.acquire(ward.tokens, refuse="because")
