"""Real models: pages of history or indexer that are missing, swapped or of other codes are refused, never served.

After every damage three things hold: the validation that looks after the object has failed in a span with its reason
(or, where only reading shows it, the object went to quarantine), what is generated then is bit by bit what no reuse
would have given, and the engine's books are clean.
"""

from __future__ import annotations

import damage
import pytest
from victim import END, SIBLING, TOKENS, everything_is_exact, victim
from ward import INDEXER, KV, PAGE

from engine.errors import CorruptObject

SPANS = [
    ("deepseek_v4", KV, "compressed_complete", "pages_missing"),
    ("deepseek_v4", INDEXER, "indexer_synced", "indexer_missing"),
    ("deepseek_v32", INDEXER, "indexer_synced", "indexer_missing"),
    ("mixed", INDEXER, "indexer_synced", "indexer_missing"),
    ("llama", KV, "compressed_complete", "pages_missing"),
]
span_objects = pytest.mark.parametrize(("name", "kind", "validation", "reason"), SPANS)


@span_objects
@pytest.mark.parametrize("page", ["first", "last"])
def test_dropped_pages_are_missed_by_name(make_ward, name, kind, validation, reason, page) -> None:
    ward = victim(make_ward, name)
    record = ward.path(TOKENS)[0 if page == "first" else -1]
    damage.lose_span(ward, record, kind)
    found = ward.serve(TOKENS)
    assert (validation, reason) in ward.failed()
    assert found.usable_tokens <= record.first_page * PAGE
    everything_is_exact(ward)
    assert ward.serve(TOKENS).usable_tokens == END


@span_objects
def test_a_single_missing_page_is_missed_by_name(make_ward, name, kind, validation, reason) -> None:
    ward = victim(make_ward, name)
    damage.lose_last_page(ward, ward.path(TOKENS)[0], kind)
    assert ward.serve(TOKENS).usable_tokens == 0
    assert (validation, reason) in ward.failed()
    everything_is_exact(ward)


@span_objects
def test_permuted_pages_are_found_on_read(make_ward, name, kind, validation, reason) -> None:
    ward = victim(make_ward, name)
    damage.permute(ward, ward.path(TOKENS)[0].spans[kind])
    assert ward.serve(TOKENS).usable_tokens == 0
    assert ward.quarantined() == [(str(kind), "checksum_mismatch")]
    assert (validation, "checksum_mismatch") in ward.failed()
    assert len(ward.transitions_to("QUARANTINED")) == 1
    everything_is_exact(ward)
    assert ward.serve(TOKENS).usable_tokens == END


@span_objects
def test_pages_of_another_prefix_are_found_on_read(make_ward, name, kind, validation, reason) -> None:
    ward = victim(make_ward, name)
    damage.overwrite(ward, ward.path(TOKENS)[-1].spans[kind], ward.path(SIBLING)[-1].spans[kind])
    assert ward.serve(TOKENS).usable_tokens <= 2 * PAGE
    assert ward.quarantined() == [(str(kind), "checksum_mismatch")]
    assert (validation, "checksum_mismatch") in ward.failed()
    everything_is_exact(ward)


@pytest.mark.parametrize("name", ["deepseek_v4", "deepseek_v32", "mixed"])
@pytest.mark.parametrize("which", ["indexer one behind", "history one ahead"])
def test_an_indexer_of_another_version_of_the_history_is_not_served(make_ward, name, which) -> None:
    ward = victim(make_ward, name)
    spans = ward.path(TOKENS)[-1].spans
    if which == "indexer one behind":
        spans[INDEXER].built_from -= 1
    else:
        spans[KV].content_version += 1
    assert ward.serve(TOKENS).usable_tokens <= 2 * PAGE
    assert ("indexer_synced", "indexer_behind") in ward.failed()
    everything_is_exact(ward)


@pytest.mark.parametrize(("codec", "change"), [("none", {"version": 99}), ("int8", {"version": 99}),
                                               ("int8", {"codec": "zip"})])  # fmt: skip
@pytest.mark.parametrize("name", ["deepseek_v4", "llama"])
def test_pages_of_a_codec_nobody_can_read_are_not_served(make_ward, name, codec, change) -> None:
    ward = victim(make_ward, name, codec=codec, code_compressed=True)
    record = ward.path(TOKENS)[0]
    if codec != "none":
        ward.command("compress", prefix_ids=[record.prefix_id])
        assert record.spans[KV].gpu.coded
    damage.replace_meta(record.spans[KV], **change)
    assert ward.serve(TOKENS).usable_tokens == 0
    assert ("compressed_complete", "codec_unknown") in ward.failed()
    everything_is_exact(ward)


@pytest.mark.parametrize("codec", ["int8", "fp8", "int4"])
@pytest.mark.parametrize("name", ["llama", "deepseek_v4"])
def test_coded_pages_without_their_scales_are_found_on_read(make_ward, name, codec) -> None:
    ward = victim(make_ward, name, codec=codec, code_compressed=True)
    ward.command("compress", prefix_ids=ward.ids())
    record = ward.path(TOKENS)[0]
    assert record.spans[KV].gpu.coded
    damage.zero_scales(ward, record, codec)
    assert ward.serve(TOKENS).usable_tokens == 0
    assert ward.quarantined() == [(str(KV), "checksum_mismatch")]
    assert ("compressed_complete", "checksum_mismatch") in ward.failed()
    ward.assert_clean()


@pytest.mark.parametrize("change", [{"group": 64}, {"compressed": False}, {"codec": "fp8"}])
def test_coded_pages_with_the_description_of_others_are_not_served(make_ward, change) -> None:
    ward = victim(make_ward, codec="int8", code_compressed=True)
    ward.command("compress", prefix_ids=ward.ids())
    damage.replace_meta(ward.path(TOKENS)[0].spans[KV], **change)
    assert ward.serve(TOKENS).usable_tokens == 0
    ward.assert_clean()


def test_a_quarantined_prefix_is_refused_until_it_is_computed_again(make_ward) -> None:
    ward = victim(make_ward)
    damage.permute(ward, ward.path(TOKENS)[0].spans[KV])
    with ward.engine.acquire(TOKENS[:END]) as lease, pytest.raises(CorruptObject):
        lease.load()
    assert next(r.state for r in ward.path(TOKENS)) == "QUARANTINED"
    assert ward.serve(TOKENS).usable_tokens == 0
    assert ("compressed_complete", "pages_missing") in ward.failed()
    assert ward.serve(TOKENS).usable_tokens == END
    ward.assert_clean()
