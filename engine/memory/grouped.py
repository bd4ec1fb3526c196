"""Lossy codings: a group of values shares a float32 scale, each value is a short code times that scale.

`int8` and `int4` are integers of a symmetric range (two `int4` codes a byte, the even value in the low half); `fp8` is
float8_e4m3fn (OCP OFP8, revision 1.0: largest value 448, no infinities). The scale maps the group's largest value to
the largest code, so no code overflows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

import torch

from engine.errors import CodecRefused
from engine.memory.coding import GROUP, pad, padded_values, values_of
from engine.memory.layout import torch_dtype
from engine.model.objects import Segment

SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """`to_codes` makes uint8 [n, padded * bits / 8] of scaled float32 [n, padded]; `from_codes` undoes it."""

    name: str
    bits: int
    largest: float  # the magnitude of the largest code
    to_codes: Callable[[torch.Tensor], torch.Tensor]
    from_codes: Callable[[torch.Tensor], torch.Tensor]

    def coded_bytes(self, segment: Segment) -> int:
        return self._code_bytes(segment) + padded_values(segment) // GROUP * SCALE_BYTES

    def encode(self, segment: Segment, raw: torch.Tensor, out: torch.Tensor) -> float:
        n, dtype, padded = len(raw), torch_dtype(segment.dtype), padded_values(segment)
        native = raw.contiguous().view(dtype).view(n, values_of(segment)).float()
        groups = pad(native, padded).view(n, -1, GROUP)
        scale = groups.abs().amax(2, keepdim=True) / self.largest
        if not bool(torch.isfinite(scale).all()):
            raise CodecRefused(f"{segment.key}: a page holds infinities or NaNs, which {self.name} cannot keep")
        scaled = torch.where(scale > 0, groups / scale, torch.zeros_like(groups)).view(n, -1)
        split = self._code_bytes(segment)
        out[:, :split] = self.to_codes(scaled.clamp(-self.largest, self.largest))
        out[:, split:] = scale.view(n, -1).contiguous().view(torch.uint8)
        # Measured, not derived: rounding back to the native dtype adds to the code's own error.
        error = float((self._values(segment, out).float() - native).abs().max()) if native.numel() else 0.0
        if not isfinite(error):
            raise CodecRefused(f"{segment.key}: a page holds values so large that {self.name} makes infinities of them")
        return error

    def decode(self, segment: Segment, data: torch.Tensor) -> torch.Tensor:
        return self._values(segment, data).contiguous().view(torch.uint8).view(len(data), -1)

    def _values(self, segment: Segment, data: torch.Tensor) -> torch.Tensor:
        """What coded bytes stand for, in the native dtype: [n, values]."""
        n, split = len(data), self._code_bytes(segment)
        codes = self.from_codes(data[:, :split].contiguous()).view(n, -1, GROUP)
        scale = data[:, split:].contiguous().view(torch.float32).view(n, -1, 1)
        return (codes * scale).view(n, -1)[:, : values_of(segment)].to(torch_dtype(segment.dtype))

    def _code_bytes(self, segment: Segment) -> int:
        return padded_values(segment) * self.bits // 8


def _to_int8(scaled: torch.Tensor) -> torch.Tensor:
    return scaled.round().to(torch.int8).view(torch.uint8)


def _from_int8(codes: torch.Tensor) -> torch.Tensor:
    return codes.view(torch.int8).float()


def _to_fp8(scaled: torch.Tensor) -> torch.Tensor:
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8)


def _from_fp8(codes: torch.Tensor) -> torch.Tensor:
    return codes.view(torch.float8_e4m3fn).float()


def _to_int4(scaled: torch.Tensor) -> torch.Tensor:
    codes = (scaled.round() + 8).to(torch.uint8)  # 1..15: zero is 8
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def _from_int4(codes: torch.Tensor) -> torch.Tensor:
    return torch.stack((codes & 0xF, codes >> 4), 2).view(len(codes), -1).float() - 8


INT8 = Grouped(name="int8", bits=8, largest=127.0, to_codes=_to_int8, from_codes=_from_int8)
FP8 = Grouped(name="fp8", bits=8, largest=448.0, to_codes=_to_fp8, from_codes=_from_fp8)
INT4 = Grouped(name="int4", bits=4, largest=7.0, to_codes=_to_int4, from_codes=_from_int4)
