"""Lossy codecs: what comes back is within the error that was recorded, for every dtype, width and number of pages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import preset
from engine.config import CODEC_CHOICES
from engine.errors import CodecRefused, ConfigError
from engine.memory.codec import CODECS, LOSSY, NATIVE_META, PageCodec
from engine.memory.layout import torch_dtype
from engine.model.objects import layouts_of
from engine.model.spec import Compressed, Field, Full, Indexed, Layer, ModelSpec

FLOATS = ("bfloat16", "float16", "float32")
BITS = {"int8": 8, "fp8": 8, "int4": 4}
RELATIVE = {"int8": 0.5 / 127, "fp8": 16 / 448, "int4": 0.5 / 7}
"""Half a step at the largest value of a group, over that value: fp8 steps by 32 between 256 and 448."""


def spec_of(*parts):
    return ModelSpec(name="m", revision="1", page_tokens=8, layers=(Layer(parts=parts),))


def full(dtype, width=41, lossy_allowed=True):
    return layouts_of(spec_of(Full(fields=(Field(name="kv", dtype=dtype, width=width),), lossy_allowed=lossy_allowed)))


def mixed():
    """Native history, an entry compressed by the model, and indexer keys."""
    return layouts_of(
        spec_of(
            Full(fields=(Field(name="kv", dtype="bfloat16", width=24), Field(name="flags", dtype="int32", width=2))),
            Compressed(ratio=2, fields=(Field(name="latent", dtype="bfloat16", width=32),)),
            Indexed(ratio=2, fields=(Field(name="key", dtype="bfloat16", width=16),)),
        )
    )


def values(layout, raw, segment=0):
    s = layout.segments[segment]
    return raw[:, s.offset_bytes : s.offset_bytes + s.segment_bytes].contiguous().view(torch_dtype(s.dtype)).double()


def some_pages(layout, n, seed=0, scale=1.0):
    """Pages of ordinary values; integer segments hold any bits."""
    luck = torch.Generator().manual_seed(seed)
    out = torch.zeros((n, layout.slot_bytes), dtype=torch.uint8)
    for s in layout.segments:
        if s.dtype in FLOATS:
            flat = (torch.randn(n, s.rows * s.width, generator=luck) * scale).to(torch_dtype(s.dtype))
        else:
            flat = torch.randint(0, 256, (n, s.segment_bytes), generator=luck, dtype=torch.uint8)
        out[:, s.offset_bytes : s.offset_bytes + s.segment_bytes] = flat.view(torch.uint8).view(n, -1)
    return out


@st.composite
def any_pages(draw, layout):
    """Pages whose bits are anything, or floats around one magnitude, some of them 0."""
    n, luck = draw(st.integers(1, 3)), np.random.default_rng(draw(st.integers(0, 2**32)))
    (s,) = layout.segments
    out = torch.zeros((n, layout.slot_bytes), dtype=torch.uint8)
    if draw(st.booleans()):
        raw = torch.from_numpy(luck.integers(0, 256, (n, s.segment_bytes), dtype=np.uint8))
    else:
        made = luck.standard_normal((n, s.rows * s.width)) * 2.0 ** draw(st.integers(-20, 10))
        made[luck.random(made.shape) < draw(st.sampled_from([0.0, 0.3]))] = 0
        raw = torch.from_numpy(made).to(torch_dtype(s.dtype)).view(torch.uint8).view(n, -1)
    out[:, : s.segment_bytes] = raw
    return out


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", LOSSY)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), width=st.sampled_from([1, 3, 31, 41, 64]))
def test_every_value_comes_back_within_the_recorded_error_or_the_page_is_refused(name, dtype, data, width):
    layout = full(dtype, width).history
    codec = PageCodec(name, layout)
    native = data.draw(any_pages(layout))
    if not codec.useful:  # a page of few values pays for whole groups
        with pytest.raises(CodecRefused, match="smaller"):
            codec.encode(native)
        return
    try:
        coded, meta = codec.encode(native)
    except CodecRefused:
        assert not torch.isfinite(values(layout, native)).all() or values(layout, native).abs().max() > 1e38
        return
    back = codec.decode(coded, meta)
    assert float((values(layout, back) - values(layout, native)).abs().max()) <= meta.error_bound < float("inf")
    assert torch.equal(codec.roundtrip(native), back)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", LOSSY)
def test_the_recorded_error_is_what_the_code_promises(name, dtype):
    layout = full(dtype).history
    native = some_pages(layout, 3)
    _, meta = PageCodec(name, layout).encode(native)
    largest = float(values(layout, native).abs().max())
    rounding = largest * 2.0**-8  # back to bfloat16, the coarsest
    assert 0 < meta.error_bound <= RELATIVE[name] * largest + rounding


@pytest.mark.parametrize("name", LOSSY)
def test_a_coded_page_takes_the_bits_of_its_codes_and_a_scale_a_group(name):
    layout = full("bfloat16", 64).history
    codec = PageCodec(name, layout)
    n_values = 8 * 64
    assert codec.coded_bytes == n_values * BITS[name] // 8 + n_values // 32 * 4
    assert codec.page_class == f"compressed_kv+{name}"


def test_each_codec_has_its_price():
    """int4 is the smallest; of the two of 8 bits, fp8 keeps small values of a group better and large ones worse."""
    layout = full("float32", 64).history
    native = some_pages(layout, 4)
    meta = {name: PageCodec(name, layout).encode(native)[1] for name in LOSSY}
    assert meta["int8"].error_bound < meta["fp8"].error_bound < meta["int4"].error_bound
    spread = torch.tensor([448.0, 0.05, -0.03, 0.02] * 128).repeat(1, 1).view(torch.uint8)
    small = {n: values(layout, PageCodec(n, layout).roundtrip(spread))[0, 1::4].abs().max() for n in LOSSY}
    assert small["fp8"] > 0
    assert small["int8"] == small["int4"] == 0


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", LOSSY)
def test_infinities_and_nans_are_refused(name, dtype, bad):
    layout = full(dtype).history
    native = some_pages(layout, 2)
    native.view(torch_dtype(dtype))[1, 7] = bad
    with pytest.raises(CodecRefused, match=f"which {name} cannot keep"):
        PageCodec(name, layout).encode(native)


@pytest.mark.parametrize("name", LOSSY)
def test_pages_of_nothing_come_back_as_nothing(name):
    layout = full("bfloat16").history
    coded, meta = PageCodec(name, layout).encode(torch.zeros((2, layout.slot_bytes), dtype=torch.uint8))
    assert meta.error_bound == 0
    assert not PageCodec(name, layout).decode(coded, meta).any()


@pytest.mark.parametrize("name", LOSSY)
def test_a_page_is_coded_the_same_alone_and_among_others(name):
    layout = mixed().history
    codec = PageCodec(name, layout, code_compressed=True)
    native = some_pages(layout, 5)
    coded, meta = codec.encode(native)
    for i in range(5):
        assert torch.equal(codec.encode(native[i : i + 1])[0], coded[i : i + 1])
        assert torch.equal(codec.decode(coded[i : i + 1], meta), codec.decode(coded, meta)[i : i + 1])


@pytest.mark.parametrize("name", LOSSY)
def test_coding_what_was_decoded_changes_nothing(name):
    layout = full("bfloat16").history
    codec = PageCodec(name, layout)
    once = codec.roundtrip(some_pages(layout, 3))
    assert torch.equal(codec.roundtrip(once), once)


@pytest.mark.parametrize("name", LOSSY)
def test_what_the_model_compressed_is_coded_only_on_request(name):
    layout = mixed().history
    native = some_pages(layout, 3)
    narrow, wide = (PageCodec(name, layout, code_compressed=wide) for wide in (False, True))
    assert (narrow.compressed, wide.compressed) == (False, True)
    assert wide.coded_bytes < narrow.coded_bytes < layout.slot_bytes
    kv, flags, latent = range(3)
    left, touched = narrow.roundtrip(native), wide.roundtrip(native)
    assert torch.equal(values(layout, left, latent), values(layout, native, latent))
    assert not torch.equal(values(layout, touched, latent), values(layout, native, latent))
    for back in (left, touched):
        assert torch.equal(values(layout, back, flags), values(layout, native, flags))
        assert not torch.equal(values(layout, back, kv), values(layout, native, kv))


@pytest.mark.parametrize("name", LOSSY)
def test_pages_that_code_other_segments_are_another_class_and_are_not_read_as_this_one(name):
    layout = mixed().history
    narrow, wide = (PageCodec(name, layout, code_compressed=wide) for wide in (False, True))
    assert narrow.page_class != wide.page_class
    coded, meta = wide.encode(some_pages(layout, 1))
    assert meta.compressed
    with pytest.raises(CodecRefused):
        narrow.decode(coded, meta)


@pytest.mark.parametrize("name", LOSSY)
def test_a_model_without_compressed_layers_has_one_class_either_way(name):
    layout = full("bfloat16").history
    assert PageCodec(name, layout, code_compressed=True).page_class == PageCodec(name, layout).page_class


@pytest.mark.parametrize("name", LOSSY)
def test_an_mla_latent_is_coded_on_request_and_its_indexer_never(name):
    layouts = layouts_of(preset("small-deepseek-v3.2"))
    assert not PageCodec(name, layouts.history).useful
    assert PageCodec(name, layouts.history, code_compressed=True).useful
    assert all(s.key.part != "indexed" for s in layouts.history.segments)


def test_codes_of_one_codec_are_not_read_as_anothers():
    layout = full("bfloat16").history
    coded, meta = PageCodec("int8", layout).encode(some_pages(layout, 1))
    for name in ("fp8", "int4", "lossless"):
        with pytest.raises(CodecRefused):
            PageCodec(name, layout).decode(coded, meta)
    with pytest.raises(CodecRefused):
        PageCodec("int8", layout).decode(coded, NATIVE_META)


def test_the_codecs_an_operator_may_name_are_those_that_exist():
    assert set(CODEC_CHOICES) == {*CODECS, "none"}
    with pytest.raises(ConfigError, match="known: none, lossless, int8, fp8, int4"):
        PageCodec("int2", full("bfloat16").history)
