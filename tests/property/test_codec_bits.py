"""Codecs over pages of any bits: lossless gives each back, int8 stays within the error it recorded, or they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import CodecRefused
from engine.memory.codec import NATIVE_META, PageCodec
from engine.memory.layout import torch_dtype
from engine.model.objects import layouts_of
from engine.model.presets import preset
from engine.model.spec import Field, Full, Layer, ModelSpec


def history_of(dtype, width=41, lossy_allowed=True):
    field = Field(name="kv", dtype=dtype, width=width)
    part = Full(fields=(field,), lossy_allowed=lossy_allowed)
    return layouts_of(ModelSpec(name="m", revision="1", page_tokens=8, layers=(Layer(parts=(part,)),))).history


@st.composite
def pages(draw, layout, exponents):
    """Pages whose bits are anything, or (easier to code) floats around one magnitude."""
    n = draw(st.integers(1, 3))
    luck = np.random.default_rng(draw(st.integers(0, 2**32)))
    out = torch.zeros((n, layout.slot_bytes), dtype=torch.uint8)
    segment = layout.segments[0]
    if draw(st.booleans()):
        raw = torch.from_numpy(luck.integers(0, 256, (n, segment.segment_bytes), dtype=np.uint8))
    else:
        values = luck.standard_normal((n, segment.rows * segment.width)) * 2.0 ** draw(exponents)
        values[luck.random(values.shape) < draw(st.sampled_from([0.0, 0.02, 0.3]))] = 0
        raw = torch.from_numpy(values).to(torch_dtype(segment.dtype)).view(torch.uint8).view(n, -1)
    out[:, : segment.segment_bytes] = raw
    return out


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_lossless_gives_every_bit_back_or_refuses(dtype, data):
    layout = history_of(dtype)
    codec = PageCodec("lossless", layout)
    native = data.draw(pages(layout, st.integers(-130, 120)))
    try:
        coded, meta = codec.encode(native)
    except CodecRefused:
        return
    assert meta.error_bound == 0
    assert torch.equal(codec.decode(coded, meta), native)
    assert coded.shape[1] < native.shape[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_int8_is_within_the_error_it_recorded_or_refuses(dtype, data):
    layout = history_of(dtype)
    codec = PageCodec("int8", layout)
    native = data.draw(pages(layout, st.integers(-20, 10)))
    try:
        coded, meta = codec.encode(native)
    except CodecRefused:
        return
    size = layout.segments[0].segment_bytes

    def values(raw):
        return raw[:, :size].contiguous().view(torch_dtype(dtype)).double()

    back = codec.decode(coded, meta)
    assert float((values(back) - values(native)).abs().max()) <= meta.error_bound
    assert torch.equal(codec.roundtrip(native), back)


def test_a_codec_that_saves_nothing_and_one_from_another_version_are_refused():
    fp8 = PageCodec("lossless", history_of("float8_e4m3fn"))
    with pytest.raises(CodecRefused):
        fp8.encode(torch.zeros((1, fp8.layout.slot_bytes), dtype=torch.uint8))
    mla = PageCodec("int8", history_of("bfloat16", lossy_allowed=False))
    assert not mla.useful
    codec = PageCodec("lossless", history_of("bfloat16"))
    coded, _ = codec.encode(torch.zeros((1, codec.layout.slot_bytes), dtype=torch.uint8))
    with pytest.raises(CodecRefused):
        codec.decode(coded, NATIVE_META)


@pytest.mark.parametrize("name", ["small-deepseek-v4", "small-gemma-3", "small-llama", "small-qwen3-next"])
@pytest.mark.parametrize("n", [1, 2])
def test_pages_of_every_model_survive_lossless_one_at_a_time_and_together(name, n):
    layout = layouts_of(preset(name)).history
    codec = PageCodec("lossless", layout)
    native = torch.zeros((n, layout.slot_bytes), dtype=torch.uint8)
    for segment in layout.segments:
        values = torch.randn(n, segment.rows * segment.width).to(torch_dtype(segment.dtype))
        native[:, segment.offset_bytes : segment.offset_bytes + segment.segment_bytes] = values.view(torch.uint8).view(
            n, -1
        )
    assert torch.equal(codec.roundtrip(native), native)
