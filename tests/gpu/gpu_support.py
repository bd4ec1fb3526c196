"""What the GPU tests share. Each runs twice, on a CPU and on a GPU, and the body is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from engine.integrations.synthetic import SyntheticModel

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
on_each_device = pytest.mark.parametrize("device", DEVICES)
BUSY_CYCLES = 400_000_000
"""A fifth of a second or so of a GPU of today."""


def rig_on(make_rig: Callable[..., Any], device: str, *args: Any, **config: Any) -> Any:
    """An engine on `device` with a model that computes there."""
    rig = make_rig(*args, device=device, **config)
    rig.model = SyntheticModel(rig.spec, device=device, codec=config.get("codec", "none"))
    return rig


def captured(device: str, work: Callable[[], torch.Tensor]) -> tuple[Callable[[], Any], torch.Tensor]:
    """(replay, output) of `work` as a graph: a CUDA graph, or on a CPU the recorded call that writes to one output."""
    if device == "cpu":
        output = work()
        return (lambda: output.copy_(work())), output
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()  # libraries set themselves up on the first call, which no capture may hold
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # The engine's own threads may copy meanwhile: only this thread's calls are judged.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        output = work()
    return graph.replay, output


def keep_busy(device: str) -> None:
    """Put a long kernel in front of whatever the current stream is given next."""
    if device == "cuda":
        torch.cuda._sleep(BUSY_CYCLES)


def done(device: str) -> None:
    """Wait for the current stream."""
    if device == "cuda":
        torch.cuda.current_stream().synchronize()


@contextmanager
def own_stream(device: str) -> Iterator[None]:
    """A compute stream that is not the default one, as serving loops have."""
    if device == "cpu":
        yield
        return
    with torch.cuda.stream(torch.cuda.Stream()):
        yield
