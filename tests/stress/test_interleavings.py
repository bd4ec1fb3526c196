"""Every operation parked at each of its points while every other one runs: no byte wrong, nothing left over."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from interleaving import Ended, Interleaving, Point
from operations import OPERATIONS, Operation
from world import World

from engine.errors import EngineClosed
from engine.integrations.synthetic import SyntheticModel

FIRST = [operation for operation in OPERATIONS.values() if operation.points]
TOLD: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Short stretches, and one model for all engines."""
    monkeypatch.setattr("engine.index.radix.STRETCH_NODES", 2)  # so that the trunk and what follows it are one
    monkeypatch.setattr("engine_support.SyntheticModel", cache(SyntheticModel))


def interleave(make_rig, folder, first: Operation, point: Point, second: Operation, **world) -> tuple[Ended, World]:
    """One combination from its scene to its judgement."""
    disk = first.disk or second.disk
    there = World(make_rig, first.scene, folder if disk else None, **world)

    def working(work, reading=False):
        def run():
            try:
                return work(there, reading)
            except EngineClosed:
                assert there.closed_too
                return None

        return run

    ended = Interleaving(there.engine, there).run(
        point, working(first.first or first.work), working(second.work, point.reading)
    )
    there.judge()
    there.engine.close()
    return ended, there


def every_second(make_rig, tmp_path, first, **world):
    for point in first.points:
        for second in OPERATIONS.values():
            folder = tmp_path / f"{TOLD.total()}"
            try:
                ended, _ = interleave(make_rig, folder, first, point, second, **world)
            except BaseException as error:
                error.add_note(f"{first.name} parked at {point.name!r}, then {second.name}")
                raise
            assert ended.reached, f"{first.name} never came to {point.name!r}"
            assert ended.locked == point.locked, (
                f"{first.name} at {point.name!r}: the engine lock is held: {ended.locked}"
            )
            if point.locked:  # nobody gets in between
                assert ended.waited, f"{second.name} did not wait at {point.name!r}"
            TOLD[ended.waited or "nothing"] += 1


@pytest.mark.parametrize("first", FIRST, ids=lambda operation: operation.name)
def test_whatever_runs_while_one_operation_stands_at_any_of_its_points(make_rig, tmp_path, first):
    before = TOLD.total()
    every_second(make_rig, tmp_path, first)
    assert TOLD.total() - before == len(first.points) * len(OPERATIONS)


def test_without_checksums_as_on_a_gpu_pointers_alone_keep_wrong_bytes_out(make_rig, tmp_path):
    for name in ("acquire and load", "page table"):
        every_second(make_rig, tmp_path, OPERATIONS[name], checksums=False)


def test_how_many_combinations_ran():
    expected = sum(len(first.points) for first in FIRST) * len(OPERATIONS)
    print(f"\n{TOLD.total()} interleavings; the second operation waited for: {dict(TOLD)}")  # noqa: T201
    if TOLD.total() >= expected:  # the whole file ran
        assert TOLD["the engine lock"]
        assert TOLD["a busy prefix"]
        assert TOLD["a queue's worker"]
        assert TOLD["the end of a graph window"]
        assert TOLD["nothing"] > TOLD.total() // 3
