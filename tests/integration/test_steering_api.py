"""The write door over HTTP: roles, audit, idempotency, preview, revisions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from databases import Database
from sqlalchemy import func, select
from steering_support import (
    ENGINE,
    NOW,
    Deck,
    add_engine,
    add_prefix,
    deed,
    evict,
    prefix_id,
    running_deck,
)

from controlplane.auth import Role
from controlplane.clock import utc_now
from controlplane.errors import BadRequest, Conflict, Forbidden, NotFound, Unauthorised
from controlplane.steering import desired
from controlplane.store.models import Audit, Command


@pytest.fixture
def deck(tmp_path: Path, database: Database) -> Iterator[Deck]:
    with running_deck(tmp_path, database) as running:
        add_engine(running, utc_now())
        yield running


def test_one_idempotency_key_is_one_command(deck: Deck) -> None:
    with deck.client() as client:
        first = client._post("/v1/commands", evict(idempotency_key="key-12345"))
        again = client._post("/v1/commands", evict(idempotency_key="key-12345"))
        assert first["id"] == again["id"]
        with pytest.raises(Conflict, match="another command"):
            client._post("/v1/commands", evict(idempotency_key="key-12345", kind="unpin"))
    with deck.store.read() as session:
        assert session.scalar(select(func.count()).select_from(Command)) == 1
        assert session.scalar(select(func.count()).select_from(Audit).where(Audit.action == "evict")) == 1


def test_caps_of_a_namespace_are_desired_state_with_a_diff(deck: Deck) -> None:
    caps = {"tenant-a": {"guaranteed_bytes": 64 << 20, "max_bytes": 1 << 30}}
    with deck.client() as client:
        first = client.set_desired({"namespace_caps": caps}, reason="a is dear")
        assert first["diff"] == {"namespace_caps": [None, caps]}
        assert client.set_desired({"namespace_caps": None}, reason="no more")["document"] == {}
        assert client.rollback(first["revision"], reason="after all")["document"] == {"namespace_caps": caps}
        bad = {"tenant-a": {"guaranteed_bytes": 2 << 20, "max_bytes": 1 << 20}}
        with pytest.raises(BadRequest, match="more than its max_bytes"):
            client.set_desired({"namespace_caps": bad}, reason="oops")


def test_every_command_is_audited_with_its_reason_and_trace(deck: Deck) -> None:
    trace = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    with deck.client() as client:
        client.submit(ENGINE, "evict", {"prefix_ids": [prefix_id(1)]}, reason="too big", traceparent=trace)
    with deck.store.read() as session:
        row = session.scalars(select(Audit).where(Audit.action == "evict")).one()
    assert (row.actor, row.role, row.target, row.reason) == ("test-operator", "operator", ENGINE, "too big")
    assert row.trace_id == "ab" * 16


@pytest.mark.parametrize("role", [Role.VIEWER, Role.ENGINE])
def test_only_operators_write(deck: Deck, role: Role) -> None:
    with deck.client(role) as client:
        for write in (
            lambda: client.submit(ENGINE, "unpin", {"prefix_ids": [prefix_id(1)]}, reason="r"),
            lambda: client.set_desired({"cap_prefixes": 5}, reason="r"),
            lambda: client.rollback(1, reason="r"),
            lambda: client.run_policy("degrade", reason="r"),
            lambda: client.change_policy("degrade", reason="r", paused=True),
            lambda: client.acknowledge(1),
        ):
            with pytest.raises(Forbidden):
                write()


def test_without_a_token_nothing_is_said(deck: Deck) -> None:
    from controlplane.api.client import ControlPlaneClient

    with ControlPlaneClient(deck.url) as client, pytest.raises(Unauthorised):
        client.me()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"engine": "nobody"}, NotFound),
        ({"kind": "explode"}, BadRequest),
        ({"reason": " "}, BadRequest),
        ({"reason": ""}, BadRequest),
        ({"expires_s": 0}, BadRequest),
        ({"expires_s": 10**9}, BadRequest),
        ({"arguments": {}}, BadRequest),
        ({"idempotency_key": "short"}, BadRequest),
    ],
)
def test_a_command_that_cannot_be_is_refused(deck: Deck, change: dict[str, Any], error: type[Exception]) -> None:
    with deck.client() as client, pytest.raises(error):
        client._post("/v1/commands", evict(**change))


def test_refuses_a_prefix_that_has_moved_on_since_it_was_seen(deck: Deck) -> None:
    add_prefix(deck, 1, version=5)
    with deck.client() as client:
        with pytest.raises(Conflict, match="moved on"):
            client.submit(
                ENGINE,
                "evict",
                {"prefix_ids": [prefix_id(1)], "expect_versions": {prefix_id(1): 4}},
                reason="stale",
            )
        # The store may lag: a version it has not heard of is for the engine to judge.
        client.submit(
            ENGINE, "evict", {"prefix_ids": [prefix_id(1)], "expect_versions": {prefix_id(1): 9}}, reason="newer"
        )


def test_a_pending_command_can_be_cancelled_once(deck: Deck) -> None:
    with deck.client() as client:
        command = client._post("/v1/commands", evict())
        assert client.cancel(command["id"], reason="no")["status"] == "cancelled"
        with pytest.raises(Conflict, match="It is over"):
            client.cancel(command["id"], reason="again")


def test_preview_counts_what_an_evict_would_touch(deck: Deck) -> None:
    add_prefix(deck, 1, tokens=64, gpu_bytes=100)
    add_prefix(deck, 2, tokens=192, parent_id=prefix_id(1), host_bytes=50, gpu_bytes=0, tokens_served=7)
    add_prefix(deck, 3, tokens=256, parent_id=prefix_id(2), disk_bytes=30, gpu_bytes=0, pinned=True)
    add_prefix(deck, 4, tokens=256, parent_id=prefix_id(2), state="EVICTED")
    arguments = {"prefix_ids": [prefix_id(1), prefix_id(9)], "descendants": True}
    with deck.client() as client:
        radius = client.preview(ENGINE, "evict", arguments)
    assert (radius["prefixes"], radius["descendants"], radius["own_tokens"]) == (3, 2, 256)
    assert radius["bytes_by_tier"] == {"gpu": 100, "host": 50, "disk": 30}
    assert radius["unknown"] == [prefix_id(9)]
    assert (radius["pinned"], radius["tokens_served"]) == (1, 7)
    assert radius["versions"] == {prefix_id(1): 1}


def test_preview_without_descendants_warns_of_them(deck: Deck) -> None:
    add_prefix(deck, 1)
    add_prefix(deck, 2, tokens=128, parent_id=prefix_id(1))
    with deck.client() as client:
        radius = client.preview(ENGINE, "evict", {"prefix_ids": [prefix_id(2)]})
        assert (radius["prefixes"], radius["own_tokens"], radius["warnings"]) == (1, 64, [])
        radius = client.preview(ENGINE, "evict", {"prefix_ids": [prefix_id(1)]})
        assert "1 prefix lies under" in radius["warnings"][0]


def test_revisions_are_appended_and_rolled_back_as_new_ones(deck: Deck) -> None:
    with deck.client() as client:
        one = client.set_desired({"cap_prefixes": 10}, reason="one")
        two = client.set_desired({"cap_prefixes": 20, "codec": "int8"}, reason="two")
        assert two["diff"] == {"cap_prefixes": [10, 20], "codec": [None, "int8"]}
        back = client.rollback(one["revision"], reason="back")
        assert back["document"] == {"cap_prefixes": 10}
        assert back["revision"] > two["revision"]
        assert [row["reason"] for row in client.desired()] == ["back", "two", "one"]


def test_a_change_on_an_old_revision_is_a_conflict(deck: Deck) -> None:
    with deck.client() as client:
        seen = client.set_desired({"cap_prefixes": 10}, reason="one", expect_revision=0)["revision"]
        client.set_desired({"cap_prefixes": 11}, reason="two", expect_revision=seen)
        with pytest.raises(Conflict, match="as you saw it"):
            client.set_desired({"cap_prefixes": 12}, reason="three", expect_revision=seen)


def test_a_change_that_changes_nothing_is_no_revision(deck: Deck) -> None:
    with deck.client() as client:
        one = client.set_desired({"cap_prefixes": 10}, reason="one")
        again = client.set_desired({"cap_prefixes": 10}, reason="again")
        assert (again["revision"], again["diff"]) == (one["revision"], {})


def test_a_hold_that_ends_becomes_a_revision(deck: Deck) -> None:
    with deck.store.write() as session:
        held = desired.revise(session, deed(), engine_id=ENGINE, changes={"mode": "bypass", "cap_prefixes": 5})
        assert desired.expire_modes(session, deed(NOW + dt.timedelta(minutes=59))) == []
        assert desired.expire_modes(session, deed(NOW + dt.timedelta(minutes=61))) == [desired.Scope(engine_id=ENGINE)]
        now = desired.effective(session, ENGINE, NOW + dt.timedelta(minutes=61))
    assert now.document == {"cap_prefixes": 5}
    assert now.revision > held.revision
