"""What a lossy codec costs in the model's own terms: measured on the coded pages before anybody can read them.

A judge runs the model on from one boundary twice, over native pages and over coded ones; what differs is recorded with
the object and held against the bounds. Errors add up along a path, so every path through a prefix is held to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from engine.config import EngineConfig
from engine.consistency.lease import pin_path, unpin_path
from engine.consistency.prefix import Checkpoint
from engine.errors import EngineError
from engine.memory.codec import LOSSY, CodecMeta
from engine.memory.holding import Bound, SlotCopy
from engine.memory.loader import Loader
from engine.model.objects import ObjectKind
from engine.schedule.ledger import Ledger, PrefixNode
from engine.telemetry.ring import SpanContext, new_span

if TYPE_CHECKING:
    from engine.memory.state import LoadedState

REASONS = {
    "quality_bound": "measured worse than max_logit_error or max_kl, summed over some path through the prefix",
    "quality_unmeasured": "a bound is set and the quality is not known: no judge, no boundary to resume at, a part of "
    "the path off the GPU, a coded prefix on the path that was never measured, or a judge that failed",
}
"""Why a lossy codec is refused; shown with a compress command's refusals."""


class BadQuality(EngineError):
    """A judge's figures cannot be what it measured (negative, infinite or no number). Nothing is recorded; mend it."""

    code = "bad_quality"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How far a model over coded pages is from the same model over native ones, over `positions` continued tokens.

    Raises `BadQuality` for figures that cannot be: they are compared with bounds, and no NaN is above one.
    """

    logit_error: float  # largest absolute error of any logit
    kl: float  # mean KL divergence native || coded of the next-token distributions, nats
    positions: int

    def __post_init__(self) -> None:
        logit_error, kl = float(self.logit_error), float(self.kl)  # a tensor's or numpy's number would not reach a file
        if not (isfinite(logit_error) and isfinite(kl) and logit_error >= 0 and self.positions > 0):
            raise BadQuality(f"logit error {logit_error}, KL {kl} nats over {self.positions} positions")
        object.__setattr__(self, "logit_error", logit_error)
        object.__setattr__(self, "kl", max(0.0, kl))  # rounding takes a divergence of nothing below 0


class QualityJudge(Protocol):
    """Runs the model. Called on a worker's thread, one call at a time, never under the engine lock."""

    def judge(self, native: LoadedState, coded: LoadedState, tokens: npt.NDArray[np.int32]) -> Quality:
        """Compare what the model says after `tokens` (all of them, up to the states' boundary) over either state.

        The states differ in the pages of one prefix and share nothing; the judge may keep or change them.
        """
        ...


@dataclass(slots=True)
class QualityTally:
    """Plain figures by codec, written under the engine lock, read by anyone."""

    judged: dict[tuple[str, str], int] = field(default_factory=dict)  # codec, outcome
    last: dict[str, Quality] = field(default_factory=dict)
    largest_logit_error: dict[str, float] = field(default_factory=dict)
    largest_kl: dict[str, float] = field(default_factory=dict)

    def count(self, codec: str, outcome: str, quality: Quality | None) -> None:
        self.judged[codec, outcome] = self.judged.get((codec, outcome), 0) + 1
        if quality is not None:
            self.last[codec] = quality
            self.largest_logit_error[codec] = max(quality.logit_error, self.largest_logit_error.get(codec, 0.0))
            self.largest_kl[codec] = max(quality.kl, self.largest_kl.get(codec, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of one measurement. `failure` is a sentence when a judge (or the loading for it) raised."""

    start_ns: int
    boundary: int = 0
    quality: Quality | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """One boundary's objects twice: `native` as the path is now, `coded` with one prefix's pages in their new form."""

    boundary: int
    tokens: npt.NDArray[np.int32]
    native: dict[ObjectKind, list[Bound]]
    coded: dict[ObjectKind, list[Bound]]
    blocks: dict[ObjectKind, Bound]

    def bounds(self) -> Iterator[Bound]:
        for spans in (self.native, self.coded):
            for bounds in spans.values():
                yield from bounds
        yield from self.blocks.values()


class QualityGate:
    """Asks the judge, keeps what it says, and refuses what is worse than the bounds."""

    def __init__(self, ledger: Ledger, config: EngineConfig) -> None:
        self.judge: QualityJudge | None = None
        self.tally = QualityTally()
        self._ledger = ledger
        self._tiers = ledger.tiers
        self._loader = Loader(ledger.tiers)
        self._bounds = (config.max_logit_error, config.max_kl)

    @property
    def bounded(self) -> bool:
        return any(bound is not None for bound in self._bounds)

    def refuse_unjudged(self, codec: str) -> str:
        """Why a codec is refused before any byte is coded. Under the lock."""
        if codec not in LOSSY or not self.bounded or self.judge is not None:
            return ""
        self.tally.count(codec, "unmeasured", None)
        return "quality_unmeasured"

    def measure(self, node: PrefixNode, copy: SlotCopy) -> Trial | None:
        """Judge the coded pages of a busy prefix, which nobody can read yet; None when nobody is to judge them.

        Takes the lock to look; loads and judges without it, the path pinned as a lease would pin it.
        """
        judge, ledger = self.judge, self._ledger
        if judge is None or copy.meta.codec not in LOSSY:
            return None
        with ledger.lock:
            trial = Trial(start_ns=ledger.clock.monotonic_ns())
            view = self._look(node, copy)
            if view is None:
                return trial
            pin_path(node)
        trial = replace(trial, boundary=view.boundary)
        try:
            states = [self._load(view, spans) for spans in (view.native, view.coded)]
            with ledger.lock:
                for bound in view.bounds():
                    self._tiers.gpu.check_current(bound.pointer)
            return replace(trial, quality=judge.judge(states[0], states[1], view.tokens))
        except Exception as error:  # a model's code: whatever it raises is counted and said, and costs nothing else
            # Not its text, which may quote the prompt.
            return replace(trial, failure=f"{copy.meta.codec} was not measured: {type(error).__name__} was raised")
        finally:
            with ledger.lock:
                unpin_path(node)

    def refuse_measured(self, node: PrefixNode, copy: SlotCopy, trial: Trial | None, parent: SpanContext) -> str:
        """Record the trial with the coded pages, and say why they must not be published. Under the lock."""
        if copy.meta.codec not in LOSSY:
            return ""
        quality = trial.quality if trial is not None else None
        if quality is not None:
            copy.meta = replace(copy.meta, logit_error=quality.logit_error, kl=quality.kl)
        refused = self._refusal(node, copy.meta) if self.bounded else ""
        if trial is not None:
            self._record(node, copy.meta.codec, trial, refused, parent)
        return refused

    # -- measuring --------------------------------------------------------------------------------------------------

    def _look(self, node: PrefixNode, copy: SlotCopy) -> _View | None:
        """A boundary of this prefix that the model can resume at, with the path as it is now. Under the lock."""
        path = _path(node)
        kinds = node.record.spans.keys()
        on_gpu = all(n.record.spans.keys() == kinds and n.record.resident for n in path)
        checkpoint = self._deepest_checkpoint(node)
        if not on_gpu or (checkpoint is None and not self._resumes_bare(node)):
            return None
        blocks = checkpoint.blocks if checkpoint is not None else {}
        tail = checkpoint.tail_tokens if checkpoint is not None else b""
        native = {kind: [self._tiers.bind(n.record.spans[kind], 0, n.record.n_pages) for n in path] for kind in kinds}
        own = Bound(self._tiers.gpu.point(copy.page_class, copy.slots), copy.meta, copy.sums)
        kv = ObjectKind.COMPRESSED_KV
        return _View(
            boundary=checkpoint.boundary if checkpoint is not None else node.record.tokens,
            tokens=np.frombuffer(self._ledger.index.tokens_of(node) + tail, dtype=np.int32).copy(),
            native=native,
            coded={**native, kv: [*native[kv][:-1], own]},
            blocks={kind: self._tiers.bind(block, 0, block.n_pages) for kind, block in blocks.items() if block.n_pages},
        )

    def _deepest_checkpoint(self, node: PrefixNode) -> Checkpoint | None:
        wanted = set(self._ledger.layouts.boundary_kinds)
        whole = [c for c in node.record.checkpoints.values() if c.on_gpu and wanted <= set(c.blocks)]
        return max(whole, key=lambda c: c.boundary, default=None)

    def _resumes_bare(self, node: PrefixNode) -> bool:
        """The model keeps no boundary objects at the prefix's end: history is all it needs there."""
        layouts = self._ledger.layouts
        return layouts.window.empty and layouts.recurrent.empty and layouts.tail_is_empty(node.record.tokens)

    def _load(self, view: _View, spans: dict[ObjectKind, list[Bound]]) -> LoadedState:
        return self._loader.load(view.boundary, 0, self._ledger.spec.page_tokens, spans, view.blocks)

    # -- judging ----------------------------------------------------------------------------------------------------

    def _refusal(self, node: PrefixNode, meta: CodecMeta) -> str:
        """Hold every path through the prefix to the bounds: what its ancestors and descendants have recorded, and
        this. Without this prefix's own figures, or another's, no sum is known."""
        own = (node.record.spans[ObjectKind.COMPRESSED_KV].content_version, meta)
        above = frozenset[_Loss]().union(*(_losses(n) for n in _path(node)[:-1]))
        for losses in _paths_below(node, above | {own}):
            for bound, of in zip(self._bounds, ("logit_error", "kl"), strict=True):
                figures = [getattr(known, of) for _, known in losses]
                if bound is None:
                    continue
                if None in figures:
                    return "quality_unmeasured"
                if sum(figures) > bound:
                    return "quality_bound"
        return ""

    def _record(self, node: PrefixNode, codec: str, trial: Trial, refused: str, parent: SpanContext) -> None:
        quality = trial.quality
        outcome = "measured" if quality is not None else ("failed" if trial.failure else "unmeasured")
        if quality is not None and refused:
            outcome = "refused"
        self.tally.count(codec, outcome, quality)
        if not self._ledger.ring.enabled:
            return
        attributes: tuple[object, ...] = (
            "kvcache.prefix.id", node.record.prefix_id, "kvcache.codec", codec, "kvcache.outcome", outcome,
            "kvcache.reason", refused or "ok", "kvcache.boundary", trial.boundary,
        )  # fmt: skip
        if quality is not None:
            attributes += (
                "kvcache.codec.logit_error", quality.logit_error, "kvcache.codec.kl", quality.kl,
                "kvcache.positions", quality.positions,
            )  # fmt: skip
        now_ns = self._ledger.clock.monotonic_ns()
        self._ledger.ring.request(
            "kvcache.judge", new_span(parent), parent, trial.start_ns, now_ns, attributes, trial.failure
        )


# One lossy form of some content. The halves of a split prefix carry one measurement of the whole: both give the same
# value here, so that it counts once on a path.
_Loss = tuple[int, CodecMeta]


def _losses(node: PrefixNode) -> frozenset[_Loss]:
    """Lossy forms of a prefix's history, in whichever tier: a restore brings back what lies below."""
    holding = node.record.spans.get(ObjectKind.COMPRESSED_KV)
    if holding is None:
        return frozenset()
    copies = [copy for copy in (holding.gpu, holding.host, holding.disk) if copy is not None]
    return frozenset((holding.content_version, c.meta) for c in copies if c.meta.error_bound > 0)


def _path(node: PrefixNode) -> list[PrefixNode]:
    """From the root's child to the node."""
    found: list[PrefixNode] = []
    walk: PrefixNode | None = node
    while walk is not None and walk.parent is not None:
        found.append(walk)
        walk = walk.parent
    return found[::-1]


def _paths_below(node: PrefixNode, losses: frozenset[_Loss]) -> Iterator[frozenset[_Loss]]:
    """What is lost on the path to `node`, given as `losses`, and on each to a prefix below it that adds to that."""
    yield losses
    stack = [(child, losses) for child in node.children.values()]
    while stack:
        below, so_far = stack.pop()
        more = so_far | _losses(below)
        if len(more) > len(so_far):
            yield more
        stack.extend((child, more) for child in below.children.values())
