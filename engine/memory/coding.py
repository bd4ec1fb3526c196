"""What a coding of one segment is, and the one that leaves it as it is."""

from __future__ import annotations

from typing import Protocol

import torch

from engine.model.objects import Segment

GROUP = 32
"""So many neighbouring values share a scale or an exponent."""


class Coding(Protocol):
    """One way to write a segment's values. It keeps no state: the same bytes always give the same bytes.

    `raw` is uint8 [n, segment_bytes], `out` and `data` uint8 [n, coded_bytes(segment)].
    """

    def coded_bytes(self, segment: Segment) -> int:
        """Bytes of one page's segment once coded."""
        ...

    def encode(self, segment: Segment, raw: torch.Tensor, out: torch.Tensor) -> float:
        """Fill `out`; the largest absolute error of any value. Raises `CodecRefused` for what it cannot keep."""
        ...

    def decode(self, segment: Segment, data: torch.Tensor) -> torch.Tensor:
        """uint8 [n, segment_bytes]."""
        ...


class AsIs:
    """Copies the segment: integers, what the model has compressed itself, and what a codec does not touch."""

    def coded_bytes(self, segment: Segment) -> int:
        return segment.segment_bytes

    def encode(self, segment: Segment, raw: torch.Tensor, out: torch.Tensor) -> float:
        out.copy_(raw)
        return 0.0

    def decode(self, segment: Segment, data: torch.Tensor) -> torch.Tensor:
        return data


def values_of(segment: Segment) -> int:
    """Values of one page."""
    return segment.rows * segment.width


def padded_values(segment: Segment) -> int:
    """Values of one page, filled up to whole groups."""
    return -(-values_of(segment) // GROUP) * GROUP


def pad(flat: torch.Tensor, padded: int) -> torch.Tensor:
    """[n, values] with zeros up to [n, padded]."""
    return torch.nn.functional.pad(flat, (0, padded - flat.shape[1])) if flat.shape[1] < padded else flat
