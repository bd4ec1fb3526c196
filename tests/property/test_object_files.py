"""The file format: what was written reads back, and a file with any byte changed, cut or made up is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_support import DEPTH
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import CorruptObject
from engine.memory import diskfile
from engine.memory.checksum import page_sums
from engine.memory.codec import NATIVE_META
from engine.memory.diskfile import ObjectHeader


def a_file(n_pages=2, slot_bytes=48, n_tokens=6):
    luck = np.random.default_rng(n_pages)
    data = torch.from_numpy(luck.integers(0, 256, (n_pages, slot_bytes), dtype=np.uint8))
    header = ObjectHeader(
        fingerprint="f" * 32, namespace="tenant ü", kind="swa_window", prefix_id="a" * 32, boundary=6, first_page=0,
        n_pages=n_pages, page_class="swa_window", content_version=5, built_from=0, codec=NATIVE_META, written_ns=1,
    )  # fmt: skip
    tokens = luck.integers(0, 1 << 31, n_tokens, dtype=np.int32)
    return header, data, tokens, b"".join(diskfile.encode(header, data, page_sums(data), tokens))


def test_a_file_reads_back_as_it_was_written():
    header, data, tokens, raw = a_file()
    stored = diskfile.decode(np.frombuffer(bytearray(raw), dtype=np.uint8), "x")
    assert stored.header == header
    assert torch.equal(stored.pages, data)
    assert np.array_equal(stored.tokens, tokens)
    assert np.array_equal(stored.sums, page_sums(data))


def test_any_single_byte_changed_anywhere_is_found():
    raw = a_file()[3]
    for at in range(len(raw)):
        for flip in (0x01, 0x29, 0x80):  # 0x29 turns the header's padding into a tab, which is no content
            changed = bytearray(raw)
            changed[at] ^= flip
            with pytest.raises(CorruptObject):
                diskfile.decode(np.frombuffer(changed, dtype=np.uint8), "x")


def test_a_file_cut_anywhere_is_found():
    raw = a_file()[3]
    for size in range(len(raw)):
        with pytest.raises(CorruptObject):
            diskfile.decode(np.frombuffer(bytearray(raw[:size]), dtype=np.uint8), "x")


@settings(max_examples=100 * DEPTH, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 400))
def test_bytes_that_are_no_file_are_refused_and_nothing_else_happens(junk, at):
    raw = bytearray(a_file()[3])
    raw[at : at + len(junk)] = junk
    if bytes(raw) == a_file()[3]:
        return
    with pytest.raises(CorruptObject):
        diskfile.decode(np.frombuffer(raw, dtype=np.uint8), "x")
