"""Prefix state as the model sees it: contiguous tensors a layer, on the way in and on the way out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from engine.model.objects import SegmentKey

Tensors = Mapping[SegmentKey, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewState:
    """What a forward pass computed, handed to `commit`.

    `entries[key]` (section "entries") is [floor(end / ratio) - start / ratio, width] and covers the tokens from
    `start_tokens`, a page boundary, to `end_tokens`. `checkpoints[b]` holds the boundary objects at exactly b tokens:
    sections "window" [min(W - 1, b), width], "buffer" [b mod ratio, width], "overlap" [ratio, width] (absent while no
    entry exists) and "state" [1, width]. The entries of the unfinished page at b are cut from `entries`.

    `odd_pages` are pages (counted from the prompt's start) that were not computed in one call of exactly that page, as
    where a prompt ended inside or tokens were decoded one by one. An exact replay over them would make other calls, and
    get other last bits.
    """

    start_tokens: int
    end_tokens: int
    entries: Tensors
    checkpoints: Mapping[int, Tensors] = field(default_factory=dict)
    odd_pages: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedState:
    """What `Lease.load` returns: `entries[key]` is [floor(b / ratio), width] over all of [0, b).

    `boundary` holds the sections "window", "buffer", "overlap" and "state" at exactly `boundary_tokens`. It is empty
    when `replay_tokens` is not 0: the model then runs the last `replay_tokens` tokens again to rebuild them.
    """

    boundary_tokens: int
    replay_tokens: int
    entries: Tensors
    boundary: Tensors
