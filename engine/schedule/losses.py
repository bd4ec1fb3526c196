"""Why tokens of a prompt were not served: every token that is no hit has one cause.

Known tokens (up to the lcp) are lost for the reason the plan gave. Of unknown ones the memory of lost runs tells which
were held or offered before; what it does not know is new. Sum of causes + usable = prompt, for every request.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from engine.consistency.lost import LostMemory
from engine.consistency.state import Cause
from engine.index.radix import TOKEN_BYTES, Match, RadixIndex

if TYPE_CHECKING:  # the control plane reads the table of causes, and must not load torch for it
    from engine.consistency.prefix import CauseOf, PrefixRecord


class Loss(StrEnum):
    """Causes, in the order a funnel shows them: what nobody could serve first."""

    NEW_CONTENT = "new_content"
    PART_PAGE = "part_page"
    CALLER_REFUSED = "caller_refused"
    EVICTED_CAP = "evicted_cap"
    EVICTED_NAMESPACE = "evicted_namespace"
    EVICTED_PRESSURE = "evicted_pressure"
    EVICTED_COMMAND = "evicted_command"
    EVICTED_POLICY = "evicted_policy"
    OTHER_RUN = "other_run"
    ADMISSION_REFUSED = "admission_refused"
    NO_ROOM = "no_room"
    LOSSY_REFUSED = "lossy_refused"
    CHECKPOINT_MISSING = "checkpoint_missing"
    REPLAY_REFUSED = "replay_refused"
    INDEXER_BEHIND = "indexer_behind"
    DAMAGED = "damaged"
    RESTORE_SLOW = "restore_slow"
    RESTORE_FAILED = "restore_failed"
    MODE = "mode"


LOSSES: dict[Loss, str] = {
    Loss.NEW_CONTENT: "never seen in this namespace, or lost longer ago than the memory of losses reaches",
    Loss.PART_PAGE: "the last tokens fill no page, and no checkpoint of exactly this prompt is held",
    Loss.CALLER_REFUSED: "the caller said that reuse would be wrong, or could not load what it was granted",
    Loss.EVICTED_CAP: "evicted because the caps in total were reached",
    Loss.EVICTED_NAMESPACE: "evicted because its namespace was at its own maximum",
    Loss.EVICTED_PRESSURE: "evicted because a tier was full",
    Loss.EVICTED_COMMAND: "evicted by an operator's command",
    Loss.EVICTED_POLICY: "evicted by a policy, for its age or its idleness",
    Loss.OTHER_RUN: "held from another run of the same tokens, so its bytes could not be continued",
    Loss.ADMISSION_REFUSED: "offered before, and not kept: the admission rule asks for more",
    Loss.NO_ROOM: "offered before, and not kept: it fits no cap, or what could leave was leased or pinned",
    Loss.LOSSY_REFUSED: "offered before, and not kept: it was computed on a lossy or approximate basis",
    Loss.CHECKPOINT_MISSING: "known, but no window, tail or recurrent state was kept at a place deep enough",
    Loss.REPLAY_REFUSED: "known, but the replay that would rebuild its window saves nothing or would not be exact",
    Loss.INDEXER_BEHIND: "known, but indexer entries are missing or older than the KV",
    Loss.DAMAGED: "known, but an object of it is damaged or missing",
    Loss.RESTORE_SLOW: "below the GPU, and the restore would not end, or did not end, in time to pay",
    Loss.RESTORE_FAILED: "below the GPU, and the tier, its queue or the GPU's room failed it",
    Loss.MODE: "the mode forbids its use, or forbade to keep it",
}
"""What each cause means; `controlplane/insight/whymiss.py` has what to do about it."""

LOSS_OF_GAP: dict[str, Loss] = {
    "no_checkpoint": Loss.CHECKPOINT_MISSING,
    "window_missing": Loss.CHECKPOINT_MISSING,
    "tail_missing": Loss.CHECKPOINT_MISSING,
    "recurrent_missing": Loss.CHECKPOINT_MISSING,
    "replay_crosses_cuts": Loss.REPLAY_REFUSED,
    "replay_costs_more": Loss.REPLAY_REFUSED,
    "indexer_missing": Loss.INDEXER_BEHIND,
    "indexer_behind": Loss.INDEXER_BEHIND,
    "pages_missing": Loss.DAMAGED,
    "quarantined": Loss.DAMAGED,
    "codec_unknown": Loss.DAMAGED,
    "checksum_missing": Loss.DAMAGED,
    "checksum_mismatch": Loss.DAMAGED,
    "restore_slower_than_prefill": Loss.RESTORE_SLOW,
    "restore_slower_than_deadline": Loss.RESTORE_SLOW,
    "restore_late": Loss.RESTORE_SLOW,
    "mode_no_disk": Loss.MODE,
    "mode_resident_only": Loss.MODE,
    "mode_full_only": Loss.MODE,
    "mode_bypass": Loss.MODE,
    "mode_drain": Loss.MODE,
    "weights_changed": Loss.CALLER_REFUSED,
    "load_failed": Loss.CALLER_REFUSED,
}
"""Reasons of a gap (plan.py, validation.py). What is not named is a restore that failed: a device has its own codes."""

LOSS_OF_REFUSAL: dict[str, Loss] = {
    "mode_drain": Loss.MODE,
    "second_touch": Loss.ADMISSION_REFUSED,
    "past_first_pages": Loss.ADMISSION_REFUSED,
    "other_lineage": Loss.OTHER_RUN,
    "gap_before_start": Loss.OTHER_RUN,
    "lossy_basis": Loss.LOSSY_REFUSED,
    "approximate_needs_whole_state": Loss.LOSSY_REFUSED,
    "over_namespace_cap": Loss.NO_ROOM,
    "over_prefix_cap": Loss.NO_ROOM,
    "over_gpu_cap": Loss.NO_ROOM,
    "cap_held_by_leases_and_pins": Loss.NO_ROOM,
    "out_of_memory": Loss.NO_ROOM,
    "weights_changed": Loss.CALLER_REFUSED,
    "load_failed": Loss.CALLER_REFUSED,
}
"""Reasons of a refused commit (publish.py) after which its pages may be asked for again."""

_LOSS_OF_LEAVING = {
    Cause.CAP: Loss.EVICTED_CAP,
    Cause.PRESSURE: Loss.EVICTED_PRESSURE,
    Cause.COMMAND: Loss.EVICTED_COMMAND,
    Cause.POLICY: Loss.EVICTED_POLICY,
    Cause.COMMIT: Loss.OTHER_RUN,
}


def loss_of_leaving(cause: CauseOf) -> Loss:
    """Why a prefix left, as the cause of what is missed later."""
    if cause.cause is Cause.CAP and cause.reason == "namespace":
        return Loss.EVICTED_NAMESPACE
    return _LOSS_OF_LEAVING.get(cause.cause, Loss.EVICTED_PRESSURE)


class Lost:
    """Tokens by cause, and the first evicted prefix that would have served more."""

    __slots__ = ("prefix_id", "tokens")

    def __init__(self) -> None:
        self.tokens: dict[str, int] = {}
        self.prefix_id = ""

    def add(self, cause: str, tokens: int) -> None:
        if tokens > 0:
            self.tokens[cause] = self.tokens.get(cause, 0) + tokens


class Losses:
    """Attributes what one engine's requests lost. Guarded by the engine lock."""

    def __init__(self, memory: LostMemory, index: RadixIndex[PrefixRecord]) -> None:
        self._memory = memory
        self._index = index

    def attribute(
        self, space: str, tokens: bytes, match: Match[PrefixRecord], lcp_tokens: int, usable_tokens: int, gap: str
    ) -> Lost:
        """Every token past `usable_tokens`, by cause. `gap`: why known ones were not usable; `match` is in `space`."""
        lost = Lost()
        lost.add(LOSS_OF_GAP.get(gap, Loss.RESTORE_FAILED), lcp_tokens - usable_tokens)
        left = len(tokens) // TOKEN_BYTES - lcp_tokens
        if left <= 0:
            return lost
        step, page = self._index.page_bytes, self._index.page_bytes // TOKEN_BYTES
        last: str = Loss.NEW_CONTENT
        if match.pages * step + step > len(tokens):
            last = Loss.PART_PAGE
        elif self._memory.enabled:
            for cause, pages, prefix_id in self._runs(space, tokens, match):
                n = min(left, pages * page)
                lost.add(cause, n)
                left, last = left - n, cause
                lost.prefix_id = lost.prefix_id or prefix_id
        lost.add(last, left)
        return lost

    def _runs(self, space: str, tokens: bytes, match: Match[PrefixRecord]) -> list[tuple[str, int, str]]:
        """Lost runs that continue the match, and what follows them: (cause, pages, prefix id)."""
        memory, step, position = self._memory, self._index.page_bytes, match.pages
        end = len(tokens) // step
        found: list[tuple[str, int, str]] = []
        if not memory.may_have(tokens[position * step : (position + 1) * step]):
            return found
        path = self._index.path_id(space, match)
        while position < end:
            run = memory.find(path, tokens[position * step : end * step])
            if run is None or not run[1]:
                found.append((Loss.NEW_CONTENT, end - position, ""))
                break
            lost, pages = run
            found.append((lost.cause, pages, lost.prefix_id))
            position, path = position + pages, lost.prefix_id
            if position < end and (pages < lost.pages or not path):
                found.append((Loss.NEW_CONTENT, end - position, ""))
                break
        return found

    def left(self, space: str, parent_id: str, edge: bytes, cause: CauseOf, prefix_id: str) -> None:
        """A prefix was evicted altogether."""
        if self._memory.enabled:
            self._memory.remember(parent_id or space, edge, loss_of_leaving(cause), prefix_id)

    def refused(self, space: str, tokens: bytes, reason: str) -> None:
        """A commit was not kept, or only its beginning."""
        loss = LOSS_OF_REFUSAL.get(reason)
        if loss is None or not self._memory.enabled:
            return
        step = self._index.page_bytes
        match = self._index.match(space, tokens)
        if pages := tokens[match.pages * step : len(tokens) // step * step]:
            self._memory.remember(self._index.path_id(space, match), pages, loss)
