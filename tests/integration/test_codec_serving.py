"""Lossy codecs in a whole engine: coded prefixes are served through every tier, split, and read after a restart."""

from __future__ import annotations

import pytest
from engine_support import fork, prompt
from quality_support import (
    KV,
    NARROW,
    WIDE,
    compress,
    meta_of,
    two_prefixes,
)

from engine import preset
from engine.integrations.synthetic import SyntheticModel
from engine.memory.codec import LOSSY


@pytest.mark.parametrize(("name", "wide"), [*NARROW, *WIDE])
@pytest.mark.parametrize("codec", LOSSY)
def test_a_prefix_is_served_from_every_codec_through_every_tier(make_rig, tmp_path, name, wide, codec):
    rig = make_rig(name, code_compressed=wide, host_bytes=1 << 20, disk_bytes=8 << 20, data_dir=tmp_path)
    parent, child, tokens = two_prefixes(rig)
    before = rig.node(child).record.spans[KV].gpu.total_bytes
    assert compress(rig, child, codec) == compress(rig, parent, codec) == ""
    assert rig.node(child).record.spans[KV].gpu.total_bytes < before
    with rig.engine.acquire(tokens, deadline_s=60) as lease:
        assert lease.explanation.codec == codec
        found = rig.lossy.verify(lease.load(), tokens[: lease.usable_tokens])
        assert (found.wrong_bytes, lease.usable_tokens) == (0, len(tokens))
        assert found.lossy_bytes > 0
    for tier in ("host", "disk"):
        rig.command("offload", prefix_ids=[child, parent], tier=tier)
        assert (rig.look(tokens).usable, rig.look(tokens).wrong_bytes) == (len(tokens), 0)
        rig.assert_clean()


@pytest.mark.parametrize("codec", LOSSY)
def test_layers_the_model_compresses_are_left_alone_unless_asked(make_rig, codec):
    rig = make_rig("small-deepseek-v4")  # nothing in it is native full attention
    parent, _, tokens = two_prefixes(rig)
    assert compress(rig, parent, codec) == "codec_refused"
    assert rig.states == {"FULL": 2}
    assert rig.look(tokens).wrong_bytes == 0


@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize("first", [True, False])
def test_files_are_read_by_an_engine_that_codes_other_layers(make_rig, tmp_path, codec, first):
    disk = {"disk_bytes": 8 << 20, "data_dir": tmp_path}
    spec = preset("small-deepseek-v4")
    rig = make_rig(spec.name, code_compressed=True, **disk)
    _, child, tokens = two_prefixes(rig)
    assert compress(rig, child, codec) == ""
    rig.engine.close()
    rig = make_rig(spec.name, code_compressed=first, **disk)
    rig.lossy = SyntheticModel(spec, codec=LOSSY, code_compressed=True)
    assert (rig.look(tokens).usable, rig.look(tokens).wrong_bytes) == (len(tokens), 0)
    assert meta_of(rig, child).compressed
    rig.assert_clean()


@pytest.mark.parametrize("codec", LOSSY)
def test_halves_of_a_coded_prefix_are_both_read(make_rig, codec):
    rig = make_rig("small-gpt-oss")
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    assert compress(rig, prefix_id, codec) == ""
    rig.commit(fork(tokens, 2 * rig.page, 3 * rig.page, 1))
    assert len(rig.ids) == 3
    found = rig.look(tokens)
    assert (found.usable, found.wrong_bytes) == (len(tokens), 0)
    rig.assert_clean()
