"""What is interleaved: every operation on an engine, and the points at which each may be parked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from interleaving import Point
from world import World

# -- points -----------------------------------------------------------------------------------------------------------

_COMMIT = (
    Point("looked", lambda w: w.engine._publisher._lineage, "covered", after=True, locked=True),
    Point("compared", lambda w: w.engine._publisher._lineage, "first_other_page", after=True),
    Point("reserved", lambda w: w.engine._publisher._drafts, "reserve", after=True),
    Point("filled, not published", lambda w: w.engine._publisher._drafts, "write", after=True),
    Point("publishing", lambda w: w.engine._publisher, "_refresh", locked=True),
    Point("published, still pinned", lambda w: w.engine._publisher._drafts, "give_back"),
)
_WAY = Point("way made", lambda w: w.engine._publisher._lineage, "make_way", after=True, locked=True)
_SPLIT = Point("about to split", lambda w: w.engine._ledger, "split", locked=True)
_GRANT = (
    Point("matched", lambda w: w.engine._ledger.index, "match", after=True, locked=True),
    Point("planned", lambda w: w.engine._server._planner, "outlook", after=True, locked=True),
    Point("validated", lambda w: w.engine._server._planner, "validate", after=True, locked=True),
    Point("bound, not pinned", lambda w: w.engine._ledger.leases, "grant", locked=True),
)
_LOAD = (
    Point("checked, not copied", lambda w: w.engine._server._source._loader, "load", reading=True),
    Point(
        "in the middle of the copy",
        lambda w: w.engine._server._source._loader,
        "_read_proven",
        after=True,
        reading=True,
    ),
    Point("copied, not compared", lambda w: w.engine._server._source._loader, "load", after=True, reading=True),
)
_TABLE = (
    Point("offsets taken", lambda w: w.engine._server._source, "_page_offsets", after=True, locked=True),
    Point("offsets taken, not filled", lambda w: w.table, "fill", reading=True),
    Point("filled, not compared", lambda w: w.table, "fill", after=True, reading=True),
)
_RESTORE = (
    Point("marked", lambda w: w.engine._server._recovery, "prepare", after=True, locked=True),
    Point("marked, not queued", lambda w: w.engine._server, "_await"),
    Point("slots taken", lambda w: w.engine._publisher._room, "take_gpu", after=True),
    Point("filled, not mapped", lambda w: w.engine._server._recovery, "_fetch_object", after=True),
    Point("mapped, not granted", lambda w: w.engine._server._recovery, "run", after=True),
)
_FROM_HOST = Point("bytes read", lambda w: w.engine._tiers, "restore_host", after=True)
_FROM_DISK = Point("bytes read", lambda w: w.engine._tiers, "restore_disk", after=True)
_RECODE = (
    Point("marked", lambda w: w.engine._commands._reach.reformer, "_recoded"),
    Point("coded, not swapped", lambda w: w.engine._commands._reach.reformer, "_recoded", after=True),
)
_OFFLOAD = (
    Point("marked", lambda w: w.engine._publisher._room, "_copied_down"),
    Point("copied down, still marked", lambda w: w.engine._publisher._room, "_copy_down", after=True),
    Point("copied down, not freed", lambda w: w.engine._publisher._room, "_copied_down", after=True),
)


@dataclass(frozen=True)
class Operation:
    """`work` gets the world, and whether the other operation is in the middle of reading a lease."""

    name: str
    work: Callable[[World, bool], Any]
    points: tuple[Point, ...] = ()
    scene: str = "host"
    disk: bool = False
    first: Callable[[World, bool], Any] | None = None  # what it does when it is the first, if that is less


def _operations() -> dict[str, Operation]:
    found = (
        Operation("acquire and load", lambda w, _: w.read("trunk"), (*_GRANT, *_LOAD)),
        Operation("acquire and load coded pages", lambda w, _: w.read("trunk"), _LOAD, scene="coded"),
        Operation("acquire, load later", lambda w, _: w.hold()),
        Operation("page table", lambda w, _: w.page_table(), _TABLE),
        Operation("restore from host", lambda w, _: w.read("long"), (*_RESTORE, _FROM_HOST)),
        Operation("restore from disk", lambda w, _: w.read("long"), (*_RESTORE, _FROM_DISK), scene="disk", disk=True),
        Operation("warm", lambda w, _: w.command("warm", prefix_ids=[w.cold_id]), (_FROM_HOST, _RESTORE[3])),
        Operation("commit of the same", lambda w, _: w.commit("long") and None, _COMMIT),
        Operation("commit of another run", lambda w, _: w.commit("long", 1) and None, (*_COMMIT, _WAY)),
        Operation("split of the trunk", lambda w, _: w.commit("in_trunk") and None, (*_COMMIT, _SPLIT)),
        Operation("split of the cold end", lambda w, _: w.commit("in_cold") and None, (*_COMMIT, _SPLIT)),
        Operation("another run of the branch", lambda w, _: w.commit("begun", 2) and None, (_COMMIT[3],)),
        Operation(
            "evict",
            lambda w, _: w.command("evict", prefix_ids=w.both(), descendants=True),
            (
                Point("unpublished, not freed", lambda w: w.engine._ledger.checkpoints, "drop", locked=True),
                Point("freed, files not deleted", lambda w: w.engine._tiers.sweeper, "sweep"),
            ),
        ),
        Operation("offload to host", lambda w, _: w.command("offload", prefix_ids=[w.trunk_id]), _OFFLOAD),
        Operation(
            "offload to disk",
            lambda w, _: w.command("offload", prefix_ids=w.both(), tier="disk"),
            (*_OFFLOAD, Point("file written, not counted", lambda w: w.engine._tiers, "write_file", after=True)),
            disk=True,
        ),
        Operation("compress losslessly", lambda w, _: w.compress("lossless"), _RECODE),
        Operation("compress to int8", lambda w, _: w.compress("int8"), _RECODE),
        Operation(
            "compact",
            lambda w, _: w.command("compact"),
            (
                Point("holes taken", lambda w: w.engine._tiers, "move_pages"),
                Point("copied, not swapped", lambda w: w.engine._tiers, "move_pages", after=True),
            ),
        ),
        Operation("end leases", lambda w, _: w.end_leases()),
        Operation(
            "tick past the leases' time",
            lambda w, reading: w.let_leases_run_out(reading),
            (
                Point("about to expire", lambda w: w.engine._ledger.leases, "expire", locked=True),
                Point("expired, not swept", lambda w: w.engine._tiers.sweeper, "sweep"),
            ),
            scene="leased",
            first=lambda w, reading: w.let_time_pass(reading),
        ),
        Operation(
            "smaller GPU cap",
            lambda w, _: w.shrink(cap_gpu_bytes=10_000),
            (Point("applied, nothing left yet", lambda w: w.engine._publisher, "keep_caps"), *_OFFLOAD),
        ),
        Operation(
            "smaller prefix cap",
            lambda w, _: w.shrink(cap_prefixes=1),
            (Point("about to evict", lambda w: w.engine._ledger, "remove", locked=True),),
        ),
        Operation("graph window", lambda w, _: w.window(), (Point("replaying", lambda w: w, "inside"),)),
        Operation("check", lambda w, _: w.balanced()),
        Operation("graph window left open", lambda w, _: w.open_window()),
        Operation(
            "close",
            lambda w, _: w.close(),
            (
                Point("begun", lambda w: w.engine._queues, "close"),
                Point("queues ended", lambda w: w.engine._adopter, "persist"),
                Point("writing", lambda w: w.engine._publisher._room.disk, "write"),
                Point("one written", lambda w: w.engine._publisher._room.disk, "write", after=True),
                Point("written", lambda w: w.engine._tiers, "close"),
            ),
            disk=True,
        ),
    )  # fmt: skip
    return {operation.name: operation for operation in found}


OPERATIONS = _operations()
