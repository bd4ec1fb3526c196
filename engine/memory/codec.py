"""Coded forms of history pages: smaller bytes on the same tier.

`int8` is lossy: groups of 32 values share a float32 scale; the largest error is measured and kept with the object. It
touches only native full-attention segments; natively compressed ones (CSA, HCA, MLA) are copied as they are.

`lossless` keeps every bit: the exponents of bfloat16 and float32 values cluster, so each is coded in 4 bits relative to
the largest of its group of 32, and the rare outlier goes to an exception list. A page with more outliers than the list
holds is refused and stays native.

Same code on `cpu` and `cuda`: every step is a torch operation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.errors import CodecRefused, ConfigError
from engine.memory.layout import torch_dtype
from engine.model.objects import ALIGNMENT_BYTES, Layout, Segment

CODEC_VERSION = 1
GROUP = 32
NATIVE = "native"
CODECS = ("lossless", "int8")
_EXPONENT_CODES = 14  # codes 1..14 are exponents up to the group's largest; 0 is zero, 15 unused
_LOSSLESS_DTYPES = ("bfloat16", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecMeta:
    """What must be known to read a coded object; stored with it and compared before it is served."""

    codec: str
    version: int
    group: int
    error_bound: float  # largest absolute error of any value of the object; 0 for a lossless codec


NATIVE_META = CodecMeta(codec=NATIVE, version=CODEC_VERSION, group=0, error_bound=0.0)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Where one segment's coded parts lie in a coded slot. `how`: raw, int8 or lossless."""

    segment: Segment
    how: str
    offset_bytes: int
    total_bytes: int
    values: int
    padded: int
    exceptions: int


class PageCodec:
    """Codes pages of one layout, uint8 [n, slot_bytes] to uint8 [n, coded_bytes] and back."""

    def __init__(self, codec: str, layout: Layout) -> None:
        if codec not in CODECS:
            raise ConfigError(f"codec is {codec!r}; known: none, {', '.join(CODECS)}")
        self.codec = codec
        self.layout = layout
        self._pieces: list[_Piece] = []
        offset = 0
        for segment in layout.segments:
            piece = _plan(segment, codec, offset)
            self._pieces.append(piece)
            offset = -(-(offset + piece.total_bytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.coded_bytes = offset

    @property
    def useful(self) -> bool:
        return 0 < self.coded_bytes < self.layout.slot_bytes

    def encode(self, pages: torch.Tensor) -> tuple[torch.Tensor, CodecMeta]:
        """Raises `CodecRefused` when the codec saves nothing here or a page has too many outliers."""
        if not self.useful:
            raise CodecRefused(f"{self.codec} would not make pages of {self.layout.slot_bytes:,} bytes smaller")
        coded = torch.zeros((len(pages), self.coded_bytes), dtype=torch.uint8, device=pages.device)
        bound = 0.0
        for piece in self._pieces:
            raw = pages[:, piece.segment.offset_bytes : piece.segment.offset_bytes + piece.segment.segment_bytes]
            out = coded[:, piece.offset_bytes : piece.offset_bytes + piece.total_bytes]
            if piece.how == "int8":
                bound = max(bound, _encode_int8(piece, raw, out))
            elif piece.how == "lossless":
                _encode_lossless(piece, raw, out)
            else:
                out.copy_(raw)
        return coded, CodecMeta(codec=self.codec, version=CODEC_VERSION, group=GROUP, error_bound=bound)

    def decode(self, coded: torch.Tensor, meta: CodecMeta) -> torch.Tensor:
        """Raises `CodecRefused` for pages of another codec, version or group: they cannot be read by this code."""
        if (meta.codec, meta.version, meta.group) != (self.codec, CODEC_VERSION, GROUP):
            raise CodecRefused(
                f"pages coded by {meta.codec} v{meta.version} cannot be read as {self.codec} v{CODEC_VERSION}"
            )
        pages = torch.zeros((len(coded), self.layout.slot_bytes), dtype=torch.uint8, device=coded.device)
        for piece in self._pieces:
            out = pages[:, piece.segment.offset_bytes : piece.segment.offset_bytes + piece.segment.segment_bytes]
            data = coded[:, piece.offset_bytes : piece.offset_bytes + piece.total_bytes]
            if piece.how == "int8":
                out.copy_(_decode_int8(piece, data))
            elif piece.how == "lossless":
                out.copy_(_decode_lossless(piece, data))
            else:
                out.copy_(data)
        return pages

    def roundtrip(self, pages: torch.Tensor) -> torch.Tensor:
        """What a reader gets for these native pages: the truth that a lossy hit is compared with."""
        return self.decode(*self.encode(pages))


def _plan(segment: Segment, codec: str, offset: int) -> _Piece:
    values = segment.rows * segment.width
    padded = -(-values // GROUP) * GROUP
    floating = segment.dtype in ("bfloat16", "float32", "float16")
    if codec == "int8" and segment.native and floating:
        return _Piece(segment, "int8", offset, padded + padded // GROUP * 4, values, padded, 0)
    if codec == "lossless" and segment.dtype in _LOSSLESS_DTYPES:
        mantissa = 1 if segment.dtype == "bfloat16" else 3
        exceptions = max(8, values // 64)
        size = padded * mantissa + padded // 2 + padded // GROUP + exceptions * 5
        return _Piece(segment, "lossless", offset, size, values, padded, exceptions)
    return _Piece(segment, "raw", offset, segment.segment_bytes, values, padded, 0)


def _pad(flat: torch.Tensor, padded: int) -> torch.Tensor:
    return torch.nn.functional.pad(flat, (0, padded - flat.shape[1])) if flat.shape[1] < padded else flat


def _encode_int8(piece: _Piece, raw: torch.Tensor, out: torch.Tensor) -> float:
    n, dtype = len(raw), torch_dtype(piece.segment.dtype)
    values = _pad(raw.contiguous().view(dtype).view(n, piece.values).float(), piece.padded).view(n, -1, GROUP)
    scale = values.abs().amax(2, keepdim=True) / 127.0
    if not bool(torch.isfinite(scale).all()):
        raise CodecRefused(f"{piece.segment.key}: a page holds infinities or NaNs, which int8 cannot keep")
    codes = torch.where(scale > 0, values / scale, torch.zeros_like(values)).round().clamp(-127, 127).to(torch.int8)
    out[:, : piece.padded] = codes.view(n, -1).view(torch.uint8)
    out[:, piece.padded :] = scale.view(n, -1).contiguous().view(torch.uint8)
    # Measured, not derived: rounding back to the native dtype adds to half a scale.
    return float(((codes.float() * scale).to(dtype).float() - values).abs().max()) if n else 0.0


def _decode_int8(piece: _Piece, data: torch.Tensor) -> torch.Tensor:
    n, dtype = len(data), torch_dtype(piece.segment.dtype)
    codes = data[:, : piece.padded].contiguous().view(torch.int8).view(n, -1, GROUP).float()
    scale = data[:, piece.padded :].contiguous().view(torch.float32).view(n, -1, 1)
    values = (codes * scale).view(n, -1)[:, : piece.values].to(dtype)
    return values.contiguous().view(torch.uint8).view(n, -1)


def _split_float(piece: _Piece, raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Exponents int32 [n, values] and sign-and-mantissa bits int32 [n, values]."""
    n = len(raw)
    if piece.segment.dtype == "bfloat16":
        bits = raw.contiguous().view(torch.int16).view(n, piece.values).int() & 0xFFFF
        return (bits >> 7) & 0xFF, ((bits >> 8) & 0x80) | (bits & 0x7F)
    bits = raw.contiguous().view(torch.int32).view(n, piece.values)
    return (bits >> 23) & 0xFF, ((bits >> 8) & 0x800000) | (bits & 0x7FFFFF)


def _encode_lossless(piece: _Piece, raw: torch.Tensor, out: torch.Tensor) -> None:
    n = len(raw)
    exponent, mantissa = _split_float(piece, raw)
    exponent = _pad(exponent, piece.padded)
    top = exponent.view(n, -1, GROUP).amax(2)
    base = (top - _EXPONENT_CODES).clamp(min=0)
    code = exponent - base.repeat_interleave(GROUP, 1)
    outlier = (code < 1) & (exponent > 0)
    counts = outlier.sum(1)
    if n and int(counts.max()) > piece.exceptions:
        raise CodecRefused(
            f"{piece.segment.key}: {int(counts.max())} exponents of a page are outliers; {piece.exceptions} fit"
        )
    code = torch.where(outlier | (exponent == 0), torch.zeros_like(code), code)
    cursor = 0
    mantissa_bytes = 1 if piece.segment.dtype == "bfloat16" else 3
    flat = _pad(mantissa, piece.padded)
    for plane in range(mantissa_bytes):
        out[:, cursor : cursor + piece.padded] = ((flat >> (8 * plane)) & 0xFF).to(torch.uint8)
        cursor += piece.padded
    out[:, cursor : cursor + piece.padded // 2] = (code[:, 0::2] | (code[:, 1::2] << 4)).to(torch.uint8)
    cursor += piece.padded // 2
    out[:, cursor : cursor + piece.padded // GROUP] = base.to(torch.uint8)
    cursor += piece.padded // GROUP
    _put_exceptions(piece, outlier, exponent, out[:, cursor:])


def _put_exceptions(piece: _Piece, outlier: torch.Tensor, exponent: torch.Tensor, out: torch.Tensor) -> None:
    """Five bytes an exception: position (4, little endian, all ones when unused) and exponent (1)."""
    n, e = len(outlier), piece.exceptions
    positions = torch.full((n, e), -1, dtype=torch.int32, device=out.device)
    exponents = torch.zeros((n, e), dtype=torch.uint8, device=out.device)
    page, value = outlier.nonzero(as_tuple=True)
    rank = (outlier.int().cumsum(1) - 1)[page, value]
    positions[page, rank] = value.int()
    exponents[page, rank] = exponent[page, value].to(torch.uint8)
    out[:, : 4 * e] = positions.view(torch.uint8).view(n, -1)
    out[:, 4 * e : 5 * e] = exponents


def _decode_lossless(piece: _Piece, data: torch.Tensor) -> torch.Tensor:
    n, e, cursor = len(data), piece.exceptions, 0
    mantissa = torch.zeros((n, piece.padded), dtype=torch.int32, device=data.device)
    mantissa_bytes = 1 if piece.segment.dtype == "bfloat16" else 3
    for plane in range(mantissa_bytes):
        mantissa |= data[:, cursor : cursor + piece.padded].int() << (8 * plane)
        cursor += piece.padded
    nibbles = data[:, cursor : cursor + piece.padded // 2].int()
    code = torch.stack((nibbles & 0xF, nibbles >> 4), 2).view(n, piece.padded)
    cursor += piece.padded // 2
    base = data[:, cursor : cursor + piece.padded // GROUP].int().repeat_interleave(GROUP, 1)
    cursor += piece.padded // GROUP
    exponent = torch.where(code > 0, code + base, torch.zeros_like(code))
    # A clone, because a slice of a single page is contiguous already, at an offset no int32 view may start at.
    positions = data[:, cursor : cursor + 4 * e].clone(memory_format=torch.contiguous_format).view(torch.int32)
    page, rank = (positions >= 0).nonzero(as_tuple=True)
    exponent[page, positions[page, rank].long()] = data[:, cursor + 4 * e :][page, rank].int()
    exponent, mantissa = exponent[:, : piece.values], mantissa[:, : piece.values]
    if piece.segment.dtype == "bfloat16":
        bits = ((mantissa & 0x80) << 8) | (exponent << 7) | (mantissa & 0x7F)
        return bits.to(torch.int16).contiguous().view(torch.uint8).view(n, -1)
    bits = ((mantissa & 0x800000) << 8) | (exponent << 23) | (mantissa & 0x7FFFFF)
    return bits.contiguous().view(torch.uint8).view(n, -1)
