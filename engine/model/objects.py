"""The object kinds of a prefix and how each is laid out in bytes: derived from the `ModelSpec`, never written twice."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from engine.model.spec import DTYPE_BYTES, Compressed, Field, Full, Indexed, ModelSpec, Recurrent, Sliding

ALIGNMENT_BYTES = 16
"""Every segment starts on this boundary, so that a slot can be viewed in the segment's own dtype."""


class ObjectKind(StrEnum):
    COMPRESSED_KV = "compressed_kv"
    UNCOMPRESSED_TAIL = "uncompressed_tail"
    SWA_WINDOW = "swa_window"
    INDEXER_STATE = "indexer_state"
    DISK_PREFIX = "disk_prefix"
    RECURRENT_STATE = "recurrent_state"


SPAN_KINDS = (ObjectKind.COMPRESSED_KV, ObjectKind.INDEXER_STATE)
"""Sliceable by page, valid at any position inside."""

BOUNDARY_KINDS = (ObjectKind.UNCOMPRESSED_TAIL, ObjectKind.SWA_WINDOW, ObjectKind.RECURRENT_STATE)
"""Valid at exactly one position."""


class SegmentKey(NamedTuple):
    """Which tensor: layer, part, field, and section (entries, buffer, overlap, window, state)."""

    layer: int
    part: str
    field: str
    section: str

    def __str__(self) -> str:
        return f"{self.layer}/{self.part}/{self.field}/{self.section}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A tensor [up to `rows`, `width`] of `dtype` at `offset_bytes` inside a slot."""

    key: SegmentKey
    dtype: str
    rows: int
    width: int
    ratio: int
    offset_bytes: int
    native: bool  # full-precision history that a lossy codec may touch

    @property
    def row_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype] * self.width

    @property
    def segment_bytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The byte layout of one stored page (span objects) or block (boundary objects) of one kind."""

    kind: ObjectKind
    segments: tuple[Segment, ...]
    slot_bytes: int

    @property
    def empty(self) -> bool:
        return not self.segments


class _Builder:
    def __init__(self, kind: ObjectKind) -> None:
        self.kind = kind
        self.segments: list[Segment] = []
        self.offset_bytes = 0

    def add(self, key: SegmentKey, field: Field, rows: int, ratio: int = 1, native: bool = False) -> None:
        if rows == 0:
            return
        segment = Segment(
            key=key,
            dtype=field.dtype,
            rows=rows,
            width=field.width,
            ratio=ratio,
            offset_bytes=self.offset_bytes,
            native=native,
        )
        self.segments.append(segment)
        end = self.offset_bytes + segment.segment_bytes
        self.offset_bytes = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    def build(self) -> Layout:
        return Layout(kind=self.kind, segments=tuple(self.segments), slot_bytes=self.offset_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixLayouts:
    """All layouts of a model. A kind the model does not have has an empty layout."""

    page_tokens: int
    has_overlap: bool
    history: Layout
    indexer: Layout
    tail: Layout
    window: Layout
    recurrent: Layout

    def of(self, kind: ObjectKind) -> Layout:
        return {
            ObjectKind.COMPRESSED_KV: self.history,
            ObjectKind.INDEXER_STATE: self.indexer,
            ObjectKind.UNCOMPRESSED_TAIL: self.tail,
            ObjectKind.SWA_WINDOW: self.window,
            ObjectKind.RECURRENT_STATE: self.recurrent,
        }[kind]

    def tail_is_empty(self, boundary: int) -> bool:
        """True where a model needs no stored tail: a page boundary, no overlap (ratios divide the page: no buffers)."""
        return not self.has_overlap and boundary % self.page_tokens == 0

    @property
    def span_kinds(self) -> tuple[ObjectKind, ...]:
        return tuple(k for k in SPAN_KINDS if not self.of(k).empty)

    @property
    def boundary_kinds(self) -> tuple[ObjectKind, ...]:
        return tuple(k for k in BOUNDARY_KINDS if not self.of(k).empty)


def layouts_of(spec: ModelSpec) -> PrefixLayouts:
    return PrefixLayouts(
        page_tokens=spec.page_tokens,
        has_overlap=spec.has_overlap,
        history=_span_layout(spec, ObjectKind.COMPRESSED_KV),
        indexer=_span_layout(spec, ObjectKind.INDEXER_STATE),
        tail=_tail_layout(spec),
        window=_window_layout(spec),
        recurrent=_recurrent_layout(spec),
    )


def _span_layout(spec: ModelSpec, kind: ObjectKind) -> Layout:
    builder = _Builder(kind)
    for index, part in spec.parts():
        wanted = isinstance(part, Indexed) if kind is ObjectKind.INDEXER_STATE else isinstance(part, Full | Compressed)
        if wanted and isinstance(part, Full | Compressed | Indexed):
            rows = spec.page_tokens // part.ratio
            for field in part.fields:
                key = SegmentKey(index, part.name, field.name, "entries")
                builder.add(key, field, rows, part.ratio, native=isinstance(part, Full) and part.lossy_allowed)
    return builder.build()


def _tail_layout(spec: ModelSpec) -> Layout:
    """Entries of the unfinished page, compressor buffers (b mod ratio tokens) and overlap (ratio tokens)."""
    builder = _Builder(ObjectKind.UNCOMPRESSED_TAIL)
    for index, part in spec.parts():
        if not isinstance(part, Full | Compressed | Indexed):
            continue
        partial = (spec.page_tokens - 1) // part.ratio
        for field in part.fields:
            builder.add(SegmentKey(index, part.name, field.name, "entries"), field, partial, part.ratio)
        if isinstance(part, Full):
            continue
        for field in part.buffers:
            builder.add(SegmentKey(index, part.name, field.name, "buffer"), field, part.ratio - 1, part.ratio)
        for field in part.overlaps:
            builder.add(SegmentKey(index, part.name, field.name, "overlap"), field, part.ratio, part.ratio)
    return builder.build()


def _window_layout(spec: ModelSpec) -> Layout:
    builder = _Builder(ObjectKind.SWA_WINDOW)
    for index, part in spec.parts():
        if isinstance(part, Sliding):
            for field in part.fields:
                builder.add(SegmentKey(index, part.name, field.name, "window"), field, part.window - 1)
    return builder.build()


def _recurrent_layout(spec: ModelSpec) -> Layout:
    builder = _Builder(ObjectKind.RECURRENT_STATE)
    for index, part in spec.parts():
        if isinstance(part, Recurrent):
            for field in part.fields:
                builder.add(SegmentKey(index, part.name, field.name, "state"), field, 1)
    return builder.build()


def section_rows(segment: Segment, boundary: int, page_tokens: int) -> int:
    """How many rows of a boundary object's segment are filled at `boundary` tokens.

    window: min(W - 1, b). entries: those of the unfinished page. buffer: b mod ratio. overlap: ratio once an entry
    exists, else none. state: always one.
    """
    section = segment.key.section
    if section == "window":
        return min(segment.rows, boundary)
    if section == "entries":
        return (boundary % page_tokens) // segment.ratio
    if section == "buffer":
        return boundary % segment.ratio
    if section == "overlap":
        return segment.ratio if boundary >= segment.ratio else 0
    return 1


def bytes_per_token(spec: ModelSpec) -> float:
    """Bytes of span objects a token of history costs, native."""
    layouts = layouts_of(spec)
    return (layouts.history.slot_bytes + layouts.indexer.slot_bytes) / spec.page_tokens


def checkpoint_bytes(spec: ModelSpec) -> int:
    """Bytes one checkpoint takes at most: window, tail and recurrent state."""
    layouts = layouts_of(spec)
    return layouts.tail.slot_bytes + layouts.window.slot_bytes + layouts.recurrent.slot_bytes


def page_bytes(spec: ModelSpec) -> int:
    """What a page takes at least; of a model without history, what its checkpoint takes."""
    return int(bytes_per_token(spec) * spec.page_tokens) or checkpoint_bytes(spec)
