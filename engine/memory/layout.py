"""Between the model's contiguous tensors and the bytes of pages and blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.errors import StateMismatch
from engine.memory.state import NewState, Tensors
from engine.model.objects import Layout, PrefixLayouts, Segment, SegmentKey, section_rows

_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float8_e4m3fn", "int8", "uint8", "int32")
}


def torch_dtype(name: str) -> torch.dtype:
    return _DTYPES[name]


def check_range(layouts: PrefixLayouts, state: NewState, page_tokens: int) -> None:
    """Raises `StateMismatch` unless the entries are exactly those of [start, end).

    Rows counted from another start would be other tokens' rows."""
    start, end = state.start_tokens, state.end_tokens
    if start % page_tokens or not 0 <= start <= end:
        raise StateMismatch(f"the state starts at {start} of {end} tokens; it must be a multiple of {page_tokens}")
    for layout in (layouts.history, layouts.indexer):
        for segment in layout.segments:
            rows = end // segment.ratio - start // segment.ratio
            tensor = state.entries.get(segment.key)
            if tensor is not None and tensor.shape[0] != rows:
                raise StateMismatch(
                    f"{segment.key}: {tensor.shape[0]} rows; tokens {start} to {end} make {rows}, no more and no fewer"
                )


def pack_pages(layout: Layout, entries: Tensors, first_token: int, pages: range, page_tokens: int) -> torch.Tensor:
    """Bytes of whole pages, uint8 [len(pages), slot_bytes], cut from entries that begin at `first_token`.

    Raises `StateMismatch` when a tensor is missing, of the wrong dtype or width, or too short for the pages.
    """
    n = len(pages)
    out = _blank(layout, n, entries)
    for segment in layout.segments:
        first = (pages.start * page_tokens - first_token) // segment.ratio
        rows = _rows_of(entries, segment, first, n * segment.rows)
        flat = rows.contiguous().view(torch.uint8).view(n, segment.segment_bytes)
        out[:, segment.offset_bytes : segment.offset_bytes + segment.segment_bytes] = flat
    return out


def pack_block(
    layout: Layout, boundary: int, page_tokens: int, objects: Tensors, entries: Tensors, first_token: int
) -> torch.Tensor:
    """Bytes of one boundary object at `boundary`, uint8 [1, slot_bytes].

    Boundary sections come from `objects`; the entries of the unfinished page are cut from `entries`.
    Raises `StateMismatch` as `pack_pages` does; a wrong number of rows is a mismatch too, never padded over.
    """
    out = _blank(layout, 1, objects if objects else entries)
    for segment in layout.segments:
        rows = section_rows(segment, boundary, page_tokens)
        if rows == 0:
            continue
        if segment.key.section == "entries":
            floor = boundary // page_tokens * page_tokens
            data = _rows_of(entries, segment, (floor - first_token) // segment.ratio, rows)
        else:
            data = _rows_of(objects, segment, 0, rows, exactly=True)
        flat = data.contiguous().view(torch.uint8).view(-1)
        out[0, segment.offset_bytes : segment.offset_bytes + flat.numel()] = flat
    return out


def unpack_pages(layout: Layout, data: torch.Tensor) -> dict[SegmentKey, torch.Tensor]:
    """Tensors [entries, width] of whole pages from their bytes [n, slot_bytes]."""
    n = len(data)
    found = {}
    for segment in layout.segments:
        flat = data[:, segment.offset_bytes : segment.offset_bytes + segment.segment_bytes].contiguous()
        found[segment.key] = flat.view(torch_dtype(segment.dtype)).view(n * segment.rows, segment.width)
    return found


def unpack_block(layout: Layout, boundary: int, page_tokens: int, data: torch.Tensor) -> dict[SegmentKey, torch.Tensor]:
    """Tensors of one boundary object from its bytes [1, slot_bytes]; sections with no rows are empty, not absent."""
    found = {}
    for segment in layout.segments:
        rows = section_rows(segment, boundary, page_tokens)
        flat = data[0, segment.offset_bytes : segment.offset_bytes + rows * segment.row_bytes].contiguous()
        found[segment.key] = flat.view(torch_dtype(segment.dtype)).view(rows, segment.width)
    return found


def empty_sections(layout: Layout, device: torch.device) -> dict[SegmentKey, torch.Tensor]:
    """Boundary sections of no rows: what a block holds at a position where the model keeps nothing."""
    return {
        segment.key: torch.empty((0, segment.width), dtype=torch_dtype(segment.dtype), device=device)
        for segment in layout.segments
        if segment.key.section != "entries"
    }


def join(parts: Sequence[dict[SegmentKey, torch.Tensor]]) -> dict[SegmentKey, torch.Tensor]:
    """Concatenate entries along tokens."""
    if not parts:
        return {}
    return {key: torch.cat([part[key] for part in parts if key in part]) for key in parts[0]}


def _blank(layout: Layout, n: int, like: Tensors) -> torch.Tensor:
    device = next(iter(like.values())).device if like else torch.device("cpu")
    # Zeros, not uninitialised memory: padding is part of the checksum and must be the same for the same content.
    return torch.zeros((n, layout.slot_bytes), dtype=torch.uint8, device=device)


def _rows_of(tensors: Tensors, segment: Segment, first: int, rows: int, exactly: bool = False) -> torch.Tensor:
    tensor = tensors.get(segment.key)
    if tensor is None:
        raise StateMismatch(f"{segment.key}: the state has no such tensor; pass one for every part of the model")
    if tensor.dtype != torch_dtype(segment.dtype) or tensor.ndim != 2 or tensor.shape[1] != segment.width:
        raise StateMismatch(
            f"{segment.key}: got {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}, "
            f"the model's layout is {segment.dtype} [rows, {segment.width}]"
        )
    if first < 0 or first + rows > tensor.shape[0] or (exactly and tensor.shape[0] != rows):
        raise StateMismatch(
            f"{segment.key}: rows {first} to {first + rows} are needed{' exactly' if exactly else ''}, "
            f"the tensor has {tensor.shape[0]}"
        )
    return tensor[first : first + rows]
