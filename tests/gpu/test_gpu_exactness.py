"""Cells of the exactness matrix where the model computes: a model continued from reused state, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from exactness import BOUNDARIES, NEW_TOKENS, ROUTES, Place, expected, run_cell

PLACES = [
    ("gemma3", "float32"),
    ("deepseek_v4", "float32"),
    ("qwen3_next", "float32"),
    ("llama", "bfloat16"),
    ("deepseek_v4", "bfloat16"),
]

# On a CPU tests/integration/test_hf_exactness.py has every cell of float32.
CELLS = [
    pytest.param(device, model, dtype, marks=[pytest.mark.gpu] if device == "cuda" else [])
    for model, dtype in PLACES
    for device in ("cpu", "cuda")
    if device == "cuda" or dtype != "float32"
]

# Some operations (a running sum of floats) have no deterministic kernel and say so; if they matter, bits differ.
pytestmark = pytest.mark.filterwarnings("ignore:.*does not have a deterministic implementation")


@pytest.fixture(autouse=True)
def always_the_same_kernels(device: str) -> Iterator[None]:
    """Else two runs of the same call may differ on a GPU, and no cell would mean anything."""
    torch.use_deterministic_algorithms(device == "cuda", warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("device", "model", "dtype"), CELLS)
def test_every_boundary_is_served_bit_equal_by_its_route_or_refused_for_its_reason(device, model, dtype, route):
    for boundary in BOUNDARIES:
        cell, refusal = run_cell(model, boundary, route, Place(device, dtype)), expected(model, boundary, route)
        wanted = ("refused", refusal) if refusal else ("bit-equal", "")
        assert (cell.outcome, cell.reason) == wanted, f"{boundary}: {cell.text}"
        assert cell.compared_logits > NEW_TOKENS
