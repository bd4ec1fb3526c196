"""What an engine says and what the rules make of it: for the tests of alerts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from databases import Database
from sqlalchemy import select
from steering_support import ENGINE, NOW, Deck, add_engine, prefix_id, running_deck

from controlplane.clock import floor_minute, utc_now
from controlplane.steering import alerts
from controlplane.steering.alerts.health import Health
from controlplane.store.models import (
    Alert,
    Engine,
    HistoryGap,
    MetricRollup,
    MetricSeries,
    RequestRollup,
)


@contextmanager
def alert_deck(folder: Path, database: Database) -> Iterator[Deck]:
    """A control plane with one engine and the rules that come with it."""
    with running_deck(folder, database) as running:
        add_engine(running, utc_now())
        with running.store.write() as session:
            alerts.seed(session, NOW)
        yield running


def alive(deck: Deck, at: dt.datetime, engine: str = ENGINE) -> None:
    with deck.store.write() as session:
        session.get(Engine, engine).last_seen_at = at


def counted(deck: Deck, at: dt.datetime, name: str, attributes: str, delta: float) -> None:
    """What ingest writes for a counter that grew by `delta` in this minute."""
    with deck.store.write() as session:
        minute = floor_minute(at)
        row = session.get(MetricRollup, (ENGINE, name, attributes, minute))
        if row is None:
            session.add(
                MetricRollup(
                    engine_id=ENGINE,
                    name=name,
                    attributes=attributes,
                    minute=minute,
                    last=delta,
                    delta=delta,
                    maximum=delta,
                    count_delta=0,
                    boot_id="boot",
                )
            )
        else:
            row.delta += delta
        session.get(Engine, ENGINE).last_seen_at = at


def gauge(deck: Deck, at: dt.datetime, name: str, attributes: str, value: float) -> None:
    """What ingest writes for a gauge heard at this moment."""
    counted(deck, at, name, attributes, 0.0)
    with deck.store.write() as session:
        session.get(MetricRollup, (ENGINE, name, attributes, floor_minute(at))).last = value
        row = session.get(MetricSeries, (ENGINE, name, attributes))
        if row is None:
            row = MetricSeries(engine_id=ENGINE, name=name, attributes=attributes, boot_id="boot")
            session.add(row)
        row.at, row.value = at, value


def states(deck: Deck, now: dt.datetime, health: Health | None = None) -> dict[str, str]:
    """One evaluation, then the state of each alert by its rule."""
    with deck.store.write() as session:
        alerts.evaluate(session, now, health)
    with deck.store.read() as session:
        return {alert.rule: alert.state for alert in session.scalars(select(Alert).order_by(Alert.id))}


def later(**span: float) -> dt.datetime:
    return NOW + dt.timedelta(**span)


def open_gap(deck: Deck) -> int:
    gap = HistoryGap(engine_id=ENGINE, prefix_id=prefix_id(1), life=1, first_version=2, last_version=3, found_at=NOW)
    with deck.store.write() as session:
        session.add(gap)
        session.get(Engine, ENGINE).last_seen_at = later(hours=1)
    return gap.id


def requests(deck: Deck, minute: dt.datetime, *, prompt: int, usable: int, namespace: str = "default") -> None:
    with deck.store.write() as session:
        session.add(
            RequestRollup(
                engine_id=ENGINE,
                minute=floor_minute(minute),
                namespace=namespace,
                outcome="hit",
                reason="none",
                state="FULL",
                tier="gpu",
                requests=100,
                prompt_tokens=prompt,
                lcp_tokens=usable,
                usable_tokens=usable,
                replay_tokens=0,
            )
        )
        session.get(Engine, ENGINE).last_seen_at = minute
