"""What the agent needs of an engine. `engine.CacheEngine` is one; so is any test's honest stand-in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from engine import CommandOutcome, CommandRequest


class Spec(Protocol):
    """Of the model description, what the agent introduces the engine with."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def fingerprint(self) -> str:
        """Hex; part of every prefix id."""

    @property
    def page_tokens(self) -> int:
        """Tokens a page."""


class SteeredEngine(Protocol):
    """The administrative face of an engine. Every method is safe to call from the agent's threads."""

    @property
    def id(self) -> str:
        """The engine's id, the same over restarts."""

    @property
    def boot_id(self) -> str:
        """Changes with every start."""

    @property
    def spec(self) -> Spec:
        """The model description."""

    def observed(self) -> dict[str, Any]:
        """What it runs with now (wire.md, section 3)."""

    def reconfigure(
        self, changes: Mapping[str, Any], *, revision: int, traceparent: str | None = None
    ) -> dict[str, Any]:
        """Applies a desired document; returns `observed`. Raises EngineError when it refuses."""

    def stats(self) -> dict[str, Any]:
        """Its own counters (wire.md, section 3)."""

    def curve(self) -> dict[str, Any]:
        """Hit rate against capacity as sampled so far (wire.md, section 3); empty when it is not sampled."""

    def snapshot(self) -> list[dict[str, Any]]:
        """Every prefix it holds, at its newest version."""

    def execute(self, request: CommandRequest, progress: Callable[[dict[str, Any]], None]) -> CommandOutcome:
        """Runs one command to its end. Raises EngineError when it cannot."""

    def tick(self) -> None:
        """Housekeeping, about once a second."""
