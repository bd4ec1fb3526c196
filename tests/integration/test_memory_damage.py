"""A bit that flips in memory: the load raises, the object is quarantined, the next request computes it again."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_support import SPEC, Live, engine_config, prompt

from engine import CacheEngine
from engine.errors import CorruptObject, StalePointer
from engine.integrations.synthetic import SyntheticModel


@pytest.mark.parametrize("page_class", ["compressed_kv", "indexer_state", "swa_window", "uncompressed_tail"])
def test_a_bit_flipped_on_the_gpu_tier_is_never_served(tmp_path: Path, page_class: str) -> None:
    with CacheEngine(SPEC, engine_config(tmp_path)) as engine:
        live = Live(engine, SyntheticModel(SPEC))
        live.serve(prompt(1))
        with engine.acquire(prompt(1)) as lease:
            bound = next(
                b
                for kind, found in [*lease.spans.items(), *((k, [b]) for k, b in lease.blocks.items())]
                for b in found
                if str(kind) == page_class
            )
            arena = engine._tiers.gpu
            offset = int(arena.addresses(page_class, bound.pointer.slots[:1])[0])
            arena.buffer[offset + 5] ^= 0x20
            with pytest.raises(CorruptObject, match="does not match its checksum"):
                lease.load()
            with pytest.raises(StalePointer):  # let go of: not even a second look serves it
                lease.load()
        assert [d["kind"] for d in engine.stats()["quarantined"]] == [page_class]
        again = live.serve(prompt(1))
        assert again.usable_tokens < again.prompt_tokens
        assert live.serve(prompt(1)).usable_tokens == 1500
        assert live.wrong_bytes == 0
        assert engine.check() == []
