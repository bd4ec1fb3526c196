"""The state machine of a prefix, as data. `docs/reference/states.md` is drawn from this table."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from engine.errors import IllegalTransition


class State(StrEnum):
    NEW = "NEW"  # before the first version; never stored
    FULL = "FULL"  # every object on the GPU, native precision
    COMPRESSED = "COMPRESSED"  # every object on the GPU, span objects in coded form
    PARTIAL_OFFLOAD = "PARTIAL_OFFLOAD"  # some object lives only below the GPU
    FULL_RESTORE = "FULL_RESTORE"  # a restore is in flight
    APPROXIMATE = "APPROXIMATE"  # computed on an approximate basis; on the GPU, served only to who asked for it
    QUARANTINED = "QUARANTINED"  # an object was found damaged; not served until committed again
    EVICTED = "EVICTED"  # gone; the last version of a life


class Cause(StrEnum):
    COMMIT = "commit"
    SPLIT = "split"
    ADOPT = "adopt"
    POLICY = "policy"
    COMMAND = "command"
    PRESSURE = "pressure"
    CAP = "cap"
    RESTORE = "restore"
    CORRUPTION = "corruption"
    SCRUB = "scrub"
    UNPIN = "unpin"  # an operator's pin ran out; nothing else changed


_S, _C = State, Cause
_STEERED = frozenset({_C.COMMAND, _C.POLICY})
# A commit evicts what another run computed: a path is of one run.
_LEAVING = _STEERED | {_C.PRESSURE, _C.CAP, _C.COMMIT}
_DAMAGE = frozenset({_C.CORRUPTION})
_OFFLOAD = _STEERED | {_C.PRESSURE, _C.CAP}
_RENEWED = frozenset({_C.COMMIT})
_RESTORE = frozenset({_C.RESTORE, _C.COMMAND, _C.POLICY})
_RAN_OUT = frozenset({_C.UNPIN})

TRANSITIONS: Final[dict[tuple[State, State], frozenset[Cause]]] = {
    (_S.NEW, _S.FULL): frozenset({_C.COMMIT, _C.SPLIT}),
    (_S.NEW, _S.COMPRESSED): frozenset({_C.SPLIT}),
    (_S.NEW, _S.PARTIAL_OFFLOAD): frozenset({_C.SPLIT, _C.ADOPT}),
    (_S.NEW, _S.APPROXIMATE): frozenset({_C.COMMIT, _C.SPLIT}),
    (_S.NEW, _S.QUARANTINED): frozenset({_C.SPLIT}),
    (_S.FULL, _S.FULL): _RAN_OUT,
    (_S.FULL, _S.COMPRESSED): _STEERED,
    (_S.FULL, _S.PARTIAL_OFFLOAD): _OFFLOAD | _DAMAGE,  # damaged on the GPU, whole below
    (_S.FULL, _S.QUARANTINED): _DAMAGE,
    (_S.FULL, _S.EVICTED): _LEAVING,
    (_S.COMPRESSED, _S.COMPRESSED): _RAN_OUT,
    (_S.COMPRESSED, _S.PARTIAL_OFFLOAD): _OFFLOAD | _DAMAGE,
    (_S.COMPRESSED, _S.QUARANTINED): _DAMAGE,
    (_S.COMPRESSED, _S.EVICTED): _LEAVING,
    (_S.PARTIAL_OFFLOAD, _S.FULL_RESTORE): _RESTORE,
    # The model computed the tokens again and fresh bytes replace; or the one object below, a checkpoint, was dropped.
    (_S.PARTIAL_OFFLOAD, _S.FULL): _RENEWED | {_C.PRESSURE, _C.CAP},
    (_S.PARTIAL_OFFLOAD, _S.COMPRESSED): _RENEWED | {_C.PRESSURE, _C.CAP},
    (_S.PARTIAL_OFFLOAD, _S.PARTIAL_OFFLOAD): _OFFLOAD | _RAN_OUT,  # more left the GPU, or host bytes went to disk
    # A scrub reads the disk: it loses only what is nowhere else.
    (_S.PARTIAL_OFFLOAD, _S.QUARANTINED): _DAMAGE | {_C.SCRUB},
    (_S.PARTIAL_OFFLOAD, _S.EVICTED): _LEAVING,
    (_S.FULL_RESTORE, _S.FULL): _RESTORE,
    (_S.FULL_RESTORE, _S.COMPRESSED): _RESTORE,
    (_S.FULL_RESTORE, _S.PARTIAL_OFFLOAD): _RESTORE,  # late, failed by the device, or only part of it was wanted
    (_S.FULL_RESTORE, _S.QUARANTINED): _DAMAGE,
    (_S.APPROXIMATE, _S.APPROXIMATE): _RAN_OUT,
    (_S.APPROXIMATE, _S.QUARANTINED): _DAMAGE,
    (_S.APPROXIMATE, _S.EVICTED): _LEAVING,  # never coded, never below the GPU
    (_S.QUARANTINED, _S.QUARANTINED): _RAN_OUT,
    (_S.QUARANTINED, _S.FULL): _RENEWED,
    (_S.QUARANTINED, _S.COMPRESSED): _RENEWED,
    (_S.QUARANTINED, _S.PARTIAL_OFFLOAD): _RENEWED,
    (_S.QUARANTINED, _S.APPROXIMATE): _RENEWED,
    (_S.QUARANTINED, _S.EVICTED): _LEAVING,
}

TERMINAL: Final = frozenset({State.EVICTED})
SERVED: Final = frozenset({State.FULL, State.COMPRESSED, State.APPROXIMATE})
"""States a lease may be given in; every other state must pass through a restore or a commit first."""


def check_transition(prefix_id: str, before: State, after: State, cause: Cause) -> None:
    """Raises `IllegalTransition` unless the table has the edge and lets this cause take it."""
    causes = TRANSITIONS.get((before, after))
    if causes is None:
        allowed = sorted(str(b) for a, b in TRANSITIONS if a is before)
        raise IllegalTransition(
            f"prefix {prefix_id}: {before} -> {after} is no edge; from {before}: {', '.join(allowed) or 'none'}"
        )
    if cause not in causes:
        names = ", ".join(sorted(causes))
        raise IllegalTransition(f"prefix {prefix_id}: {before} -> {after} is not caused by {cause}; it is by: {names}")
