"""A light session of the dashboard's benchmark is a session to a real dashboard: it signs in, and its parts refresh."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Iterator

import pytest
from dashboard_stage import Deck

from benchmarks.dashboard_session import LightSession, SessionFailed
from controlplane.auth import Role, issue_token

PARTS_OF_THE_OVERVIEW = 5  # status, numbers, attention, charts, engines
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def deck(tmp_path_factory) -> Iterator[Deck]:
    made = Deck(tmp_path_factory.mktemp("deck"))
    yield made
    made.close()


def link(deck: Deck) -> str:
    with deck.store.write() as session:
        return issue_token(session, "light", Role.OPERATOR, ttl=dt.timedelta(hours=1), one_time=True)


def test_a_light_session_signs_in_and_every_part_refreshes_at_its_interval(deck):
    async def visit() -> tuple[dict[str, float], list[float], float, int]:
        async with LightSession(deck.address, link(deck)) as session:
            await session.open_page()
            parts = dict(session.parts)
            session.forget()
            while len(session.parts_s) < 2 * len(parts):
                await asyncio.sleep(0.1)
            timed = session.timed()
            return parts, list(timed.parts_s), timed.page_s, timed.received_bytes

    parts, took, page_s, received = asyncio.run(visit())
    assert len(parts) >= PARTS_OF_THE_OVERVIEW
    assert set(parts.values()) == {5.0}
    assert len(took) >= 2 * len(parts)
    assert page_s > 0 < min(took)
    assert received > 0


def test_sessions_at_once_are_of_their_own_and_are_signed_in_once_each(deck):
    async def visit() -> list[int]:
        async with LightSession(deck.address, link(deck)) as one, LightSession(deck.address, link(deck)) as other:
            await asyncio.gather(one.open_page(), other.open_page())
            for fragment_id in one.parts:
                await one.refresh(fragment_id)
            while len(one.parts_s) < len(one.parts):
                await asyncio.sleep(0.05)
            return [len(one.parts), len(other.parts)]

    first, second = asyncio.run(visit())
    assert first == second >= PARTS_OF_THE_OVERVIEW


def test_a_link_that_is_spent_says_so_instead_of_measuring_the_sign_in_page(deck):
    spent = link(deck)

    async def visit() -> None:
        async with LightSession(deck.address, spent) as session:
            await session.open_page()
        async with LightSession(deck.address, spent) as session:
            await session.open_page()

    with pytest.raises(SessionFailed, match="not signed in"):
        asyncio.run(visit())
