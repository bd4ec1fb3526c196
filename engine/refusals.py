"""What is refused at the door: a reason that is none, a state that does not fit, a basis that must not be kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.consistency.lease import Lease
from engine.errors import ConfigError, StateMismatch

if TYPE_CHECKING:
    from engine.memory.state import NewState

REFUSE = ("weights_changed", "load_failed")
"""Why a caller may refuse all reuse (`acquire`). What it computes with other weights is not kept either."""


def check_refuse(refuse: str) -> None:
    """Raises `ConfigError` for a reason that is not known."""
    if refuse not in REFUSE:
        raise ConfigError(f"refuse is {refuse!r}; known: {', '.join(REFUSE)}")


def check_state(state: NewState | None, n_tokens: int, *, materialise: bool) -> None:
    """Raises `StateMismatch` for a state that is not of so many tokens, or not what this engine takes."""
    if materialise != (state is not None):
        need = "tensors (a NewState)" if materialise else "no tensors: it was built with materialise=False"
        raise StateMismatch(f"this engine takes commits with {need}")
    if state is None:
        return
    if not hasattr(state, "end_tokens"):
        raise StateMismatch(
            f"the state is a {type(state).__name__}; pass an engine.NewState (docs/howto/commit-state.md)"
        )
    if state.end_tokens != n_tokens:
        raise StateMismatch(f"the state ends at {state.end_tokens} tokens, {n_tokens} were passed")


def basis_refuses(lease: Lease | None, state: NewState | None) -> str:
    """Why what was computed from this lease must not be kept; empty when it may."""
    if lease is None:
        return ""
    if lease.explanation.reason == "weights_changed":
        return "weights_changed"
    if lease.approximate:
        return "approximate_needs_whole_state" if state is not None and state.start_tokens else ""
    return "lossy_basis" if lease.lossy else ""
