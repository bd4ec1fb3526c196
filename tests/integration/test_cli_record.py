"""The verbs that read the record, over a control plane with some of everything."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator

import pytest
from api_seed import ENGINE, TRACE_ID, Seed
from databases import Databases
from steering_support import Deck, prefix_id, running_deck
from test_cli_bad_input import Ended, kvdeck  # noqa: F401  # a fixture

from controlplane.auth import Role
from controlplane.clock import utc_now
from controlplane.store.models import Audit

Run = Callable[..., Ended]


@pytest.fixture
def deck(tmp_path, databases: Databases) -> Iterator[Deck]:
    with running_deck(tmp_path / "deck", databases.new("sqlite")) as running:
        Seed(running)
        yield running


@pytest.fixture
def run(deck: Deck, kvdeck) -> Run:  # noqa: F811
    """A verb as a viewer: none of these needs more."""
    return lambda *words: kvdeck(*words, "--url", deck.url, "--token", deck.tokens[Role.VIEWER])


def read(run: Run, *words: str):
    ended = run(*words, "--json")
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def test_the_audit_is_read_whole_page_by_page_while_it_grows(deck, run) -> None:
    long_ago = utc_now() - dt.timedelta(days=2)

    def row(number: int) -> Audit:
        return Audit(at=long_ago, actor="ann", role="operator", action="evict", target=f"p-{number}", reason="r")

    with deck.store.write() as session:
        session.add_all(row(number) for number in range(2500))
    rows = read(run, "audit", "--limit", "100000")
    ids = [row["id"] for row in rows]
    assert ids == sorted(ids, reverse=True)
    assert len(set(ids)) == len(ids) == 2500 + len(read(run, "audit", "--since", "1h", "--limit", "100000"))
    assert [row["target"] for row in read(run, "audit", "--actor", "ann", "--target", "p-249", "--limit", "11")] == [
        *(f"p-{number}" for number in range(2499, 2489, -1)), "p-249"]  # fmt: skip
    with deck.client(Role.VIEWER) as client:
        first = client.audit(actor="ann", limit=1000)
        with deck.store.write() as session:
            session.add(row(9999))  # while somebody reads: it is newer than every page
        second = client.audit(actor="ann", limit=1000, before=first[-1]["id"])
    assert [row["target"] for row in (first[-1], second[0])] == ["p-1500", "p-1499"]


def test_the_audit_by_trace_and_action_says_what_changed(run) -> None:
    rows = read(run, "audit", "--trace", TRACE_ID, "--action", "set_desired")
    assert [row["action"] for row in rows] == ["set_desired"]
    assert "cap_prefixes" in run("audit", "--action", "set_desired").out
    assert read(run, "audit", "--trace", "0" * 32) == []
    assert "none" in run("audit", "--actor", "nobody").out


def test_what_failed_and_what_is_damaged_is_named_with_its_trace(run) -> None:
    found = read(run, "failures")
    assert [(row["validation"], row["reason"]) for row in found["failures"]] == [("tail_intact", "window_stale")]
    assert {row["verdict"] for row in found["counts"]} == {"pass", "fail"}
    assert "window_stale" in run("failures", "--validation", "tail_intact").out
    assert "Failures, newest first: none" in run("failures", "--validation", "disk_reloaded").out
    (damaged,) = read(run, "damaged", "--engine", ENGINE)
    assert damaged["prefix"]["prefix_id"] == prefix_id(3)
    assert prefix_id(3)[:16] in run("damaged").out


def test_changes_and_series_over_time(run) -> None:
    kinds = {mark["kind"] for mark in read(run, "marks", "--since", "15m")}
    assert {"desired", "quarantine", "alert"} <= kinds
    assert "revision" in run("marks").out
    found = read(run, "series", "requests")
    assert sum(point["value"] for point in found["points"]) == 1
    shown = run("series", "usable_and_lcp", "--since", "15m").out
    assert "usable_and_lcp, share" in shown
    assert "lcp" in shown
    assert "usable" in shown
    unknown = run("series", "nothing_like_it")
    assert unknown.code != 0
    assert "hit_rate_by_kind" in unknown.err


def test_status_says_how_the_last_hour_went(run) -> None:
    shown = " ".join(run("status").out.split())
    assert "Last hour: 1 request, of the tokens lcp" in shown
    assert "recoveries failed" in shown


def test_the_next_page_of_prefixes_goes_on_where_the_first_ended(run) -> None:
    first, second = (read(run, "prefixes", "--order", "id", "--limit", "1", "--offset", n)["rows"] for n in "01")
    assert first[0]["prefix_id"] < second[0]["prefix_id"]
    assert "(2-2 of 3)" in run("prefixes", "--order", "id", "--limit", "1", "--offset", "1").out
    assert "wasted" in run("prefixes", "--order", "sideways").err
