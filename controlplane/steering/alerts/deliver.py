"""Delivers the outbox: signed POSTs with a time limit, tried again with growing, jittered waits.

At least once, with the same idempotency id each time: a receiver that keeps the ids it has seen gets each change once.
A notification is claimed before it is sent, so that a second leader, or this one after a crash, waits for the claim to
run out before it sends the same again.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import json
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby

import httpx
from sqlalchemy import select
from sqlalchemy.orm import Session

from controlplane.clock import Clock, utc_now
from controlplane.steering.alerts import outbox
from controlplane.steering.alerts.receivers import host_of
from controlplane.store.models import Notification, Receiver
from controlplane.store.session import Store

log = logging.getLogger(__name__)

MOST_AT_ONCE = 50
MOST_THREADS = 4
CLAIM = dt.timedelta(seconds=90)  # longer than a receiver may take, so that nobody sends what is being sent
FIRST_WAIT_SECONDS = 5.0
LONGEST_WAIT_SECONDS = 300.0
GIVE_UP_AFTER = dt.timedelta(hours=24)
TRY_AGAIN = frozenset({408, 425, 429})  # of the 4xx: the others say that the request itself is wrong
MOST_DOUBLINGS = 10
ID_HEADER, TIME_HEADER, SIGNATURE_HEADER = "Idempotency-Key", "X-Kvdeck-Timestamp", "X-Kvdeck-Signature"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """One notification that is about to be sent."""

    id: str
    receiver: str
    url: str
    secret: str = field(repr=False)
    timeout_seconds: int
    body: bytes
    attempt: int
    created_at: dt.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """How one attempt went. `final`: trying again cannot help. `wait_seconds`: the receiver's own wish, if any."""

    parcel: Parcel
    error: str | None
    final: bool = False
    wait_seconds: float | None = None


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """`sha256=` and the hex HMAC-SHA256 of `timestamp.body`: the time is signed too, against replays."""
    return "sha256=" + hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def deliver_due(store: Store, clock: Clock = utc_now, jitter: Callable[[], float] = random.random) -> int:
    """Sends what is due, each receiver's in order and a slow one apart from the others; returns how many arrived."""
    with store.read() as session:
        anything = _due(session, clock())
    if not anything:
        return 0
    with store.write() as session:
        parcels = _claim(session, clock())
    by_receiver = [list(group) for _, group in groupby(parcels, key=lambda parcel: parcel.receiver)]
    if not by_receiver:
        return 0
    with ThreadPoolExecutor(min(MOST_THREADS, len(by_receiver)), thread_name_prefix="deliver") as pool:
        futures = [pool.submit(_send_all, store, batch, clock, jitter) for batch in by_receiver]
    return sum(future.result() for future in futures)


def _due(session: Session, now: dt.datetime) -> Sequence[Notification]:
    query = (
        select(Notification)
        .where(Notification.status == outbox.PENDING, Notification.next_at <= now)
        .order_by(Notification.receiver, Notification.created_at, Notification.id)
        .limit(MOST_AT_ONCE)
    )
    return session.scalars(query).all()


def _claim(session: Session, now: dt.datetime) -> list[Parcel]:
    parcels = []
    for due in _due(session, now):
        receiver = session.get(Receiver, due.receiver)
        if receiver is None or not receiver.enabled:
            due.status, due.ended_at, due.last_error = outbox.FAILED, now, "the receiver is disabled"
            continue
        if due.state == "resolved" and _firing_still_waits(session, due):
            continue  # a receiver must not hear of the end before the beginning
        due.attempts += 1
        due.next_at = now + CLAIM
        parcels.append(
            Parcel(
                id=due.id,
                receiver=receiver.name,
                url=receiver.url,
                secret=receiver.secret,
                timeout_seconds=receiver.timeout_seconds,
                body=json.dumps(due.body, separators=(",", ":"), sort_keys=True).encode(),
                attempt=due.attempts,
                created_at=due.created_at,
            )
        )
    return parcels


def _firing_still_waits(session: Session, due: Notification) -> bool:
    query = select(Notification.id).where(
        Notification.receiver == due.receiver,
        Notification.alert_id == due.alert_id,
        Notification.state == "firing",
        Notification.status == outbox.PENDING,
    )
    return session.scalars(query.limit(1)).first() is not None


def _send_all(store: Store, parcels: Sequence[Parcel], clock: Clock, jitter: Callable[[], float]) -> int:
    """Sends one receiver's parcels. After one that could not be sent the others wait too: it is down, or slow."""
    arrived = 0
    for number, parcel in enumerate(parcels):
        receipt = _send(parcel, clock())
        with store.write() as session:
            _note(session, receipt, clock(), jitter)
            if receipt.error is not None and not receipt.final:
                for later in parcels[number + 1 :]:
                    _put_back(session, later, clock() + dt.timedelta(seconds=FIRST_WAIT_SECONDS))
                break
        arrived += receipt.error is None
    return arrived


def _send(parcel: Parcel, now: dt.datetime) -> Receipt:
    timestamp = str(int(now.timestamp()))
    headers = {"Content-Type": "application/json", "User-Agent": "kvdeck", ID_HEADER: parcel.id, TIME_HEADER: timestamp}
    if parcel.secret:
        headers[SIGNATURE_HEADER] = sign(parcel.secret, timestamp, parcel.body)
    try:
        with (
            httpx.Client(timeout=parcel.timeout_seconds, trust_env=False) as client,
            client.stream("POST", parcel.url, content=parcel.body, headers=headers) as answer,
        ):
            return _receipt(parcel, answer)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        # The text of an error may hold the URL, and that may hold a secret: its kind says enough.
        return Receipt(parcel=parcel, error=f"{type(error).__name__} at {host_of(parcel.url)}")


def _receipt(parcel: Parcel, answer: httpx.Response) -> Receipt:
    status = answer.status_code
    if 200 <= status < 300:
        return Receipt(parcel=parcel, error=None)
    wait = answer.headers.get("Retry-After", "")
    return Receipt(
        parcel=parcel,
        error=f"{host_of(parcel.url)} answered {status}",
        final=status < 500 and status not in TRY_AGAIN,
        wait_seconds=min(float(wait), LONGEST_WAIT_SECONDS) if wait.isdecimal() else None,
    )


def _note(session: Session, receipt: Receipt, now: dt.datetime, jitter: Callable[[], float]) -> None:
    sent = session.get(Notification, receipt.parcel.id)
    if sent is None or sent.status != outbox.PENDING:
        return  # its receiver was removed meanwhile
    if receipt.error is None:
        sent.status, sent.ended_at, sent.last_error = outbox.DELIVERED, now, None
        return
    sent.last_error = receipt.error
    log.warning("receiver %s was not told of alert %s: %s", sent.receiver, sent.alert_id, receipt.error)
    if receipt.final or now - sent.created_at >= GIVE_UP_AFTER:
        sent.status, sent.ended_at = outbox.FAILED, now
        return
    sent.next_at = now + dt.timedelta(seconds=receipt.wait_seconds or wait_seconds(sent.attempts, jitter))


def _put_back(session: Session, parcel: Parcel, at: dt.datetime) -> None:
    waiting = session.get(Notification, parcel.id)
    if waiting is not None and waiting.status == outbox.PENDING:
        waiting.attempts -= 1
        waiting.next_at = at


def wait_seconds(attempts: int, jitter: Callable[[], float]) -> float:
    """The wait after so many attempts: doubling, and half of it left to chance, so that not all come at once."""
    longest: float = min(FIRST_WAIT_SECONDS * 2.0 ** min(attempts - 1, MOST_DOUBLINGS), LONGEST_WAIT_SECONDS)
    return longest * (0.5 + 0.5 * jitter())
