"""The lossless coding: exponents of bfloat16 and float32 values cluster, so each is coded in 4 bits.

An exponent is written relative to the largest of its group, and the rare outlier goes to an exception list. A page with
more outliers than the list holds is refused and stays native.
"""

from __future__ import annotations

import torch

from engine.errors import CodecRefused
from engine.memory.coding import GROUP, pad, padded_values, values_of
from engine.model.objects import Segment

DTYPES = ("bfloat16", "float32")
_EXPONENT_CODES = 14  # codes 1..14 are exponents up to the group's largest; 0 is zero, 15 unused


class Lossless:
    """Planes of mantissa bytes, 4-bit exponent codes, a base a group, then the exceptions."""

    def coded_bytes(self, segment: Segment) -> int:
        padded = padded_values(segment)
        return padded * _mantissa_bytes(segment) + padded // 2 + padded // GROUP + _exceptions(segment) * 5

    def encode(self, segment: Segment, raw: torch.Tensor, out: torch.Tensor) -> float:
        n, padded = len(raw), padded_values(segment)
        exponent, mantissa = _split_float(segment, raw)
        exponent = pad(exponent, padded)
        top = exponent.view(n, -1, GROUP).amax(2)
        base = (top - _EXPONENT_CODES).clamp(min=0)
        code = exponent - base.repeat_interleave(GROUP, 1)
        outlier = (code < 1) & (exponent > 0)
        counts = outlier.sum(1)
        if n and int(counts.max()) > _exceptions(segment):
            raise CodecRefused(
                f"{segment.key}: {int(counts.max())} exponents of a page are outliers; {_exceptions(segment)} fit"
            )
        code = torch.where(outlier | (exponent == 0), torch.zeros_like(code), code)
        cursor = 0
        flat = pad(mantissa, padded)
        for plane in range(_mantissa_bytes(segment)):
            out[:, cursor : cursor + padded] = ((flat >> (8 * plane)) & 0xFF).to(torch.uint8)
            cursor += padded
        out[:, cursor : cursor + padded // 2] = (code[:, 0::2] | (code[:, 1::2] << 4)).to(torch.uint8)
        cursor += padded // 2
        out[:, cursor : cursor + padded // GROUP] = base.to(torch.uint8)
        cursor += padded // GROUP
        _put_exceptions(_exceptions(segment), outlier, exponent, out[:, cursor:])
        return 0.0

    def decode(self, segment: Segment, data: torch.Tensor) -> torch.Tensor:
        n, e, padded, cursor = len(data), _exceptions(segment), padded_values(segment), 0
        mantissa = torch.zeros((n, padded), dtype=torch.int32, device=data.device)
        for plane in range(_mantissa_bytes(segment)):
            mantissa |= data[:, cursor : cursor + padded].int() << (8 * plane)
            cursor += padded
        nibbles = data[:, cursor : cursor + padded // 2].int()
        code = torch.stack((nibbles & 0xF, nibbles >> 4), 2).view(n, padded)
        cursor += padded // 2
        base = data[:, cursor : cursor + padded // GROUP].int().repeat_interleave(GROUP, 1)
        cursor += padded // GROUP
        exponent = torch.where(code > 0, code + base, torch.zeros_like(code))
        # A clone: a slice of a single page is contiguous already, at an offset no int32 view may start at.
        positions = data[:, cursor : cursor + 4 * e].clone(memory_format=torch.contiguous_format).view(torch.int32)
        page, rank = (positions >= 0).nonzero(as_tuple=True)
        exponent[page, positions[page, rank].long()] = data[:, cursor + 4 * e :][page, rank].int()
        values = values_of(segment)
        return _join_float(segment, exponent[:, :values], mantissa[:, :values])


def _mantissa_bytes(segment: Segment) -> int:
    return 1 if segment.dtype == "bfloat16" else 3


def _exceptions(segment: Segment) -> int:
    """Outliers a page may have."""
    return max(8, values_of(segment) // 64)


def _split_float(segment: Segment, raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Exponents int32 [n, values] and sign-and-mantissa bits int32 [n, values]."""
    n, values = len(raw), values_of(segment)
    if segment.dtype == "bfloat16":
        bits = raw.contiguous().view(torch.int16).view(n, values).int() & 0xFFFF
        return (bits >> 7) & 0xFF, ((bits >> 8) & 0x80) | (bits & 0x7F)
    bits = raw.contiguous().view(torch.int32).view(n, values)
    return (bits >> 23) & 0xFF, ((bits >> 8) & 0x800000) | (bits & 0x7FFFFF)


def _join_float(segment: Segment, exponent: torch.Tensor, mantissa: torch.Tensor) -> torch.Tensor:
    """uint8 [n, segment_bytes] from what `_split_float` gave."""
    if segment.dtype == "bfloat16":
        bits = (((mantissa & 0x80) << 8) | (exponent << 7) | (mantissa & 0x7F)).to(torch.int16)
    else:
        bits = ((mantissa & 0x800000) << 8) | (exponent << 23) | (mantissa & 0x7FFFFF)
    return bits.contiguous().view(torch.uint8).view(len(bits), -1)


def _put_exceptions(e: int, outlier: torch.Tensor, exponent: torch.Tensor, out: torch.Tensor) -> None:
    """Five bytes an exception: position (4, little endian, all ones when unused) and exponent (1)."""
    n = len(outlier)
    positions = torch.full((n, e), -1, dtype=torch.int32, device=out.device)
    exponents = torch.zeros((n, e), dtype=torch.uint8, device=out.device)
    page, value = outlier.nonzero(as_tuple=True)
    rank = (outlier.int().cumsum(1) - 1)[page, value]
    positions[page, rank] = value.int()
    exponents[page, rank] = exponent[page, value].to(torch.uint8)
    out[:, : 4 * e] = positions.view(torch.uint8).view(n, -1)
    out[:, 4 * e : 5 * e] = exponents
