"""A path is of one run: what two runs of the same tokens, with other last bits, may and may not do to each other."""

from __future__ import annotations

import threading

import pytest
from engine_support import checkpoint_at, fork, prompt
from lineage_support import Run
from test_engine_races import stopped_at

MODELS = ("small-deepseek-v4", "small-gemma-3", "small-llama")


class Two:
    """An engine and two runs of the same tokens that part after page 2."""

    def __init__(self, rig):
        self.rig = rig
        self.a, self.b = Run(rig.spec, 1 << 40), Run(rig.spec, 2 * rig.page)

    def commit(self, run, tokens, *, at=None, start=0, lease=None):
        done = self.put(run, tokens, at=at, start=start, lease=lease)
        self.rig.assert_clean()
        return done

    def put(self, run, tokens, *, at=None, start=0, lease=None):
        """A commit in the middle of another, whose slots have no owner yet: nothing is checked."""
        return self.rig.engine.commit(tokens, run.prefill(tokens, start, at), lease=lease)

    def served(self, tokens):
        """The usable tokens of a hit and which runs its bytes are of; they must be wholly of one."""
        with self.rig.engine.acquire(tokens, deadline_s=3600.0) as lease:
            if not lease.usable_tokens:
                return 0, ""
            loaded = lease.load()
            names = "".join(n for n, run in (("a", self.a), ("b", self.b)) if run.made(loaded, tokens))
            assert names, "the hit is of no run"
            return lease.usable_tokens, names


@pytest.fixture
def two(make_rig):
    return Two(make_rig())


def offload(two, tier):
    two.rig.command("offload", prefix_ids=two.rig.ids, tier=tier)


@pytest.mark.parametrize("name", MODELS)
def test_a_newer_run_replaces_the_path_from_the_first_page_that_differs(make_rig, name):
    two = Two(make_rig(name))
    page = two.rig.page
    tokens = prompt(6 * page)
    longer = fork(tokens, len(tokens), 9 * page, 1)
    two.commit(two.a, tokens)
    two.commit(two.a, longer, start=6 * page)
    assert two.served(longer) == (9 * page, "a")
    done = two.commit(two.b, tokens)
    assert (done.outcome, done.new_pages) == ("admitted", 4)
    assert two.served(tokens) == (6 * page, "b")
    assert two.served(longer)[0] == (6 * page)
    two.rig.engine.flush_telemetry()
    gone = [t for t in two.rig.log.named("kvcache.transition") if t["kvcache.state.to"] == "EVICTED"]
    assert {(t["kvcache.cause"], t["kvcache.reason"]) for t in gone} == {("commit", "other_lineage")}


def test_the_same_bytes_again_change_nothing(two):
    tokens = prompt(6 * two.rig.page)
    two.commit(two.a, tokens)
    versions = {r["prefix.id"]: (r["life"], r["version"]) for r in two.rig.engine.snapshot()}
    done = two.commit(two.a, tokens)
    assert (done.outcome, done.new_pages) == ("admitted", 0)
    assert {r["prefix.id"]: (r["life"], r["version"]) for r in two.rig.engine.snapshot()} == versions


@pytest.mark.parametrize("how", ["leased", "pinned", "busy", "graph"])
def test_a_path_that_somebody_uses_stays_and_the_commit_is_refused(two, how):
    tokens = prompt(6 * two.rig.page)
    prefix_id = two.commit(two.a, tokens).prefix_id
    lease = two.rig.engine.acquire(tokens) if how == "leased" else None
    if how == "pinned":
        two.rig.command("pin", prefix_ids=[prefix_id], ttl_s=60)
    if how == "graph":
        with two.rig.engine.graph.window():
            done = two.commit(two.b, tokens)
    else:
        two.rig.node(prefix_id).record.busy = how == "busy"
        done = two.commit(two.b, tokens)
        two.rig.node(prefix_id).record.busy = False
    assert (done.outcome, done.reason) == ("refused", "other_lineage")
    assert two.rig.engine.counters().refusals["other_lineage"] == 1
    assert two.rig.ids == [prefix_id]
    if lease is not None:
        assert two.a.made(lease.load(), tokens)
        lease.release()
    assert two.served(tokens) == (len(tokens), "a")


def test_a_branch_below_the_first_page_that_differs_goes_with_it_and_one_above_stays(two):
    page = two.rig.page
    trunk = prompt(6 * page)
    above, below = fork(trunk, page, 4 * page, 1), fork(trunk, 5 * page, 8 * page, 2)
    for tokens in (trunk, above, below):
        two.commit(two.a, tokens)
    two.commit(two.b, trunk)
    assert two.served(trunk) == (6 * page, "b")
    assert two.served(above) == (4 * page, "a")
    assert two.served(below) == (0, "") or two.served(below)[1] == "b"


@pytest.mark.parametrize("tier", ["host", "disk"])
@pytest.mark.parametrize("which", ["a", "b"])
def test_pages_off_the_gpu_get_fresh_bytes_only_of_their_own_run(make_rig, tmp_path, tier, which):
    two = Two(make_rig(host_bytes=4 << 20, disk_bytes=4 << 20, data_dir=tmp_path))
    tokens = prompt(6 * two.rig.page)
    longer = fork(tokens, len(tokens), 9 * two.rig.page, 1)
    two.commit(two.a, tokens)
    two.commit(two.a, longer, start=len(tokens))
    offload(two, tier)
    assert two.commit(getattr(two, which), tokens).outcome == "admitted"
    assert two.served(tokens) == (len(tokens), which)
    assert two.served(longer) == ((len(longer), "a") if which == "a" else (len(tokens), "b"))


@pytest.mark.parametrize("which", ["a", "b"])
@pytest.mark.parametrize("leased", [False, True])
def test_a_quarantined_prefix_is_renewed_by_its_own_run_and_replaced_by_another(make_rig, which, leased):
    two = Two(make_rig(host_bytes=4 << 20))
    page = two.rig.page
    tokens, other = prompt(6 * page), None
    prefix_id = two.commit(two.a, tokens).prefix_id
    other = fork(tokens, len(tokens), 9 * page, 1)
    two.commit(two.a, other, start=len(tokens))
    lease = two.rig.engine.acquire(other) if leased else None
    node = two.rig.node(prefix_id)
    arena, copy = two.rig.ledger.tiers.gpu, node.record.spans["compressed_kv"].gpu
    arena.buffer[int(arena.addresses(copy.page_class, copy.slots)[4])] ^= 0x20
    two.rig.engine._server._recovery.prove_in_memory(node)
    assert node.record.state == "QUARANTINED"
    done = two.commit(getattr(two, which), tokens)
    if which == "b" and leased:
        assert done.reason == "other_lineage"
        lease.release()
        done = two.commit(two.b, tokens)
    assert done.outcome == "admitted"
    assert two.served(tokens) == (len(tokens), which)
    assert two.served(other) == ((len(other), "a") if which == "a" else (len(tokens), "b"))
    if lease is not None:
        lease.release()


@pytest.mark.parametrize("codec", ["lossless", "int8"])
@pytest.mark.parametrize("where", ["gpu", "host", "disk"])
def test_coded_pages_are_compared_by_what_they_were_before(make_rig, tmp_path, codec, where):
    two = Two(make_rig("small-gpt-oss", host_bytes=4 << 20, disk_bytes=4 << 20, data_dir=tmp_path))
    tokens = prompt(6 * two.rig.page)
    prefix_id = two.commit(two.a, tokens).prefix_id
    assert two.rig.command("compress", prefix_ids=[prefix_id], codec=codec).outcome["compressed"] == 1
    if where != "gpu":
        offload(two, where)
    assert two.commit(two.a, tokens).new_pages == 0
    assert two.commit(two.b, tokens).new_pages == 4
    if codec == "lossless":
        assert two.served(tokens) == (len(tokens), "b")


@pytest.mark.parametrize("codec", ["", "lossless"])
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("which", ["a", "b"])
def test_adopted_pages_are_compared_by_their_bytes(make_rig, tmp_path, codec, warm, which):
    first = Two(make_rig(disk_bytes=4 << 20, data_dir=tmp_path))
    tokens = prompt(6 * first.rig.page)
    longer = fork(tokens, len(tokens), 9 * first.rig.page, 1)
    prefix_id = first.commit(first.a, tokens).prefix_id
    first.commit(first.a, longer, start=len(tokens))
    if codec:
        first.rig.command("compress", prefix_ids=[prefix_id], codec=codec)
    first.rig.engine.close()
    two = Two(make_rig(disk_bytes=4 << 20, data_dir=tmp_path))
    if warm:
        two.rig.command("warm", prefix_ids=two.rig.ids)
    assert two.commit(getattr(two, which), tokens).new_pages == (0 if which == "a" else 4)
    assert two.served(tokens) == (len(tokens), which)
    assert two.served(longer) == ((len(longer), "a") if which == "a" else (len(tokens), "b"))


def test_of_two_runs_that_publish_the_same_new_pages_at_once_one_is_refused(two):
    tokens = prompt(6 * two.rig.page)
    done = []
    with stopped_at(two.rig.engine._publisher._drafts, "write", lambda: done.append(two.commit(two.b, tokens))):
        assert two.put(two.a, tokens).outcome == "admitted"
    two.rig.assert_clean()
    assert [(d.outcome, d.reason) for d in done] == [("refused", "other_lineage")]
    assert two.served(tokens) == (len(tokens), "a")


def test_of_two_runs_that_publish_pages_below_one_trunk_at_once_both_stand_where_they_agree(two):
    page = two.rig.page
    trunk = prompt(2 * page)  # the runs are the same up to here
    mine, other = fork(trunk, 2 * page, 6 * page, 1), fork(trunk, 2 * page, 6 * page, 2)
    with stopped_at(two.rig.engine._publisher._drafts, "write", lambda: two.commit(two.b, mine)):
        assert two.put(two.a, other).outcome == "admitted"
    two.rig.assert_clean()
    assert two.served(mine) == (6 * page, "b")
    assert two.served(other) == (6 * page, "a")


def test_checksums_that_nobody_has_make_two_commits_at_once_differ(two):
    """As on a GPU, where pages get checksums only when they are first on the host."""
    two.rig.ledger.tiers.sealed_on_commit = False
    two.rig.engine._server._planner._validator._sealed_on_commit = False
    tokens = prompt(6 * two.rig.page)
    done = []
    with stopped_at(two.rig.engine._publisher._drafts, "write", lambda: done.append(two.commit(two.a, tokens))):
        assert two.put(two.a, tokens).outcome == "admitted"
    assert [d.reason for d in done] == ["other_lineage"]
    assert two.commit(two.a, tokens).new_pages == 0  # compared by their bytes
    assert two.commit(two.b, tokens).new_pages == 4
    assert two.served(tokens) == (len(tokens), "b")


@pytest.mark.parametrize("keep", ["the same", "another", "none"])
def test_state_computed_from_a_lease_that_is_over_goes_only_where_the_lease_stood(make_rig, keep):
    two = Two(make_rig(lease_s=1.0))
    page = two.rig.page
    tokens = prompt(4 * page)
    longer = fork(tokens, len(tokens), 7 * page, 1)
    two.commit(two.a, tokens)
    lease = two.rig.engine.acquire(longer)
    assert lease.usable_tokens == len(tokens)
    two.rig.clock.advance(2.0)
    two.rig.engine.tick()
    if keep != "the same":
        two.commit(two.b, tokens)
    if keep == "none":
        two.rig.command("evict", prefix_ids=two.rig.ids, descendants=True)
    done = two.commit(two.a, longer, start=len(tokens), lease=lease)
    reasons = {"the same": "ok", "another": "other_lineage", "none": "gap_before_start"}
    assert done.reason == reasons[keep]
    assert two.served(longer) == {"the same": (7 * page, "a"), "another": (4 * page, "b"), "none": (0, "")}[keep]


def test_state_that_leaves_out_pages_its_lease_did_not_read_is_refused(two):
    page = two.rig.page
    tokens = prompt(6 * page)
    two.commit(two.a, tokens)
    with two.rig.engine.acquire(fork(tokens, page, 6 * page, 3)) as lease:
        assert two.commit(two.b, tokens, start=4 * page, lease=lease).reason == "other_lineage"
    assert two.served(tokens) == (len(tokens), "a")


def test_files_of_two_runs_are_not_adopted_as_one_path(make_rig, tmp_path):
    """A split file keeps the pages of an evicted half; after a restart nothing of another run may hang on them."""
    first = Two(make_rig(disk_bytes=4 << 20, data_dir=tmp_path))
    page = first.rig.page
    tokens = prompt(6 * page)
    longer = fork(tokens, len(tokens), 9 * page, 1)
    first.commit(first.a, tokens)
    offload(first, "disk")
    first.rig.command("warm", prefix_ids=first.rig.ids)
    first.commit(first.b, tokens)
    first.commit(first.b, longer, start=len(tokens))
    assert first.served(longer) == (len(longer), "b")
    first.rig.engine.close()
    two = Two(make_rig(disk_bytes=4 << 20, data_dir=tmp_path))
    assert two.rig.engine.adoption.orphans
    for prompt_ in (tokens, longer):
        assert two.served(prompt_)[1] == "a"  # the file has all pages of the older run: whole, if not the newest
    two.rig.assert_clean()


def test_a_replacement_needs_room_for_one_run_only(make_rig):
    two = Two(make_rig("small-llama", gpu_bytes=10 * (32 << 10)))
    tokens = prompt(6 * two.rig.page)
    two.commit(two.a, tokens)
    room = two.rig.ledger.tiers.gpu
    two.rig.engine.reconfigure({"cap_gpu_bytes": room.live_bytes, "cap_prefixes": 2}, revision=1)
    assert two.commit(two.b, tokens).outcome == "admitted"
    assert two.served(tokens) == (len(tokens), "b")


def test_many_threads_with_two_runs_never_make_a_path_of_both(make_rig):
    two = Two(make_rig(host_bytes=1 << 20, gpu_bytes=1 << 20))
    page = two.rig.page
    trunk = prompt(6 * page)
    prompts = [trunk, *(fork(trunk, at * page, 8 * page, at) for at in (1, 3, 5, 6))]
    failures = []

    def work(run, seed):
        try:
            for i in range(25):
                tokens = prompts[(i * 7 + seed) % len(prompts)]
                with two.rig.engine.acquire(tokens, deadline_s=0.0) as lease:
                    loaded = lease.load() if lease.usable_tokens else None
                    if loaded is not None and not (two.a.made(loaded, tokens) or two.b.made(loaded, tokens)):
                        failures.append(f"{lease.usable_tokens} tokens of no run")
                two.rig.engine.commit(tokens, run.prefill(tokens))
        except Exception as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=work, args=(run, seed)) for seed, run in enumerate((two.a, two.b, two.a, two.b))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    two.rig.assert_clean()


def test_a_checkpoint_of_another_run_is_not_hung_on_pages_it_does_not_belong_to(two):
    page = two.rig.page
    tokens = prompt(6 * page)
    prefix_id = two.commit(two.a, tokens, at=[]).prefix_id
    assert two.commit(two.b, tokens, at=[2 * page, 6 * page]).outcome == "admitted"
    assert checkpoint_at(two.rig.node(prefix_id).record, 6 * page)
    assert two.served(tokens) == (6 * page, "b")


@pytest.mark.parametrize("what", ["split", "renewed"])
def test_what_was_split_or_renewed_is_adopted_whole(make_rig, tmp_path, what):
    first = Two(make_rig(host_bytes=4 << 20, disk_bytes=4 << 20, data_dir=tmp_path))
    page = first.rig.page
    tokens = prompt(6 * page)
    longer = fork(tokens, len(tokens), 9 * page, 1)
    first.commit(first.a, tokens)
    first.commit(first.a, longer, start=len(tokens))
    if what == "split":
        first.commit(first.a, fork(tokens, 3 * page, 5 * page, 2))
    else:
        offload(first, "host")
        first.commit(first.a, tokens)
    first.rig.engine.close()
    two = Two(make_rig(host_bytes=4 << 20, disk_bytes=4 << 20, data_dir=tmp_path))
    assert two.rig.engine.adoption.orphans == 0
    assert two.served(longer) == (len(longer), "a")


@pytest.mark.parametrize("other", [False, True])
def test_a_second_commit_with_one_lease_goes_on_where_the_first_ended_if_that_still_stands(two, other):
    page = two.rig.page
    tokens = prompt(6 * page)
    longer = fork(tokens, len(tokens), 9 * page, 1)
    with two.rig.engine.acquire(tokens) as lease:
        assert two.commit(two.a, tokens, lease=lease).outcome == "admitted"
        if other:
            two.commit(two.b, tokens)
        done = two.commit(two.a, longer, start=len(tokens), lease=lease)
    assert done.reason == ("other_lineage" if other else "ok")
    assert two.served(longer) == ((len(tokens), "b") if other else (len(longer), "a"))
