"""The five validations: each of their reasons, by tampering with real holdings, and then no acquire serves it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_support import checkpoint_at, fork, prompt

from engine.consistency.prefix import Checkpoint
from engine.model.objects import ObjectKind
from engine.schedule.validation import REASONS

KV, INDEXER = ObjectKind.COMPRESSED_KV, ObjectKind.INDEXER_STATE
TAIL, WINDOW, RECURRENT = ObjectKind.UNCOMPRESSED_TAIL, ObjectKind.SWA_WINDOW, ObjectKind.RECURRENT_STATE


class Victim:
    """One prefix of four pages and nine tokens, all on the GPU, to be tampered with."""

    def __init__(self, make_rig, name="small-deepseek-v4"):
        self.rig = make_rig(name, replay=False)
        self.tokens = prompt(4 * self.rig.page + 9)
        self.record = self.rig.node(self.rig.commit(self.tokens).prefix_id).record
        self.checkpoint = checkpoint_at(self.record, len(self.tokens))
        assert self.rig.look(self.tokens).usable == len(self.tokens)

    def spans(self, kind):
        return self.record.spans[kind]

    def block(self, kind):
        return self.checkpoint.blocks[kind]


def drop_pages(v):
    v.rig.ledger.tiers.drop_all(v.spans(KV))


def no_pages_at_all(v):
    del v.record.spans[KV]


def a_page_too_few(v):
    v.spans(KV).n_pages -= 1


def a_slot_too_few(v):
    copy = v.spans(KV).gpu
    copy.slots = copy.slots[:-1]


def pages_of_another_position(v):
    v.record.first_page += 1


def another_codec_version(v):
    copy = v.spans(KV).gpu
    copy.meta = replace(copy.meta, version=99)


def a_codec_nobody_knows(v):
    copy = v.spans(KV).gpu
    copy.meta = replace(copy.meta, codec="zip")


def no_checksums(v):
    v.spans(KV).gpu.sums = None


def no_tail(v):
    del v.checkpoint.blocks[TAIL]


def tail_without_bytes(v):
    v.rig.ledger.tiers.drop_all(v.block(TAIL))


def tail_never_written(v):
    v.block(TAIL).content_version = 0


def no_window(v):
    del v.checkpoint.blocks[WINDOW]


def window_without_bytes(v):
    v.rig.ledger.tiers.drop_all(v.block(WINDOW))


def a_checkpoint_of_an_earlier_position(v):
    v.checkpoint.boundary -= v.rig.page


def a_checkpoint_of_a_later_position(v):
    v.checkpoint.boundary += 1


def a_checkpoint_of_another_prefix(v):
    """Same length, other tokens: only its identity tells it from the right one."""
    other = fork(v.tokens, 2 * v.rig.page, 4 * v.rig.page + 9, 1)
    other[-9:] = v.tokens[-9:]
    there = v.rig.node(v.rig.commit(other).prefix_id).record
    v.record.checkpoints[v.checkpoint.checkpoint_id] = checkpoint_at(there, len(v.tokens))


def no_recurrent_state(v):
    del v.checkpoint.blocks[RECURRENT]


def no_indexer(v):
    del v.record.spans[INDEXER]


def indexer_without_bytes(v):
    v.rig.ledger.tiers.drop_all(v.spans(INDEXER))


def indexer_a_page_short(v):
    v.spans(INDEXER).n_pages -= 1


def indexer_one_version_behind(v):
    v.spans(INDEXER).built_from -= 1


def kv_one_version_ahead(v):
    v.spans(KV).content_version += 1


def quarantined(v):
    v.record.state = type(v.record.state)("QUARANTINED")


V4, QWEN = "small-deepseek-v4", "small-qwen3-next"
CASES = [
    (V4, drop_pages, "compressed_complete", "pages_missing"),
    (V4, no_pages_at_all, "compressed_complete", "pages_missing"),
    (V4, a_page_too_few, "compressed_complete", "pages_missing"),
    (V4, a_slot_too_few, "compressed_complete", "pages_missing"),
    (V4, pages_of_another_position, "compressed_complete", "pages_missing"),
    (V4, another_codec_version, "compressed_complete", "codec_unknown"),
    (V4, a_codec_nobody_knows, "compressed_complete", "codec_unknown"),
    (V4, no_checksums, "compressed_complete", "checksum_missing"),
    (V4, no_tail, "tail_intact", "tail_missing"),
    (V4, tail_without_bytes, "tail_intact", "tail_missing"),
    (V4, tail_never_written, "tail_intact", "tail_missing"),
    (V4, no_window, "window_fresh", "window_missing"),
    (V4, window_without_bytes, "window_fresh", "window_missing"),
    (V4, a_checkpoint_of_an_earlier_position, "window_fresh", "window_missing"),
    (V4, a_checkpoint_of_a_later_position, "window_fresh", "window_missing"),
    (V4, a_checkpoint_of_another_prefix, "window_fresh", "window_missing"),
    (QWEN, no_recurrent_state, "window_fresh", "recurrent_missing"),
    (QWEN, a_checkpoint_of_another_prefix, "window_fresh", "recurrent_missing"),
    (V4, no_indexer, "indexer_synced", "indexer_missing"),
    (V4, indexer_without_bytes, "indexer_synced", "indexer_missing"),
    (V4, indexer_a_page_short, "indexer_synced", "indexer_missing"),
    (V4, indexer_one_version_behind, "indexer_synced", "indexer_behind"),
    (V4, kv_one_version_ahead, "indexer_synced", "indexer_behind"),
    (V4, quarantined, "disk_reloaded", "quarantined"),
]


@pytest.mark.parametrize(("name", "tamper", "validation", "reason"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_what_was_tampered_with_is_not_served_and_the_reason_is_said(make_rig, name, tamper, validation, reason):
    victim = Victim(make_rig, name)
    with victim.rig.ledger.lock:
        tamper(victim)
    found = victim.rig.look(victim.tokens)
    assert found.wrong_bytes == 0
    assert found.usable < len(victim.tokens)
    failed = {k for k in victim.rig.engine.counters().by_validation if k[1] == "fail"}
    assert (validation, "fail", reason) in failed
    victim.rig.engine.flush_telemetry()
    spans = [s for s in victim.rig.log.spans if s.name == "kvcache.validate" and not s.status.is_ok]
    assert {s.attributes["kvcache.reason"] for s in spans} <= set(REASONS)
    assert any(s.attributes["kvcache.validation"] == validation for s in spans)
    assert reason in REASONS


def test_an_empty_tail_is_a_tail_and_an_absent_one_is_not(make_rig):
    rig = make_rig("small-gemma-3", replay=False)
    tokens = prompt(4 * rig.page)
    record = rig.node(rig.commit(tokens).prefix_id).record
    blocks = checkpoint_at(record, len(tokens)).blocks
    assert blocks[TAIL].n_pages == 0
    assert rig.look(tokens).usable == len(tokens)
    with rig.ledger.lock:
        del blocks[TAIL]
    assert rig.look(tokens).usable == 0


def test_a_page_boundary_needs_no_checkpoint_only_where_the_model_keeps_nothing_there(make_rig):
    for name, usable in (("small-llama", 256), ("small-deepseek-v3.2", 256), ("small-deepseek-v4", 0), (QWEN, 0)):
        rig = make_rig(name, replay=False)
        tokens = prompt(4 * rig.page + 5)
        rig.commit(tokens, [])
        found = rig.look(tokens)
        assert (found.usable, found.wrong_bytes) == (usable, 0)


def test_objects_a_model_does_not_have_are_not_counted_as_passes(make_rig):
    rig = make_rig("small-llama")
    tokens = prompt(4 * rig.page)
    rig.commit(tokens)
    rig.look(tokens)
    verdicts = {(v, r): verdict for v, verdict, r in rig.engine.counters().by_validation}
    assert verdicts["window_fresh", "not_in_model"] == "not_applicable"
    assert verdicts["indexer_synced", "not_in_model"] == "not_applicable"


@pytest.mark.parametrize("name", ["small-deepseek-v4", "small-gemma-3", "small-gpt-oss"])
def test_an_exact_replay_of_whole_pages_is_offered_where_it_leaves_something_to_save(make_rig, name):
    rig = make_rig(name)
    needs = -(-rig.spec.replay_tokens // rig.page) * rig.page
    for pages in (1, 2, 3, 4, 5):
        tokens = prompt(pages * rig.page, pages)
        rig.commit(tokens, [])
        found = rig.look(tokens)
        assert found.wrong_bytes == 0
        assert (found.usable, found.replay) == ((len(tokens), needs) if len(tokens) > needs else (0, 0))


def test_a_checkpoint_names_the_prefix_it_belongs_to(make_rig):
    victim = Victim(make_rig)
    assert isinstance(victim.checkpoint, Checkpoint)
    assert victim.checkpoint.owner_id == victim.record.prefix_id
