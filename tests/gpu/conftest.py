"""`pytest -m gpu` needs a GPU: without one it ends in a sentence, never in tests that were quietly left out."""

from __future__ import annotations

import os

import pytest

# Set before CUDA starts: else matrix products refuse to run under torch.use_deterministic_algorithms.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

NO_GPU = "the tests marked gpu need a CUDA device and torch sees none here; their CPU twins run without -m gpu"


@pytest.hookimpl(trylast=True)  # after -m and -k have chosen
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    import torch

    if not torch.cuda.is_available():
        raise pytest.UsageError(NO_GPU)
