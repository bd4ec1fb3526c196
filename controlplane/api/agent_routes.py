"""What agents on engine hosts call (docs/reference/wire.md, section 3)."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from controlplane import audit
from controlplane.api.security import Spokesman, StoreOf
from controlplane.auth import bind_engine
from controlplane.clock import utc_now
from controlplane.ingest.curves import keep_curve
from controlplane.ingest.engines import register_engine
from controlplane.ingest.snapshot import apply_snapshot
from controlplane.insight import predictions
from controlplane.steering import commands, desired, hosts
from controlplane.steering.leader import newest_epoch
from controlplane.steering.news import News, Stamp
from controlplane.steering.wakeups import WAKEUPS
from controlplane.store.models import Command
from controlplane.store.session import Store

router = APIRouter(prefix="/v1/engines/{engine_id}", tags=["agent"])

LONGEST_WAIT_SECONDS = 30.0
LOOK_AGAIN_SECONDS = 1.0  # another process may have written what no hint in this one tells of
LONGEST_BLIND_SECONDS = 5.0  # what only time brings: a hold on the mode that ends, a command to be handed out again

EngineId = Annotated[str, Path(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]


class RegisterBody(BaseModel):
    """An engine's introduction."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "boot_id": "7c1e0d6a",
                    "model": "deepseek-v4-flash",
                    "fingerprint": "9f2c44d1",
                    "page_tokens": 128,
                    "group": "chat",
                    "labels": {"rack": "b7"},
                    "observed": {"mode": "normal", "cap_prefixes": None, "error": None},
                }
            ]
        }
    )
    boot_id: str = Field(min_length=1, max_length=64)
    model: str = Field(max_length=128)
    fingerprint: str = Field(max_length=64)
    page_tokens: int = Field(ge=1)
    group: str = Field(default="", max_length=64)
    labels: dict[str, str] = {}
    observed: dict[str, Any] = {}


class HeartbeatBody(BaseModel):
    """What the engine says of itself."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "boot_id": "7c1e0d6a",
                    "observed_revision": 12,
                    "observed": {"mode": "normal", "cap_prefixes": 5000, "error": None},
                    "stats": {"requests": 4211, "prefixes": {"FULL": 310}},
                    "sent_at": "2026-11-30T03:12:00.250Z",
                }
            ]
        }
    )
    boot_id: str
    observed_revision: int = Field(ge=0)
    observed: dict[str, Any]
    stats: dict[str, Any]
    sent_at: AwareDatetime | None = None


class GoodbyeBody(BaseModel):
    """Which boot of the engine stops."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"boot_id": "7c1e0d6a"}]})
    boot_id: str


class OutcomeBody(BaseModel):
    """What became of a command so far."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"status": "succeeded", "progress": {"done": 2}, "outcome": {"evicted": 2, "bytes": 1048576}}]
        }
    )
    status: str
    progress: dict[str, Any] | None = None
    outcome: dict[str, Any] | None = None


class SnapshotBody(BaseModel):
    """Every prefix the engine holds, at its newest version."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "boot_id": "7c1e0d6a",
                    "prefixes": [
                        {
                            "prefix.id": "3f2a9c0d5b7e41f6a8d20c94e1b35f70",
                            "namespace": "tenant-a",
                            "life": 1772366400000000000,
                            "version": 3,
                            "state.from": "FULL",
                            "state.to": "COMPRESSED",
                            "cause": "policy",
                            "tokens": 256,
                            "pages": 2,
                            "bytes.gpu": 524288,
                        }
                    ],
                }
            ]
        }
    )
    boot_id: str
    prefixes: list[dict[str, Any]]


class CurveBody(BaseModel):
    """What the engine sampled of its requests."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"boot_id": "7c1e0d6a", "curve": {}}]})
    boot_id: str = Field(min_length=1, max_length=64)
    curve: dict[str, Any]


@router.post("/register")
def register(engine_id: EngineId, body: RegisterBody, store: StoreOf, caller: Spokesman) -> dict[str, Any]:
    """Introduce an engine; answers what it should run with and the newest epoch. Binds a token that was never used."""
    now = utc_now()
    hosts.check_place(body.group, body.labels)
    with store.write() as session:
        if bind_engine(session, caller, engine_id):
            audit.record(session, caller, "bind_token", engine_id, "the first engine that registered with it")
        register_engine(session, engine_id, **body.model_dump())
        standing = desired.effective(session, engine_id, now)
        epoch = newest_epoch(session)
    return {"desired": standing.document, "desired_revision": standing.revision, "epoch": epoch}


@router.post("/heartbeat")
def heartbeat(engine_id: EngineId, body: HeartbeatBody, store: StoreOf, _caller: Spokesman) -> dict[str, Any]:
    """Say what runs; answers what waits."""
    now = utc_now()
    with store.write_beside() as session:
        hosts.heartbeat(session, engine_id, now=now, **body.model_dump())
        waits = hosts.waiting(session, engine_id, now)
    return {
        "desired_revision": waits.revision,
        "commands_waiting": waits.commands,
        "snapshot_wanted": waits.snapshot_wanted,
        "curve_wanted": waits.curve_wanted,
    }


@router.post("/goodbye")
def goodbye(engine_id: EngineId, body: GoodbyeBody, store: StoreOf, _caller: Spokesman) -> dict[str, Any]:
    """Say that this engine stops on purpose: it is then shown as left, and not missed."""
    with store.write() as session:
        hosts.goodbye(session, engine_id, boot_id=body.boot_id, now=utc_now())
    return {"id": engine_id, "left": True}


@router.get("/poll")
async def poll(
    request: Request,
    engine_id: EngineId,
    store: StoreOf,
    _caller: Spokesman,
    after_revision: Annotated[int, Query(ge=0)] = 0,
    wait_s: Annotated[float, Query(ge=0, le=LONGEST_WAIT_SECONDS)] = 20.0,
) -> dict[str, Any]:
    """Wait until there is news for this engine, at most `wait_s`. Holds no thread while it waits."""
    deadline = time.monotonic() + wait_s
    news: News = request.app.state.news
    with WAKEUPS.waiting(engine_id) as woken:
        while True:
            woken.clear()  # before the look, so that a hint during the look is not lost
            stamp = await _stamp(news)
            waits = await run_in_threadpool(_look, store, engine_id)
            left = deadline - time.monotonic()
            if waits.is_news(after_revision) or left <= 0 or WAKEUPS.closed:
                return await run_in_threadpool(_answer, store, engine_id, waits, after_revision)
            await _until_worth_a_look(woken, news, stamp, min(left, LONGEST_BLIND_SECONDS))


async def _until_worth_a_look(woken: asyncio.Event, news: News, stamp: Stamp, seconds: float) -> None:
    """Returns on a hint, when another process has steered, or after `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        with suppress(TimeoutError):
            await asyncio.wait_for(woken.wait(), min(left, LOOK_AGAIN_SECONDS))
            return
        if await _stamp(news) != stamp:
            return


async def _stamp(news: News) -> Stamp:
    known = news.known()
    return await run_in_threadpool(news.stamp) if known is None else known


def _look(store: Store, engine_id: str) -> hosts.Waiting:
    with store.read() as session:
        return hosts.waiting(session, engine_id, utc_now())


def _answer(store: Store, engine_id: str, waits: hosts.Waiting, after_revision: int) -> dict[str, Any]:
    taken: list[dict[str, Any]] = []
    if waits.commands:
        with store.write() as session:
            taken = [_view(command) for command in commands.take_waiting(session, engine_id, utc_now())]
    # "Not newer" would be wrong: a revision may go back when an engine's database is replaced. Different is different.
    standing: desired.Effective | None = None
    if waits.revision != after_revision:
        with store.read() as session:
            standing = desired.effective(session, engine_id, utc_now())
    return {
        "desired_revision": standing.revision if standing else waits.revision,
        "desired": standing.document if standing else None,
        "epoch": waits.epoch,
        "commands": taken,
        "snapshot_wanted": waits.snapshot_wanted,
    }


def _view(command: Command) -> dict[str, Any]:
    return {
        "id": command.id,
        "kind": command.kind,
        "arguments": command.arguments,
        "epoch": command.epoch,
        "expires_at": command.expires_at.isoformat(),
        "traceparent": command.traceparent,
        "actor": command.actor,
        "cancel": command.cancel_requested_at is not None,
    }


@router.post("/commands/{command_id}/outcome")
def outcome(
    engine_id: EngineId, command_id: str, body: OutcomeBody, store: StoreOf, _caller: Spokesman
) -> dict[str, Any]:
    """Report progress or the end of a command. Reporting the same end twice is fine."""
    said = commands.Report(status=body.status, progress=body.progress or {}, outcome=body.outcome or {})
    with store.write() as session:
        command = commands.report(session, engine_id, command_id, said, utc_now())
        return {"id": command.id, "status": command.status}


@router.post("/curve")
def curve(engine_id: EngineId, body: CurveBody, store: StoreOf, _caller: Spokesman) -> dict[str, Any]:
    """Hand in the curves of hit rate against capacity; an empty one says that the engine does not sample."""
    now = utc_now()
    with store.write() as session:
        kept = keep_curve(session, engine_id, body.curve, boot_id=body.boot_id, now=now)
        foretold = predictions.keep_up(session, kept, now) if kept is not None else 0
    return {"kept": kept is not None, "foretold": foretold}


@router.post("/snapshot")
def snapshot(engine_id: EngineId, body: SnapshotBody, store: StoreOf, _caller: Spokesman) -> dict[str, Any]:
    """Hand in every prefix the engine holds; the store closes its gaps with them."""
    with store.write_beside() as session:
        applied = apply_snapshot(session, engine_id, body.prefixes, boot_id=body.boot_id)
    return asdict(applied)
