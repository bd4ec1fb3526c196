"""Where prompt tokens went, from the span to the table: the sums agree at every step, and each cause has its advice."""

from __future__ import annotations

import datetime as dt
import re
import time

import pytest
from ingest_support import ENGINE, NOW, PREFIX, Spans, new_store, send
from live_support import live_engine, prompt
from steering_support import running_deck
from test_api_read import Api
from typer.main import get_command

from controlplane.cli.main import app
from controlplane.insight.whymiss import ADVICE, MEANINGS, why_in_window, why_of
from controlplane.store.queries_losses import list_requests, loss_minutes
from controlplane.store.query_types import TimeRange
from engine import CommandRequest
from engine.schedule.losses import LOSSES

HOUR = TimeRange(NOW - dt.timedelta(hours=1), NOW + dt.timedelta(hours=1))


@pytest.fixture
def store(database):
    store = new_store(database, ENGINE, "engine-2")
    yield store
    store.dispose()


def acquire(spans: Spans, prompt: int, usable: int, at: dt.datetime = NOW, namespace: str = "a", **lost: int):
    fields = {
        "prompt_tokens": prompt,
        "lcp_tokens": usable,
        "usable_tokens": usable,
        "outcome": "partial",
        "namespace": namespace,
    }
    return spans.span("kvcache.acquire", {f"kvcache.{k}": v for k, v in fields.items()}
                      | {f"kvcache.lost.{k.replace('__', '.')}": v for k, v in lost.items()}, at)  # fmt: skip


def test_causes_and_usable_tokens_are_the_prompts_by_engine_namespace_and_minute(store) -> None:
    one, two = Spans(), Spans("engine-2")
    later = NOW + dt.timedelta(minutes=3)
    send(store, acquire(one, 1000, 300, evicted_cap=500, new_content=200), acquire(one, 100, 0, later, new_content=100))
    send(store, acquire(one, 50, 50), acquire(one, 10, 0, namespace="b", mode=10), acquire(two, 7, 0, new_content=7))
    with store.read() as session:
        every = why_in_window(session, HOUR)
        of_a = why_in_window(session, HOUR, ENGINE, "a")
        minutes = loss_minutes(session, HOUR, ENGINE, "a")
    assert (every.requests, every.prompt_tokens, every.usable_tokens) == (5, 1167, 350)
    assert {row.cause: row.tokens for row in every.rows} == {"evicted_cap": 500, "new_content": 307, "mode": 10}
    for why in (every, of_a):
        assert why.usable_tokens + sum(row.tokens for row in why.rows) == why.prompt_tokens
        assert sum(row.share for row in why.rows) == pytest.approx(1 - why.usable_tokens / why.prompt_tokens)
    assert [row.cause for row in every.rows] == ["evicted_cap", "new_content", "mode"]
    assert [(row.cause, row.tokens, row.requests) for row in minutes if row.minute > NOW] == [("new_content", 100, 1)]


def test_a_span_sent_twice_is_counted_and_kept_once(store) -> None:
    span = acquire(Spans(), 100, 0, new_content=100)
    send(store, span)
    send(store, span)
    with store.read() as session:
        assert [row.tokens for row in why_in_window(session, HOUR).rows] == [100]
        assert len(list_requests(session, HOUR)) == 1


def test_an_engine_that_tells_no_causes_loses_its_tokens_to_the_unknown(store) -> None:
    send(store, acquire(Spans(), 100, 40))
    with store.read() as session:
        (row,) = why_in_window(session, HOUR).rows
    assert (row.cause, row.tokens) == ("unknown", 60)


def test_causes_that_are_more_than_was_lost_are_refused_and_cost_no_other_span(store) -> None:
    spans = Spans()
    outcome = send(store, acquire(spans, 100, 40, new_content=61), acquire(spans, 5, 5))
    assert outcome.accepted == 1
    assert "add up to 61 tokens, of 60" in next(iter(outcome.rejected))


def test_a_trace_and_a_prefix_that_left_lead_to_their_requests(store, database) -> None:
    spans = Spans()
    at = dt.datetime.now(dt.UTC)
    send(store, acquire(spans, 100, 0, at, evicted_command=100, prefix__id=PREFIX), acquire(spans, 9, 9, at), now=at)
    with store.read() as session:
        (missed,) = list_requests(session, lost_prefix_id=PREFIX)
    assert missed.lost == {"evicted_command": 100}
    api = Api(store)
    answer = api.get("/v1/requests", trace=missed.trace_id)
    assert answer.json()["why"]["rows"][0]["cause"] == "evicted_command"
    assert answer.json()["requests"][0]["lost_prefix_id"] == PREFIX
    assert api.get("/v1/requests", lost_prefix=PREFIX).json()["why"]["requests"] == 1
    assert api.get("/v1/requests", limit=1).json()["capped"] is True
    unknown = api.get("/v1/requests", trace="f" * 32)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "trace_unknown")
    assert api.get("/v1/requests", trace="no").status_code in (400, 422)
    assert api.get("/v1/losses", minutes=60).json()["usable_tokens"] == 9


def test_every_cause_is_explained_and_its_advice_names_commands_that_there_are() -> None:
    assert MEANINGS.keys() == ADVICE.keys() == {*LOSSES, "unknown"}
    for text in ADVICE.values():
        assert_commands_exist(text)


def assert_commands_exist(text: str) -> None:
    verbs = get_command(app).commands
    for line in re.findall(r"`kvdeck ([^`]+)`", text):
        words = line.split()
        verb = verbs[words[0]]
        if hasattr(verb, "commands") and len(words) > 1:
            verb = verb.commands[words[1]]
        options = {name for parameter in verb.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, line


def test_a_live_engine_s_losses_arrive_whole(tmp_path, database) -> None:
    with running_deck(tmp_path / "deck", database) as deck, live_engine(deck, tmp_path / "engine") as live:
        first = prompt(1)
        live.serve(first)
        live.serve(first)
        ids = [row["prefix.id"] for row in live.engine.snapshot()]
        live.engine.execute(CommandRequest(id="c", kind="evict", arguments={"prefix_ids": ids}))
        lease = live.serve(first)
        counters = live.engine.counters()
        live.engine.flush_telemetry()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with deck.store.read() as session:
                found = list_requests(session, trace_id=lease.explanation.trace_id)
                total = list_requests(session)
            if found and len(total) == 3:
                break
            time.sleep(0.1)
        why = why_of(total)
        assert {row.cause: row.tokens for row in why.rows} == dict(counters.lost)
        assert found[0].lost.keys() & {"evicted_command"}
        assert found[0].lost_prefix_id in ids
        assert why.usable_tokens == counters.usable_tokens
