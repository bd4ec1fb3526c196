"""Selectors, batches, groups and labels over HTTP: what is chosen, who gets a command, and what came of each."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from databases import Database
from sqlalchemy import update
from steering_support import (
    ENGINE,
    Deck,
    SmallEngine,
    add_engine,
    add_prefix,
    prefix_id,
    running_agent,
    running_deck,
    wait_for,
)

from controlplane.auth import Role, issue_token
from controlplane.clock import utc_now
from controlplane.errors import BadRequest, Conflict, Forbidden, NotFound
from controlplane.host.agent import Agent, AgentOptions
from controlplane.host.client import AgentClient, CallFailed, check_address
from controlplane.store.models import Engine, Prefix
from engine.errors import ConfigError


@pytest.fixture
def deck(tmp_path: Path, database: Database) -> Iterator[Deck]:
    with running_deck(tmp_path, database) as running:
        yield running


@pytest.fixture
def tree(deck: Deck) -> Deck:
    """1 - (2, 3), 3 - 4 in tenant-a; 5 alone, pinned; 6 off the GPU; each idle a minute longer than the next."""
    now = utc_now()
    add_engine(deck, now)
    parents = {2: 1, 3: 1, 4: 3}
    for number in range(1, 7):
        add_prefix(
            deck,
            number,
            namespace="tenant-a" if number < 5 else "tenant-b",
            parent_id=prefix_id(parents[number]) if number in parents else None,
            tokens=64 if number not in parents else 128 if number != 4 else 192,
            pinned=number == 5,
            state="PARTIAL_OFFLOAD" if number == 6 else "FULL",
            gpu_bytes=0 if number == 6 else 100,
            disk_bytes=100 if number == 6 else 0,
            tokens_served=number * 100,
            served_at=now - dt.timedelta(minutes=10 - number),
        )
    return deck


def chosen(deck: Deck, kind: str, selector: dict[str, Any], **arguments: Any) -> tuple[set[int], dict[str, int]]:
    with deck.client() as client:
        radius = client.preview(ENGINE, kind, arguments, selector)
    return {int(key, 16) for key in radius["versions"]}, radius["left_out"]


@pytest.mark.parametrize(
    ("kind", "selector", "expected", "left_out"),
    [
        ("evict", {"namespace": "tenant-a", "least_useful": 2}, {2, 4}, {"over_limit": 2}),
        ("evict", {"namespace": "tenant-a"}, {1, 2, 3, 4}, {}),
        ("evict", {"namespace": "tenant-b"}, {6}, {"pinned": 1}),
        ("evict", {"namespace": "tenant-b", "pinned": True}, {5}, {}),
        ("evict", {"idle_s": 450}, {2}, {"has_descendants": 1}),
        ("offload", {"states": ["FULL"], "limit": 3}, {1, 2, 3}, {"over_limit": 1, "pinned": 1}),
        ("offload", {"tier": "disk"}, set(), {"nothing_to_do": 1}),
        ("warm", {"tier": "disk"}, {6}, {}),
        ("compress", {"namespace": "tenant-b"}, set(), {"nothing_to_do": 1, "pinned": 1}),
        ("unpin", {"namespace": "tenant-b"}, {5}, {"not_pinned": 1}),
        ("pin", {"least_useful": 1}, {1}, {"over_limit": 5}),
    ],
    ids=str,
)
def test_a_selector_chooses_what_the_kind_can_act_on(
    tree: Deck, kind: str, selector: dict[str, Any], expected: set[int], left_out: dict[str, int]
) -> None:
    arguments = {"tier": "disk"} if kind == "offload" else {}
    assert chosen(tree, kind, selector, **arguments) == (expected, left_out)


def test_a_selector_is_resolved_when_the_command_is_stored_and_the_record_says_how(tree: Deck) -> None:
    selector = {"namespace": "tenant-a", "least_useful": 2}
    with tree.client() as client:
        command = client.submit(ENGINE, "evict", {}, selector=selector, reason="too big", idempotency_key="key-12345")
        assert set(command["arguments"]["prefix_ids"]) == {prefix_id(2), prefix_id(4)}
        assert command["arguments"]["expect_versions"] == {prefix_id(2): 1, prefix_id(4): 1}
        assert command["selection"]["selector"] == selector
        assert (command["selection"]["matched"], command["selection"]["chosen"]) == (4, 2)
        with tree.store.write() as session:  # what it would find now is something else
            session.execute(update(Prefix).values(state="EVICTED"))
        again = client.submit(ENGINE, "evict", {}, selector=selector, reason="too big", idempotency_key="key-12345")
        assert again["id"] == command["id"]
        with pytest.raises(Conflict, match="0 prefixes match"):
            client.submit(ENGINE, "evict", {}, selector=selector, reason="again")


@pytest.mark.parametrize(
    ("kind", "selector", "error", "said"),
    [
        ("evict", {}, BadRequest, "must select by something"),
        ("evict", {"limit": 5}, BadRequest, "must select by something"),
        ("evict", {"colour": "red"}, BadRequest, "colour is no part of a selector"),
        ("evict", {"states": ["TIRED"]}, BadRequest, "states must be a list of states"),
        ("evict", {"idle_s": -1}, BadRequest, "idle_s must be seconds"),
        ("evict", {"least_useful": 0}, BadRequest, "whole number from 1"),
        ("compact", {"namespace": "tenant-a"}, BadRequest, "acts on no single prefixes"),
        ("explode", {"namespace": "tenant-a"}, BadRequest, "no command 'explode'"),
        ("evict", {"namespace": "nobody"}, NotFound, "no namespace 'nobody'"),
    ],
)
def test_a_selector_that_cannot_be_used_says_why(
    tree: Deck, kind: str, selector: dict[str, Any], error: type[Exception], said: str
) -> None:
    with tree.client() as client, pytest.raises(error, match=said):
        client.submit(ENGINE, kind, {}, selector=selector, reason="test")


def test_a_preview_says_what_filling_again_would_cost(tree: Deck) -> None:
    with tree.client() as client:
        radius = client.preview(ENGINE, "evict", {}, {"namespace": "tenant-a"})
        assert (radius["refill_tokens"], radius["refill_seconds"]) == (256, None)
        with tree.store.write() as session:
            stats = {"prefill": {"tokens_per_s": 1000.0, "reports": 9}, "leases": 3}
            session.execute(update(Engine).values(stats=stats))
        radius = client.preview(ENGINE, "evict", {}, {"namespace": "tenant-a"})
        assert (radius["refill_seconds"], radius["leases"]) == (0.256, 3)
        assert client.preview(ENGINE, "offload", {"tier": "disk"}, {"namespace": "tenant-a"})["refill_tokens"] == 0


def test_labels_belong_to_the_id_and_select(tree: Deck) -> None:
    with tree.client() as client:
        ids = [prefix_id(2), prefix_id(4), prefix_id(99)]
        found = client.label(ids, {"product": "assistant"}, reason="r")
        assert found[prefix_id(99)] == {"product": "assistant"}  # no engine holds it, and it may come yet
        client.label([prefix_id(2)], {"product": None, "team": "a"}, reason="r")
        rows = {row["prefix_id"]: row["labels"] for row in client.prefixes()["rows"]}
        assert (rows[prefix_id(2)], rows[prefix_id(4)]) == ({"team": "a"}, {"product": "assistant"})
        assert [row["prefix_id"] for row in client.prefixes(label="product=assistant")["rows"]] == [prefix_id(4)]
        with tree.store.write() as session:
            session.execute(update(Prefix).where(Prefix.prefix_id == prefix_id(4)).values(state="EVICTED"))
        assert client.prefix(ENGINE, prefix_id(4))["now"]["labels"] == {"product": "assistant"}
        for bad in ({"": "x"}, {"a b": "x"}, {"a": "x" * 200}, {"a": "\n"}):
            with pytest.raises(BadRequest):
                client.label([prefix_id(2)], bad, reason="r")
    assert chosen(tree, "evict", {"labels": {"team": None}}) == ({2}, {})
    with tree.client(Role.VIEWER) as client, pytest.raises(Forbidden):
        client.label([prefix_id(2)], {"a": "b"}, reason="r")


def agents(deck: Deck, parts: ExitStack, *places: tuple[str, str]) -> dict[str, SmallEngine]:
    """Real agents of small engines, each in its group, registered and with their snapshots in."""
    engines = {}
    for engine_id, group in places:
        engine = engines[engine_id] = SmallEngine(engine_id)
        options = AgentOptions(
            poll_seconds=0.5, heartbeat_seconds=0.1, first_backoff_seconds=0.05, group=group, labels={"zone": "z1"}
        )
        agent = Agent(
            engine, url=deck.url, token=deck.tokens[Role.ENGINE], data_dir=deck.folder / engine_id, options=options
        )
        parts.enter_context(running_agent(agent))
    with deck.client() as client:
        wait_for(lambda: len(client.prefixes(limit=1000)["rows"]) == 8 * len(places), "the snapshots")
    return engines


def test_one_request_is_a_command_an_engine_with_an_outcome_each(deck: Deck) -> None:
    add_engine(deck, utc_now() - dt.timedelta(minutes=5), "gone")
    with ExitStack() as parts, deck.client() as client:
        engines = agents(deck, parts, ("a-1", "a"), ("a-2", "a"), ("b-1", "b"))
        radius = client.preview_batch("evict", {}, group="a", selector={"least_useful": 2})
        assert (radius["prefixes"], sorted(radius["selected"])) == (4, ["a-1", "a-2"])
        (moved, _), (kept, _) = (list(radius["selected"][name].items()) for name in ("a-1", "a-2"))
        engines["a-1"].versions[moved[0]] = 7  # it moves on after it was seen
        sent = client.submit_batch(
            "evict", {}, group="a", selected=radius["selected"], reason="r", idempotency_key="k" * 8
        )
        over = wait_for(lambda: (b := client.batch(sent["batch_id"]))["over"] and b, "the outcomes")
        assert over["by_status"] == {"succeeded": 2}
        by_engine = {command["engine_id"]: command["outcome"] for command in over["commands"]}
        assert by_engine["a-1"]["refused"] == [{"prefix_id": moved[0], "reason": "version_moved"}]
        assert by_engine["a-2"]["refused"] == []
        assert len(engines["b-1"].executed) == 0
        again = client.submit_batch("evict", {}, group="a", selected={}, reason="r", idempotency_key="k" * 8)
        assert [c["id"] for c in again["commands"]] == [c["id"] for c in over["commands"]]
        everyone = client.submit_batch("unpin", {"prefix_ids": [kept[0]]}, reason="r")
        assert {c["engine_id"] for c in everyone["commands"]} == {"a-1", "a-2", "b-1"}
        assert [s["engine_id"] for s in everyone["skipped"]] == ["gone"]
        assert "silent for" in everyone["skipped"][0]["why"]
        with pytest.raises(NotFound, match="No engine is in group 'c'"):
            client.submit_batch("compact", {}, group="c", reason="r")


def test_a_batch_is_cancelled_as_one(deck: Deck) -> None:
    with ExitStack() as parts, deck.client() as client:
        engines = agents(deck, parts, ("a-1", "a"), ("a-2", "a"))
        for engine in engines.values():
            engine.hold.clear()
        sent = client.submit_batch("evict", {}, group="a", selector={"least_useful": 2}, reason="r")
        wait_for(lambda: client.batch(sent["batch_id"])["by_status"] == {"running": 2}, "both to run")
        client.cancel_batch(sent["batch_id"], reason="stop")
        for engine in engines.values():
            wait_for(lambda engine=engine: engine.executed[0].cancelled(), "the engine to be told")
            engine.hold.set()
        over = wait_for(lambda: (b := client.batch(sent["batch_id"]))["over"] and b, "the outcomes")
        assert over["by_status"] == {"cancelled": 2}
        with pytest.raises(Conflict, match="is over"):
            client.cancel_batch(sent["batch_id"], reason="again")


def test_desired_state_is_layered_and_follows_an_engine_into_another_group(deck: Deck) -> None:
    with ExitStack() as parts, deck.client() as client:
        engines = agents(deck, parts, ("a-1", "a"), ("b-1", "b"))
        client.set_desired({"cap_prefixes": 50, "eviction": "lru"}, reason="fleet")
        client.set_desired({"cap_prefixes": 40}, group="a", reason="group a")
        client.set_desired({"cap_prefixes": 30}, group="b", reason="group b")
        wait_for(lambda: engines["a-1"].settings.get("cap_prefixes") == 40, "the group's cap on a-1")
        wait_for(lambda: engines["b-1"].settings.get("cap_prefixes") == 30, "the group's cap on b-1")
        assert engines["b-1"].settings["eviction"] == "lru"
        placed = client.place("b-1", group="a", labels={"zone": None, "spare": "yes"}, reason="moved")
        assert (placed["group"], placed["labels"]) == ("a", {"spare": "yes"})
        wait_for(lambda: engines["b-1"].settings.get("cap_prefixes") == 40, "the new group's cap on b-1")
        client.set_desired({"cap_prefixes": 20}, engine="b-1", reason="its own")
        wait_for(lambda: engines["b-1"].settings.get("cap_prefixes") == 20, "its own cap")
        layers = [(layer["scope"], layer["document"]) for layer in client.in_force("b-1")["layers"]]
        assert [scope for scope, _ in layers] == ["fleet", "group a", "b-1"]
        back = client.rollback(0, engine="b-1", reason="before the first")
        assert back["diff"] == {"cap_prefixes": [20, None]}
        wait_for(lambda: engines["b-1"].settings.get("cap_prefixes") == 40, "the group's cap again")
        assert client.rollback(0, reason="all")["document"] == {}
        with pytest.raises(BadRequest, match="is of group a, not of group b"):
            client.rollback(2, group="b", reason="another's")
        with pytest.raises(NotFound, match="no revision 999"):
            client.rollback(999, reason="never was")


def test_a_refused_document_is_shown_where_it_was_refused(deck: Deck) -> None:
    with ExitStack() as parts, deck.client() as client:
        agents(deck, parts, ("a-1", "a"))
        client.set_desired({"cap_prefixes": 1}, group="a", reason="too small")
        found = wait_for(lambda: (f := client.in_force("a-1"))["refused"] and f, "the refusal")
        assert "below 2, the pinned prefixes" in found["refused"]
        assert found["differs"] == {"cap_prefixes": [1, None]}
        assert found["observed_revision"] == found["revision"]


def test_a_trial_writes_nothing_and_estimates_what_leaves(tree: Deck) -> None:
    with tree.client() as client:
        trial = client.try_desired(changes={"cap_prefixes": 4}, engine=ENGINE)
        assert (trial["diff"], client.desired()) == ({"cap_prefixes": [None, 4]}, [])
        (engine,) = trial["engines"]
        # Prefix 2 is the leaf that was unused the longest, then 4.
        assert (engine["estimate"]["evicted"], engine["estimate"]["evicted_tokens"]) == (2, 128)
        assert engine["estimate"]["certainty"] == "estimate"
        bytes_cap = client.try_desired(changes={"namespace_caps": {"tenant-a": {"max_prefixes": 1}}})
        assert bytes_cap["engines"][0]["estimate"]["evicted"] == 3
        with pytest.raises(BadRequest, match="no knob"):
            client.try_desired(changes={"cap": 4})
        with pytest.raises(BadRequest, match="either changes or a revision"):
            client.try_desired()


def test_an_engine_token_speaks_for_the_engine_it_registered_first(deck: Deck) -> None:
    with deck.store.write() as session:
        first = issue_token(session, "host-1", Role.ENGINE, ttl=None)
        named = issue_token(session, "host-2", Role.ENGINE, ttl=None, engine_id="e-2")
    said = {"boot_id": "b", "model": "m", "fingerprint": "f", "page_tokens": 64}

    def register(token: str, engine_id: str) -> None:
        with closing(AgentClient(deck.url, token, engine_id)) as line:
            line.register(said)

    register(first, "e-1")
    register(first, "e-1")
    with pytest.raises(CallFailed, match=r"speaks for engine 'e-1', not for 'e-3'\. Give this host a token"):
        register(first, "e-3")
    with pytest.raises(CallFailed, match="speaks for engine 'e-2'"):
        register(named, "e-1")
    register(named, "e-2")
    with deck.client() as client:
        (bound,) = client.audit(action="bind_token")
        assert (bound["target"], bound["actor"]) == ("e-1", "host-1")


@pytest.mark.parametrize(
    ("url", "token", "said"),
    [
        ("localhost:8410", "t", "must be like http://"),
        ("ftp://host", "t", "must be like http://"),
        ("http://", "t", "must be like http://"),
        ("http://[::1", "t", "is no address"),
        ("http://host", "", "no token for its control plane"),
        ("http://host", "kvd_x\nkvd_y", "copied whole"),
    ],
)
def test_an_address_or_token_that_cannot_be_is_refused_before_anything_starts(url: str, token: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_address(url, token)


def test_the_openapi_has_an_example_on_every_body_that_steers(deck: Deck) -> None:
    with deck.client() as client:
        schemas = client.get("/openapi.json")["components"]["schemas"]
    bodies = ("CommandBody", "PreviewBody", "BatchBody", "BatchPreviewBody", "DesiredBody", "RollbackBody", "TryBody")
    for name in (*bodies, "PlaceBody", "LabelBody"):
        assert schemas[name]["examples"], name
