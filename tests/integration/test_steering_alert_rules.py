"""The rules of alerts on a real store: disabled, added, narrowed to an engine, changed, removed, refused; who may."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alert_support import alert_deck, alive, gauge, later, open_gap, states
from databases import Database
from steering_support import NOW, Deck, add_engine

from controlplane.auth import Role
from controlplane.clock import utc_now
from controlplane.errors import BadRequest, Conflict, Forbidden, NotFound
from controlplane.steering.alerts import rules


@pytest.fixture
def deck(tmp_path: Path, database: Database) -> Iterator[Deck]:
    with alert_deck(tmp_path, database) as running:
        yield running


def test_a_disabled_rule_ends_its_alerts(deck: Deck) -> None:
    open_gap(deck)
    states(deck, NOW)
    assert states(deck, later(seconds=30)) == {"history_gaps_open": "firing"}
    with deck.client() as client:
        client.change_rule("history_gaps_open", reason="being looked at", enabled=False)
    assert states(deck, later(seconds=31)) == {"history_gaps_open": "resolved"}


def test_a_rule_can_be_added_scoped_changed_and_removed(deck: Deck) -> None:
    add_engine(deck, utc_now(), "engine-2")
    alive(deck, NOW, "engine-2")
    gauge(deck, NOW, "kvcache.leases", "", 50)
    with deck.client() as client:
        made = client.add_rule(
            "many_leases",
            kind="gauge",
            title="Many leases",
            parameters={"metric": "kvcache.leases", "unit": "leases"},
            above=40,
            resolve_at=20,
            severity="info",
            scope={"engine": "engine-2"},
            reason="try",
        )
        assert made["runbook"] == "docs/howto/runbook.md#many_leases"
        assert states(deck, NOW) == {}, "the rule is of another engine"
        client.change_rule("many_leases", reason="both", scope={})
        assert states(deck, NOW) == {"many_leases": "firing"}
        client.remove_rule("many_leases", reason="done")
        assert states(deck, NOW) == {"many_leases": "resolved"}
        with pytest.raises(NotFound):
            client.rule("many_leases")
        with pytest.raises(Conflict, match="Disable it"):
            client.remove_rule("engine_silent", reason="no")
        actions = {row["action"] for row in client.audit()}
    assert {"create_alert_rule", "change_alert_rule", "remove_alert_rule"} <= actions


RULE: dict[str, Any] = {"kind": "growth", "title": "T", "above": 1, "resolve_at": 0, "reason": "r"}


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("Bad Name", {}, "the name must be"),
        ("x", {"kind": "guess"}, "no kind of rule"),
        ("x", {"parameters": {"metric": "cpu"}}, "name of a metric"),
        ("x", {"parameters": {"window_seconds": 5}}, "60 to 86,400 seconds"),
        ("x", {"parameters": {"where": {"tier": 5}}}, "'tier' has 5"),
        ("x", {"parameters": {"windw": 5}}, "windw is no parameter"),
        ("x", {"resolve_at": 2}, "must not lie over above"),
        ("x", {"for_seconds": -1}, "for_seconds must be"),
        ("x", {"severity": "dire"}, "severity"),
        ("x", {"scope": {"namespace": "a"}}, "cannot be narrowed to a namespace"),
        ("x", {"scope": {"engine": "a", "group": "b"}}, "both given"),
        ("x", {"colour": "red"}, "colour"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_with_the_reason(
    deck: Deck, name: str, change: dict[str, Any], said: str
) -> None:
    with deck.client() as client, pytest.raises(BadRequest, match=said):
        client.add_rule(name, **(RULE | change))


def test_viewers_neither_silence_nor_change_rules(deck: Deck) -> None:
    until = (utc_now() + dt.timedelta(hours=1)).isoformat()
    with deck.client(Role.VIEWER) as client:
        for write in (
            lambda: client.silence({"rule": "x"}, until=until, reason="r"),
            lambda: client.unsilence(1, reason="r"),
            lambda: client.change_rule("engine_silent", reason="r", enabled=False),
            lambda: client.remove_rule("engine_silent", reason="r"),
            lambda: client.add_rule("x", **RULE),
        ):
            with pytest.raises(Forbidden):
                write()
        assert len(client.rules()) == len(rules.DEFAULT_RULES)
