"""Comparing prefix state byte for byte: what was checked, what is wrong, and where it starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from engine.errors import CodecRefused
from engine.memory.codec import LOSSY, PageCodec, touches
from engine.model.objects import Layout, ObjectKind, Segment, SegmentKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Result of one comparison. `lossy_bytes` of the checked ones equal the codec's round trip, not the original."""

    bytes_checked: int
    wrong_bytes: int
    lossy_bytes: int = 0
    first_wrong: str = ""  # the first tensor that differs, for people

    @property
    def ok(self) -> bool:
        return self.wrong_bytes == 0


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


class RoundTrip:
    """What pages of one history segment look like once one of some lossy codecs coded and decoded them.

    Segments are coded independently of each other, so a layout of this one alone gives the same bytes.
    """

    def __init__(self, segment: Segment, codecs: Iterable[str], *, code_compressed: bool = False) -> None:
        alone = replace(segment, offset_bytes=0)
        layout = Layout(kind=ObjectKind.COMPRESSED_KV, segments=(alone,), slot_bytes=segment.segment_bytes)
        self._segment = segment
        self._codecs = [PageCodec(codec, layout, code_compressed=code_compressed) for codec in codecs]

    def compare(self, expected: torch.Tensor, got: torch.Tensor) -> Verification:
        """Page by page: each either as computed or as coded and decoded; the unfinished page only as computed."""
        rows = self._segment.rows
        whole = len(expected) // rows * rows
        pages = _as_bytes(expected[:whole]).view(-1, self._segment.segment_bytes)
        got_pages = _as_bytes(got[:whole]).view(-1, self._segment.segment_bytes)
        exact_wrong = (pages != got_pages).sum(dim=1)
        coded_wrong = self._fewest_wrong(pages, got_pages, exact_wrong)
        rest_wrong = int((_as_bytes(expected[whole:]) != _as_bytes(got[whole:])).sum())
        wrong = int(torch.minimum(exact_wrong, coded_wrong).sum()) + rest_wrong
        return Verification(
            bytes_checked=expected.numel() * expected.element_size(),
            wrong_bytes=wrong,
            lossy_bytes=int((coded_wrong < exact_wrong).sum()) * self._segment.segment_bytes,
            first_wrong=f"{self._segment.key}: {wrong} bytes differ" if wrong else "",
        )

    def _fewest_wrong(self, pages: torch.Tensor, got: torch.Tensor, fewest: torch.Tensor) -> torch.Tensor:
        """For each page, bytes that differ from the nearest codec's round trip; `fewest` where no codec is nearer."""
        for codec in self._codecs if len(pages) else ():
            try:
                coded = codec.roundtrip(pages)
            except CodecRefused:  # what it cannot keep is never kept by it
                continue
            fewest = torch.minimum(fewest, (coded != got).sum(dim=1))
        return fewest


def round_trips(
    segments: Iterable[Segment], codecs: Iterable[str], *, code_compressed: bool = False
) -> dict[SegmentKey, RoundTrip]:
    """For each segment that some lossy one of `codecs` touches: what else than the original may stand there."""
    lossy = [codec for codec in codecs if codec in LOSSY]
    found = {}
    for segment in segments:
        touching = [codec for codec in lossy if touches(codec, segment, code_compressed=code_compressed)]
        if touching:
            found[segment.key] = RoundTrip(segment, touching, code_compressed=code_compressed)
    return found


def compare_all(
    expected: Mapping[SegmentKey, torch.Tensor],
    got: Mapping[SegmentKey, torch.Tensor],
    lossy: Mapping[SegmentKey, RoundTrip],
) -> Iterator[Verification]:
    for key in expected.keys() | got.keys():
        yield _compare(key, expected.get(key), got.get(key), lossy.get(key))


def _compare(
    key: SegmentKey, expected: torch.Tensor | None, got: torch.Tensor | None, lossy: RoundTrip | None
) -> Verification:
    either = expected if expected is not None else got
    assert either is not None
    size = either.numel() * either.element_size()
    if expected is None or got is None:
        # A tensor of no rows that is missing is still wrong ("empty" is not "absent"): it counts one byte.
        what = "is absent" if got is None else "was not expected"
        return Verification(bytes_checked=size, wrong_bytes=max(1, size), first_wrong=f"{key} {what}")
    if expected.shape != got.shape or expected.dtype != got.dtype:
        what = f"{key} is {got.dtype}{list(got.shape)}, not {expected.dtype}{list(expected.shape)}"
        return Verification(bytes_checked=size, wrong_bytes=max(1, size), first_wrong=what)
    got = got.to(expected.device)
    expected_bytes, got_bytes = _as_bytes(expected), _as_bytes(got)
    if torch.equal(expected_bytes, got_bytes):
        return Verification(bytes_checked=size, wrong_bytes=0)
    if lossy is not None:
        return lossy.compare(expected, got)
    wrong = int((expected_bytes != got_bytes).sum())
    return Verification(bytes_checked=size, wrong_bytes=wrong, first_wrong=f"{key}: {wrong} bytes differ")
