"""The rest of the world goes away and comes back: the engine serves on, and what it said meanwhile arrives whole."""

from __future__ import annotations

from pathlib import Path

from databases import Database
from live_support import SPEC, Live, engine_config, prompt
from sqlalchemy import func, select
from steering_support import Deck, wait_for

from controlplane.auth import Role
from controlplane.host.deck import engine_on_deck
from controlplane.store.models import Engine, HistoryGap, PrefixVersion
from engine.integrations.synthetic import SyntheticModel


def told(deck: Deck) -> int:
    """Transitions that have arrived, each once."""
    with deck.store.read() as session:
        return session.scalar(select(func.count()).select_from(PrefixVersion)) or 0


def open_gaps(deck: Deck) -> int:
    with deck.store.read() as session:
        return session.scalar(select(func.count()).where(HistoryGap.closed_at.is_(None))) or 0


def registered(deck: Deck) -> bool:
    with deck.store.read() as session:
        return session.scalar(select(Engine.id)) is not None


def test_an_engine_serves_through_outages_and_its_history_has_no_gap(tmp_path: Path, database: Database) -> None:
    deck = Deck(tmp_path, database)
    try:
        config = engine_config(tmp_path / "engine")
        with engine_on_deck(SPEC, config, url=deck.url, token=deck.tokens[Role.ENGINE]) as engine:
            live = Live(engine, SyntheticModel(SPEC))
            for seed in (1, 2, 1):  # before there ever was a control plane
                live.serve(prompt(seed))
            deck.start()
            wait_for(lambda: registered(deck), "the engine")
            live.serve(prompt(3))
            wait_for(lambda: told(deck) == engine.counters().transitions, "what was said before the start")
            deck.stop()
            for seed in (4, 3, 5):  # the receiver is gone
                assert live.serve(prompt(seed)).prompt_tokens
            assert told(deck) < engine.counters().transitions
            deck.start()
            wait_for(lambda: told(deck) == engine.counters().transitions, "what was said during the outage")
            assert open_gaps(deck) == 0
            assert engine.stats()["telemetry_dropped"] == 0
            assert live.wrong_bytes == 0
            assert engine.check() == []
    finally:
        deck.stop()
        deck.store.dispose()
