"""Coded forms of history pages: smaller bytes on the same tier.

A codec is a coding and the segments it touches. `lossless` (`lossless.py`) keeps every bit. `int8`, `fp8` and `int4`
(`grouped.py`) are lossy: the largest error is measured and kept with the object. They touch native full-attention
segments; natively compressed ones (CSA, HCA, MLA) are copied as they are unless `code_compressed` asks for more.

Same code on `cpu` and `cuda`: every step is a torch operation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.errors import CodecRefused, ConfigError
from engine.memory.coding import GROUP, AsIs, Coding
from engine.memory.grouped import FP8, INT4, INT8
from engine.memory.lossless import DTYPES as LOSSLESS_DTYPES
from engine.memory.lossless import Lossless
from engine.model.objects import ALIGNMENT_BYTES, Layout, ObjectKind, Segment

CODEC_VERSION = 1
NATIVE = "native"
LOSSY_CODINGS: dict[str, Coding] = {coding.name: coding for coding in (INT8, FP8, INT4)}
CODINGS: dict[str, Coding] = {"lossless": Lossless(), **LOSSY_CODINGS}
CODECS = tuple(CODINGS)
LOSSY = tuple(LOSSY_CODINGS)
FLOATING = ("bfloat16", "float32", "float16")
_AS_IS = AsIs()


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecMeta:
    """What must be known to read a coded object; stored with it and compared before it is served.

    `logit_error` and `kl` are what a judge measured on this very object (schedule/quality.py); None: nobody did.
    """

    codec: str
    version: int
    group: int
    error_bound: float  # largest absolute error of any value of the object; 0 for a lossless codec
    compressed: bool = False  # natively compressed segments are coded too
    logit_error: float | None = None
    kl: float | None = None  # nats


NATIVE_META = CodecMeta(codec=NATIVE, version=CODEC_VERSION, group=0, error_bound=0.0)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Where one segment lies in a coded slot, and how it is written."""

    segment: Segment
    coding: Coding
    offset_bytes: int
    total_bytes: int


class PageCodec:
    """Codes pages of one layout, uint8 [n, slot_bytes] to uint8 [n, coded_bytes] and back.

    `code_compressed` makes a lossy codec touch every floating segment; where the model has none that is natively
    compressed, it changes nothing. Raises `ConfigError` for a codec that is not known.
    """

    def __init__(self, codec: str, layout: Layout, *, code_compressed: bool = False) -> None:
        if codec not in CODECS:
            raise ConfigError(f"codec is {codec!r}; known: none, {', '.join(CODECS)}")
        self.codec = codec
        self.layout = layout
        touched = {s.key for s in layout.segments if touches(codec, s, code_compressed=code_compressed)}
        self.compressed = codec in LOSSY and any(s.key in touched and not s.native for s in layout.segments)
        self._pieces: list[_Piece] = []
        offset = 0
        for segment in layout.segments:
            coding = CODINGS[codec] if segment.key in touched else _AS_IS
            piece = _Piece(segment, coding, offset, coding.coded_bytes(segment))
            self._pieces.append(piece)
            offset = -(-(offset + piece.total_bytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.coded_bytes = offset

    @property
    def useful(self) -> bool:
        return 0 < self.coded_bytes < self.layout.slot_bytes

    @property
    def page_class(self) -> str:
        """The class its pages are kept in: those of another codec, or that code other segments, differ in size."""
        return f"{ObjectKind.COMPRESSED_KV}+{self.codec}{'+compressed' if self.compressed else ''}"

    def encode(self, pages: torch.Tensor) -> tuple[torch.Tensor, CodecMeta]:
        """Raises `CodecRefused` when the codec saves nothing here or cannot keep what a page holds."""
        if not self.useful:
            raise CodecRefused(f"{self.codec} would not make pages of {self.layout.slot_bytes:,} bytes smaller")
        coded = torch.zeros((len(pages), self.coded_bytes), dtype=torch.uint8, device=pages.device)
        bound = 0.0
        for piece in self._pieces:
            raw = pages[:, piece.segment.offset_bytes : piece.segment.offset_bytes + piece.segment.segment_bytes]
            out = coded[:, piece.offset_bytes : piece.offset_bytes + piece.total_bytes]
            bound = max(bound, piece.coding.encode(piece.segment, raw, out))
        return coded, CodecMeta(
            codec=self.codec, version=CODEC_VERSION, group=GROUP, error_bound=bound, compressed=self.compressed
        )

    def decode(self, coded: torch.Tensor, meta: CodecMeta) -> torch.Tensor:
        """Raises `CodecRefused` for pages of another codec, version or group: they cannot be read by this code."""
        mine = (self.codec, CODEC_VERSION, GROUP, self.compressed)
        if (meta.codec, meta.version, meta.group, meta.compressed) != mine:
            raise CodecRefused(
                f"pages coded by {meta.codec} v{meta.version} cannot be read as {self.codec} v{CODEC_VERSION}"
            )
        pages = torch.zeros((len(coded), self.layout.slot_bytes), dtype=torch.uint8, device=coded.device)
        for piece in self._pieces:
            out = pages[:, piece.segment.offset_bytes : piece.segment.offset_bytes + piece.segment.segment_bytes]
            data = coded[:, piece.offset_bytes : piece.offset_bytes + piece.total_bytes]
            out.copy_(piece.coding.decode(piece.segment, data))
        return pages

    def roundtrip(self, pages: torch.Tensor) -> torch.Tensor:
        """What a reader gets for these native pages: the truth that a lossy hit is compared with."""
        return self.decode(*self.encode(pages))


def touches(codec: str, segment: Segment, *, code_compressed: bool = False) -> bool:
    """Whether the codec codes this segment of history; others are copied as they are."""
    if codec not in LOSSY:
        return codec in CODECS and segment.dtype in LOSSLESS_DTYPES
    return segment.dtype in FLOATING and (segment.native or code_compressed)
