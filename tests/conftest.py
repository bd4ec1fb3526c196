"""Fixtures of the engine's tests: real engines, closed at the end, with freed memory poisoned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def make_rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Builds `Rig`s; every one of them must balance at the end, unless it says it was left broken on purpose."""
    # Imported here: most tests in this tree never load torch.
    from engine_support import Rig, poison_freed_slots

    from engine.integrations.synthetic import use_one_thread

    use_one_thread()
    poison_freed_slots(monkeypatch)
    made: list[Rig] = []

    def make(*args: Any, **kwargs: Any) -> Rig:
        made.append(Rig(*args, **kwargs))
        return made[-1]

    yield make
    for rig in made:
        rig.engine.close()
