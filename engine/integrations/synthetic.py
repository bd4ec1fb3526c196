"""A model whose every KV byte is a pure function of (tokens up to the position, layer, part, field, column).

It stands in for a real model wherever the question is "are these the right bytes?": what a lease loads can be compared
byte for byte with what an uninterrupted run would hold, at hundreds of megabytes a second and without weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.errors import StateMismatch
from engine.integrations.verification import Verification, compare_all, round_trips
from engine.memory.state import LoadedState, NewState
from engine.model.objects import PrefixLayouts, Segment, SegmentKey, layouts_of
from engine.model.spec import DTYPE_BYTES, ModelSpec

Tokens = npt.NDArray[np.int32]

WORD_BYTES = 8
BLOCK_WORDS = 1 << 15  # 256 KiB a step: the temporaries stay in the second-level cache

# Odd 64-bit constants of splitmix64 and xxh64, written as the signed numbers torch wants.
_MIX_A = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_B = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_C = 0x94D049BB133111EB - (1 << 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Rows of one tensor: row i is made from the hash at position `first + i * step`."""

    first: int
    rows: int
    step: int


class SyntheticModel:
    """Deterministic prefix state for `spec`; the same `seed` and tokens give the same bytes on every device.

    Values of floating dtypes are finite, of both signs, with magnitudes spread evenly over four octaves in [1/16, 1);
    integer dtypes use all their bits. An entry with ratio r at index e depends on tokens [0, (e + 1) r); window rows,
    buffers and overlaps on the tokens up to their own; a recurrent state at b on [0, b).

    `codec` and `code_compressed` are the engine's: `verify` accepts what that codec (or any of several) makes of pages.
    """

    def __init__(
        self,
        spec: ModelSpec,
        seed: int = 0,
        *,
        device: str | torch.device = "cpu",
        codec: str | Iterable[str] = "none",
        code_compressed: bool = False,
    ) -> None:
        self.spec = spec
        self.device = torch.device(device)
        self._layouts: PrefixLayouts = layouts_of(spec)
        codecs = (codec,) if isinstance(codec, str) else tuple(codec)
        self._lossy = round_trips(self._layouts.history.segments, codecs, code_compressed=code_compressed)
        self._seed = f"{spec.fingerprint}/{seed}"
        self._entries = (*self._layouts.history.segments, *self._layouts.indexer.segments)
        self._boundary = tuple(
            segment
            for layout in (self._layouts.tail, self._layouts.window, self._layouts.recurrent)
            for segment in layout.segments
            if segment.key.section != "entries"
        )
        self._columns: dict[tuple[SegmentKey, ...], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def prefill(self, tokens: Tokens, start_tokens: int, checkpoints: Iterable[int] = ()) -> NewState:
        """State of `tokens` [n] from `start_tokens` (a page boundary) to n, with checkpoints at the given positions.

        Raises `StateMismatch` for a start that is no page boundary, or a checkpoint outside [1, n].
        """
        end = len(tokens)
        if start_tokens % self.spec.page_tokens or not 0 <= start_tokens <= end:
            raise StateMismatch(
                f"prefill from {start_tokens} of {end} tokens: the start must be a multiple of "
                f"{self.spec.page_tokens} and no more than the end"
            )
        wanted = sorted(set(checkpoints))
        if wanted and not 1 <= wanted[0] <= wanted[-1] <= end:
            raise StateMismatch(f"checkpoints {wanted} must lie in [1, {end}]")
        hashes = self._hashes(tokens)
        return NewState(
            start_tokens=start_tokens,
            end_tokens=end,
            entries=self._entries_between(hashes, start_tokens, end),
            checkpoints={b: self._boundary_at(hashes, b) for b in wanted},
        )

    def truth(self, tokens: Tokens, boundary: int, replay: int = 0) -> LoadedState:
        """What a lease on `boundary` tokens must load: all entries, and the boundary objects unless it replays."""
        if not 0 < boundary <= len(tokens):
            raise StateMismatch(f"boundary {boundary} must lie in [1, {len(tokens)}]")
        hashes = self._hashes(tokens[:boundary])
        return LoadedState(
            boundary_tokens=boundary,
            replay_tokens=replay,
            entries=self._entries_between(hashes, 0, boundary),
            boundary={} if replay else self._boundary_at(hashes, boundary),
        )

    def verify(self, loaded: LoadedState, tokens: Tokens) -> Verification:
        """Compare every byte of `loaded` with the truth for `tokens`.

        A tensor that is absent, unexpected or of another shape counts as wrong in full. With a lossy codec a page of
        history that it touches may also equal the codec's round trip, exactly.
        """
        truth = self.truth(tokens, loaded.boundary_tokens, loaded.replay_tokens)
        results = [
            *compare_all(truth.entries, loaded.entries, self._lossy),
            *compare_all(truth.boundary, loaded.boundary, {}),
        ]
        return Verification(
            bytes_checked=sum(r.bytes_checked for r in results),
            wrong_bytes=sum(r.wrong_bytes for r in results),
            lossy_bytes=sum(r.lossy_bytes for r in results),
            first_wrong=next((r.first_wrong for r in results if r.first_wrong), ""),
        )

    def _hashes(self, tokens: Tokens) -> torch.Tensor:
        """int64 [n]: element i depends on tokens [0, i] and on their order (a running sum of mixed pairs)."""
        values = torch.from_numpy(np.ascontiguousarray(tokens, dtype=np.int32)).to(self.device, torch.int64)
        positions = torch.arange(1, len(values) + 1, dtype=torch.int64, device=self.device)
        mixed = _mix((values & 0xFFFFFFFF).add_(positions << 32))
        return _mix(mixed.cumsum_(0))

    def _entries_between(self, hashes: torch.Tensor, start: int, end: int) -> dict[SegmentKey, torch.Tensor]:
        spans = {
            s.key: _Span(first=start + s.ratio - 1, rows=end // s.ratio - start // s.ratio, step=s.ratio)
            for s in self._entries
        }
        return self._make(hashes, self._entries, spans)

    def _boundary_at(self, hashes: torch.Tensor, boundary: int) -> dict[SegmentKey, torch.Tensor]:
        spans: dict[SegmentKey, _Span] = {}
        for segment in self._boundary:
            span = _boundary_span(segment, boundary)
            if span is not None:
                spans[segment.key] = span
        return self._make(hashes, self._boundary, spans)

    def _make(
        self, hashes: torch.Tensor, segments: tuple[Segment, ...], spans: Mapping[SegmentKey, _Span]
    ) -> dict[SegmentKey, torch.Tensor]:
        """All tensors of `spans`, those that share rows in one pass."""
        made: dict[SegmentKey, torch.Tensor] = {}
        present = [s for s in segments if s.key in spans]

        def rows_of(segment: Segment) -> tuple[int, int, int]:
            span = spans[segment.key]
            return span.first, span.rows, span.step

        for (first, rows, step), group in groupby(sorted(present, key=rows_of), key=rows_of):
            together = tuple(group)
            seeds = hashes[first : first + (rows - 1) * step + 1 : step] if rows else hashes[:0]
            words = self._words(seeds, together)
            made.update(_split_columns(words, together))
        return made

    def _words(self, seeds: torch.Tensor, segments: tuple[Segment, ...]) -> torch.Tensor:
        """int64 [rows, words of all segments]: the raw bytes of the tensors side by side."""
        salts, masks, adds = self._column_constants(segments)
        out = torch.empty((len(seeds), len(salts)), dtype=torch.int64, device=self.device)
        step = max(1, BLOCK_WORDS // max(1, len(salts)))
        for at in range(0, len(seeds), step):
            block = out[at : at + step]
            torch.add(seeds[at : at + step, None], salts, out=block)
            block.mul_(_MIX_B).bitwise_xor_(block >> 32).mul_(_MIX_C).bitwise_and_(masks).add_(adds)
        return out

    def _column_constants(self, segments: tuple[Segment, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A salt, mask and addend for each word: the mask and addend keep floating values in [1/16, 1)."""
        key = tuple(s.key for s in segments)
        if key not in self._columns:
            salts, masks, adds = [], [], []
            for segment in segments:
                count = _words_a_row(segment)
                salts.append(self._salts(segment.key, count))
                mask, add = _lane_constants(segment.dtype)
                masks.append(np.full(count, mask, dtype=np.int64))
                adds.append(np.full(count, add, dtype=np.int64))
            tensors = (torch.from_numpy(np.concatenate(x)).to(self.device) for x in (salts, masks, adds))
            self._columns[key] = next(tensors), next(tensors), next(tensors)
        return self._columns[key]

    def _salts(self, key: SegmentKey, count: int) -> npt.NDArray[np.int64]:
        digest = hashlib.blake2b(f"{self._seed}/{key}".encode(), digest_size=8).digest()
        start = np.frombuffer(digest, dtype=np.uint64)
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_MIX_A + (1 << 64))
        return (start + steps).view(np.int64)


def use_one_thread() -> None:
    """Keep this process's torch on one CPU thread.

    State of the small presets is moved a few kilobytes at a time: threads would wait for each other far longer than
    they work (measured: 3 to 9 times slower with two on a busy machine of two cores).
    """
    torch.set_num_threads(1)


def _mix(x: torch.Tensor) -> torch.Tensor:
    """Spread every input bit over the word, in place. Ends in a product: arithmetic shifts leave the top bit weak."""
    x.mul_(_MIX_A).bitwise_xor_(x >> 30).mul_(_MIX_B).bitwise_xor_(x >> 27).mul_(_MIX_C)
    return x


def _boundary_span(segment: Segment, boundary: int) -> _Span | None:
    """Which positions a boundary object's rows stand for; None where there is none (an overlap before any entry)."""
    section, ratio = segment.key.section, segment.ratio
    entries_end = boundary // ratio * ratio
    if section == "window":
        rows = min(segment.rows, boundary)
        return _Span(first=boundary - rows, rows=rows, step=1)
    if section == "buffer":
        return _Span(first=entries_end, rows=boundary - entries_end, step=1)
    if section == "overlap":
        return _Span(first=entries_end - ratio, rows=ratio, step=1) if entries_end else None
    return _Span(first=boundary - 1, rows=1, step=1)


def _words_a_row(segment: Segment) -> int:
    return -(-segment.row_bytes // WORD_BYTES)


# For each dtype: the bits of a value that are kept random (sign, two exponent bits, mantissa) and what is added so
# that the exponent names one of the four octaves below 1.
_LANES: dict[str, tuple[int, int]] = {
    "float32": (0x81FFFFFF, 0x3D800000),
    "bfloat16": (0x81FF, 0x3D80),
    "float16": (0x8FFF, 0x2C00),
    "float8_e4m3fn": (0x9F, 0x18),
}


def _lane_constants(dtype: str) -> tuple[int, int]:
    """The (mask, addend) of one dtype repeated over a 64-bit word, as signed numbers."""
    if dtype not in _LANES:
        return -1, 0
    size = DTYPE_BYTES[dtype]
    mask, add = (sum(lane << (8 * size * i) for i in range(WORD_BYTES // size)) for lane in _LANES[dtype])
    return mask - (1 << 64), add


def _split_columns(words: torch.Tensor, segments: tuple[Segment, ...]) -> Iterator[tuple[SegmentKey, torch.Tensor]]:
    at = 0
    for segment in segments:
        count = _words_a_row(segment)
        dtype: Any = getattr(torch, segment.dtype)
        values = words[:, at : at + count].view(dtype)[:, : segment.width]
        yield segment.key, values.contiguous()
        at += count
