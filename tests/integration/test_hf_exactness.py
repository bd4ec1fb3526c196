"""A model continued from reused state says bit for bit what it says uninterrupted: every boundary, every route."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from exactness import BOUNDARIES, NEW_TOKENS, PAGE_TOKENS, every_cell, expected, oracle, run_cell, the_model
from huggingface_support import MODELS, page_cuts, some_tokens

from engine import CacheEngine, CommandRequest, EngineConfig
from engine.integrations.huggingface import PrefixCache, spec_of

MIB = 1 << 20
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("model", "boundary", "route"), list(every_cell()))
def test_a_request_is_served_bit_equal_from_its_boundary_or_refused_for_its_reason(model, boundary, route):
    cell, refusal = run_cell(model, boundary, route), expected(model, boundary, route)
    assert (cell.outcome, cell.reason) == (("refused", refusal) if refusal else ("bit-equal", ""))
    assert cell.compared_logits > NEW_TOKENS
    if not refusal:
        assert cell.usable_tokens == BOUNDARIES[boundary].tokens


@pytest.mark.parametrize("model", sorted(MODELS.keys() - {"mistral"}))  # which forgets all but its last windows
def test_the_comparison_notices_another_chunking(model):
    """Else no cell would mean anything: some tokens run one by one, far before what is compared, and bits differ."""
    prompt = some_tokens(300)
    cuts = page_cuts(299, PAGE_TOKENS)
    _, logits = oracle(model, prompt.tobytes(), tuple(cuts))
    _, others = oracle(model, prompt.tobytes(), tuple(sorted({*cuts, *range(200, 230)})))
    pairs = zip(logits[-NEW_TOKENS:], others[-NEW_TOKENS:], strict=True)
    assert not any(torch.equal(one, other) for one, other in pairs)


def test_the_page_in_the_docs_is_what_the_cells_say_now():
    found = generator()
    text = found.page({cell: run_cell(*cell) for cell in every_cell()})
    assert found.PAGE.read_text(encoding="utf-8") == found.HEAD + text, "run: .venv/bin/python docs/exactness.py"


def test_an_offload_that_moved_everything_says_so():
    with CacheEngine(spec_of(the_model("gemma3")), EngineConfig(gpu_bytes=16 * MIB, host_bytes=16 * MIB)) as engine:
        PrefixCache(the_model("gemma3"), engine).prefill(some_tokens(257)).release()  # ends at a page: no tail
        ids = [row["prefix.id"] for row in engine.snapshot()]
        request = CommandRequest(id="c", kind="offload", arguments={"prefix_ids": ids, "tier": "host"}, actor="test")
        outcome = engine.execute(request)
        assert engine.stats()["prefixes"]["PARTIAL_OFFLOAD"] == len(ids)
    assert outcome.status == "succeeded"


def test_an_engine_for_a_model_without_history_starts_with_a_host_and_a_disk_tier(tmp_path):
    config = EngineConfig(gpu_bytes=16 * MIB, host_bytes=16 * MIB, disk_bytes=16 * MIB, data_dir=tmp_path)
    CacheEngine(spec_of(the_model("mistral")), config).close()


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_exactness", ROOT / "docs" / "exactness.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
