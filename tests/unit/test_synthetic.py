"""The synthetic model: every byte is a function of the tokens before it, and the verifier misses nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.errors import StateMismatch
from engine.integrations.synthetic import SyntheticModel
from engine.memory.codec import PageCodec
from engine.memory.state import LoadedState
from engine.model.objects import ObjectKind, layouts_of, section_rows
from engine.model.presets import preset, preset_names

SMALL = [name for name in preset_names() if name.startswith(("small", "bench"))]


def some_tokens(count, seed=0):
    return np.random.default_rng(seed).integers(0, 1 << 31, count, dtype=np.int32)


def tensors_of(state):
    return [*state.entries.values(), *(t for c in state.checkpoints.values() for t in c.values())]


@pytest.fixture(scope="module")
def model():
    return SyntheticModel(preset("small-deepseek-v4"))


@pytest.mark.parametrize("name", SMALL)
def test_shapes_follow_the_layouts_at_any_boundary(name):
    spec = preset(name)
    model, layouts = SyntheticModel(spec), layouts_of(spec)
    boundaries = [1, 3, 4, 31, 64, 65, 127, 128, 190]
    state = model.prefill(some_tokens(190), 0, boundaries)
    for boundary in boundaries:
        for kind in (ObjectKind.UNCOMPRESSED_TAIL, ObjectKind.SWA_WINDOW, ObjectKind.RECURRENT_STATE):
            for segment in layouts.of(kind).segments:
                if segment.key.section == "entries":
                    continue
                rows = section_rows(segment, boundary, spec.page_tokens)
                if segment.key.section == "overlap" and rows == 0:
                    assert segment.key not in state.checkpoints[boundary]
                else:
                    assert state.checkpoints[boundary][segment.key].shape == (rows, segment.width)
    for segment in (*layouts.history.segments, *layouts.indexer.segments):
        assert state.entries[segment.key].shape == (190 // segment.ratio, segment.width)


@pytest.mark.parametrize("name", SMALL)
def test_values_are_finite_and_of_both_signs_below_one(name):
    for tensor in tensors_of(SyntheticModel(preset(name)).prefill(some_tokens(300), 0, [300])):
        if tensor.is_floating_point() and tensor.numel() > 100:
            values = tensor.float()
            assert torch.isfinite(values).all()
            assert 1 / 16 <= values.abs().min() <= values.abs().max() < 1
            assert values.min() < 0 < values.max()


def test_prefill_in_two_chunks_gives_the_rows_of_one(model):
    tokens = some_tokens(300)
    whole, later = model.prefill(tokens, 0, [300]), model.prefill(tokens, 128, [300])
    for key, rows in later.entries.items():
        assert torch.equal(rows, whole.entries[key][-len(rows) :])
    for key, rows in later.checkpoints[300].items():
        assert torch.equal(rows, whole.checkpoints[300][key])


def test_a_changed_token_changes_every_later_row_and_no_earlier_one(model):
    tokens = some_tokens(256)
    changed = tokens.copy()
    changed[100] += 1
    before, after = model.prefill(tokens, 0), model.prefill(changed, 0)
    for key, rows in before.entries.items():
        ratio = 256 // len(rows)
        same = (rows == after.entries[key]).all(dim=1)
        assert same.tolist() == [(index + 1) * ratio <= 100 for index in range(len(rows))]


def test_the_order_of_tokens_matters(model):
    tokens = some_tokens(128)
    swapped = tokens.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    loaded = model.truth(tokens, 128)
    assert not model.verify(loaded, swapped).ok


def test_tensors_of_different_layers_fields_and_seeds_differ(model):
    rows = [r for r in model.prefill(some_tokens(128), 0).entries.values() if r.shape[1] == 16]
    assert len(rows) > 1
    assert not torch.equal(rows[0], rows[1])
    other = SyntheticModel(model.spec, seed=1)
    assert not other.verify(model.truth(some_tokens(128), 128), some_tokens(128)).ok


@pytest.mark.parametrize("boundary", [1, 64, 100, 128])
def test_the_truth_verifies_and_counts_every_byte(model, boundary):
    loaded = model.truth(some_tokens(128), boundary)
    result = model.verify(loaded, some_tokens(128))
    assert result.ok
    assert result.bytes_checked == sum(t.nbytes for t in [*loaded.entries.values(), *loaded.boundary.values()])


def test_a_replayed_state_holds_entries_only(model):
    loaded = model.truth(some_tokens(128), 128, replay=75)
    assert loaded.boundary == {}
    assert model.verify(loaded, some_tokens(128)).ok


def test_one_flipped_bit_is_one_wrong_byte_with_its_place(model):
    loaded = model.truth(some_tokens(128), 128)
    key = next(iter(loaded.entries))
    loaded.entries[key].view(torch.uint8)[5, 3] ^= 1
    result = model.verify(loaded, some_tokens(128))
    assert result.wrong_bytes == 1
    assert str(key) in result.first_wrong


@pytest.mark.parametrize("section", ["window", "buffer", "overlap"])
def test_boundary_objects_of_another_position_are_wrong(model, section):
    tokens = some_tokens(129)
    here, there = model.truth(tokens, 129), model.truth(tokens, 125)
    stale = {k: there.boundary[k] if k.section == section else t for k, t in here.boundary.items()}
    assert model.verify(replace(here, boundary=stale), tokens).wrong_bytes > 0


def test_an_absent_tensor_is_wrong_even_where_an_empty_one_would_be_right(model):
    loaded = model.truth(some_tokens(128), 128)
    empty = next(k for k, t in loaded.boundary.items() if len(t) == 0)
    without = {k: t for k, t in loaded.boundary.items() if k != empty}
    result = model.verify(replace(loaded, boundary=without), some_tokens(128))
    assert result.wrong_bytes > 0
    assert "is absent" in result.first_wrong


def test_a_tensor_of_another_shape_or_one_too_many_is_wrong(model):
    tokens = some_tokens(128)
    loaded = model.truth(tokens, 128)
    key = next(iter(loaded.entries))
    short = {k: t[:-1] if k == key else t for k, t in loaded.entries.items()}
    assert model.verify(replace(loaded, entries=short), tokens).wrong_bytes == loaded.entries[key].nbytes
    extra = {**loaded.boundary, key._replace(section="window"): torch.zeros(2, 2)}
    assert "was not expected" in model.verify(replace(loaded, boundary=extra), tokens).first_wrong


def coded(model, loaded, pages):
    """`loaded` with the first `pages` pages of native history coded by int8 and decoded."""
    entries = dict(loaded.entries)
    for segment in layouts_of(model.spec).history.segments:
        layout = replace(
            layouts_of(model.spec).history,
            segments=(replace(segment, offset_bytes=0),),
            slot_bytes=segment.segment_bytes,
        )
        raw = entries[segment.key][: pages * segment.rows].view(torch.uint8).view(pages, -1)
        decoded = PageCodec("int8", layout).roundtrip(raw).view(-1).view(torch.bfloat16).view(-1, segment.width)
        entries[segment.key] = torch.cat([decoded, entries[segment.key][pages * segment.rows :]])
    return replace(loaded, entries=entries)


def test_coded_pages_are_right_for_a_lossy_codec_and_wrong_for_a_lossless_one():
    spec, tokens = preset("small-gpt-oss"), some_tokens(200)
    lossy, lossless = SyntheticModel(spec, codec="int8"), SyntheticModel(spec, codec="lossless")
    loaded = coded(lossy, lossy.truth(tokens, 200), pages=2)
    result = lossy.verify(loaded, tokens)
    assert result.ok
    assert result.lossy_bytes == 2 * layouts_of(spec).history.slot_bytes
    assert not lossless.verify(loaded, tokens).ok


def test_a_damaged_coded_page_is_wrong():
    model, tokens = SyntheticModel(preset("small-gpt-oss"), codec="int8"), some_tokens(200)
    loaded = coded(model, model.truth(tokens, 200), pages=2)
    next(iter(loaded.entries.values())).view(torch.uint8)[70, 2] ^= 4
    assert model.verify(loaded, tokens).wrong_bytes == 1


def test_recoding_a_coded_page_changes_nothing():
    """A page may be decoded, kept as native and coded again: the verifier relies on the second pass being exact."""
    model, tokens = SyntheticModel(preset("small-gpt-oss"), codec="int8"), some_tokens(128)
    once = coded(model, model.truth(tokens, 128), pages=2)
    twice = coded(model, once, pages=2)
    for key, tensor in once.entries.items():
        assert torch.equal(tensor, twice.entries[key])


def test_positions_outside_the_tokens_are_refused(model):
    tokens = some_tokens(128)
    with pytest.raises(StateMismatch, match="multiple of 64"):
        model.prefill(tokens, 10)
    with pytest.raises(StateMismatch, match=r"\[1, 128\]"):
        model.prefill(tokens, 0, [0])
    with pytest.raises(StateMismatch, match="boundary 129"):
        model.truth(tokens, 129)
    empty = LoadedState(boundary_tokens=0, replay_tokens=0, entries={}, boundary={})
    with pytest.raises(StateMismatch, match="boundary 0"):
        model.verify(empty, tokens)
