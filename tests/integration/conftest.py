"""Fixtures of many integration tests: engines that are hurt on purpose, and a Chromium on the dashboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Their asserts say what they compared, as a test's do.
pytest.register_assert_rewrite("alert_support", "fault_support", "quality_support", "victim", "ward")


@pytest.fixture
def faulty(make_rig: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Builds a rig with these faults, and gives the tokens of a prefix of five pages that lies on disk alone."""
    # Imported here: most tests in this folder never load torch.
    from engine_support import prompt
    from fault_support import DISK

    from engine.memory.faults import Fault, Faults

    def build(
        *plan: Fault, offload: str | None = "disk", sleep: Any = None, call_limit_s: float | None = None, **config: Any
    ) -> tuple[Any, Any, Faults]:
        faults = Faults(*plan, **({"sleep": sleep} if sleep else {}))
        rig = make_rig(data_dir=tmp_path, faults=faults, **{**DISK, **config})
        tokens = prompt(5 * rig.page + 9)
        if offload:
            done = rig.command("offload", prefix_ids=[rig.commit(tokens).prefix_id], tier=offload)
            assert done.outcome["offloaded"] == 1, done
        if call_limit_s is not None:
            rig.ledger.tiers.io["disk"]._limit_s = call_limit_s
        return rig, tokens, faults

    return build


@pytest.fixture
def make_ward() -> Iterator[Callable[..., Any]]:
    """Builds `Ward`s; whatever was done to them, their books balance at the end."""
    from ward import Ward

    from engine.integrations.synthetic import use_one_thread

    use_one_thread()
    made: list[Ward] = []

    def make(*args: Any, **config: Any) -> Ward:
        made.append(Ward(*args, **config))
        return made[-1]

    yield make
    for ward in made:
        assert ward.engine.check() == []
        ward.engine.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium, for as long as one file needs it: what it runs on would be in the way of others."""
    from browser_support import chromium

    with chromium() as opened:
        yield opened


@pytest.fixture
def visit(browser: Any, deck: Any) -> Iterator[Any]:
    """A tab on the file's own deck; it must be left without errors."""
    from dashboard_stage import Visit

    made = Visit(browser, deck)
    yield made
    made.leave()
