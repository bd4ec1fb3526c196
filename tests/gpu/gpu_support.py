"""What the GPU tests share. Each runs twice, on a CPU and on a GPU, and the body is the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from engine.integrations.synthetic import SyntheticModel

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
on_each_device = pytest.mark.parametrize("device", DEVICES)
BUSY_S = 0.05
CYCLES_A_S = 2e9
"""Of a GPU of today, or fewer: what is meant to take a second takes that long or longer."""


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


def keep_busy(device: str, seconds: float = BUSY_S) -> None:
    """Put a long kernel in front of whatever the current stream is given next. A CPU has done it on return."""
    if device == "cuda":
        torch.cuda._sleep(int(seconds * CYCLES_A_S))
    else:
        time.sleep(min(seconds, BUSY_S))


def still_busy(device: str) -> bool:
    """Whether the current stream has work left; a CPU never has, so there the answer is the one that is hoped for."""
    return device == "cpu" or not torch.cuda.current_stream().query()


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
    outer, stream = torch.cuda.current_stream(), torch.cuda.Stream()
    stream.wait_stream(outer)
    with torch.cuda.stream(stream):
        yield
    outer.wait_stream(stream)
