"""Alerts on a real store: what the rules read, pending, firing, resolved, acknowledged, silenced."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from databases import Database
from sqlalchemy import select
from steering_support import ENGINE, NOW, Deck, add_engine, deed, prefix_id, running_deck

from controlplane.auth import Role
from controlplane.clock import floor_minute, utc_now
from controlplane.errors import BadRequest, Conflict, Forbidden, NotFound
from controlplane.steering import alerts
from controlplane.steering.alerts import rules, silences
from controlplane.steering.alerts.health import Health
from controlplane.steering.alerts.readings import CONTROL_PLANE
from controlplane.store.models import (
    Alert,
    Command,
    Engine,
    HistoryGap,
    MetricRollup,
    MetricSeries,
    Policy,
    RequestRollup,
)


@pytest.fixture
def deck(tmp_path: Path, database: Database) -> Iterator[Deck]:
    with running_deck(tmp_path, database) as running:
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


def test_an_alert_is_pending_then_fires_then_is_over(deck: Deck) -> None:
    gap = open_gap(deck)
    assert states(deck, NOW) == {"history_gaps_open": "pending"}
    assert states(deck, later(seconds=29)) == {"history_gaps_open": "pending"}
    assert states(deck, later(seconds=30)) == {"history_gaps_open": "firing"}
    with deck.client() as client:
        (alert,) = client.alerts(state="firing")
        seen = client.acknowledge(alert["id"], reason="a snapshot is on its way")
        assert (seen["acknowledged_by"], seen["acknowledged_reason"]) == ("test-operator", "a snapshot is on its way")
        assert client.alert(alert["id"])["rule"]["name"] == "history_gaps_open"
    with deck.store.write() as session:
        session.get(HistoryGap, gap).closed_at = NOW
    assert states(deck, later(seconds=40)) == {"history_gaps_open": "resolved"}
    with deck.client() as client, pytest.raises(Conflict, match="already over"):
        client.acknowledge(alert["id"])


def test_what_clears_before_it_fires_leaves_nothing(deck: Deck) -> None:
    gauge(deck, NOW, "kvcache.fragmentation", "class=all", 0.8)
    gauge(deck, NOW, "kvcache.fragmentation", "class=tail", 0.9)
    assert states(deck, NOW) == {"fragmentation_high": "pending"}
    gauge(deck, later(seconds=5), "kvcache.fragmentation", "class=all", 0.3)
    assert states(deck, later(seconds=5)) == {}


def test_a_silent_engine_raises_an_alert_but_not_while_a_restarted_deck_gathers(deck: Deck) -> None:
    alive(deck, NOW)
    assert states(deck, later(seconds=15)) == {}
    assert states(deck, later(seconds=16)) == {"engine_silent": "pending"}
    assert states(deck, later(seconds=31)) == {"engine_silent": "firing"}


def test_an_engine_that_said_goodbye_is_not_silent(deck: Deck) -> None:
    alive(deck, NOW)
    states(deck, later(seconds=16))
    assert states(deck, later(seconds=31)) == {"engine_silent": "firing"}
    with deck.store.write() as session:
        session.get(Engine, ENGINE).left_at = later(seconds=32)
    assert states(deck, later(seconds=36)) == {"engine_silent": "resolved"}


def test_failing_recoveries_fire_hold_between_the_limits_and_resolve(deck: Deck) -> None:
    failed, well = "outcome=failed,tier=disk", "outcome=ok,tier=disk"
    counted(deck, NOW, "kvcache.recoveries", failed, 9)
    counted(deck, NOW, "kvcache.recoveries", well, 1)
    assert states(deck, later(seconds=5)) == {"recovery_failure_rate": "pending"}
    alive(deck, later(seconds=20))
    assert states(deck, later(seconds=25)) == {"recovery_failure_rate": "firing"}
    counted(deck, later(seconds=30), "kvcache.recoveries", well, 90)
    assert states(deck, later(seconds=31)) == {"recovery_failure_rate": "firing"}, "9 % is between 5 and 20"
    alive(deck, later(minutes=4))
    assert states(deck, later(minutes=4)) == {"recovery_failure_rate": "resolved"}, "nothing is tried any more"


def test_a_handful_of_recoveries_says_nothing(deck: Deck) -> None:
    counted(deck, NOW, "kvcache.recoveries", "outcome=failed,tier=disk", 4)
    assert states(deck, NOW) == {}


def test_breaker_stuck_calls_and_dropped_telemetry_fire(deck: Deck) -> None:
    gauge(deck, NOW, "kvcache.tier.breaker", "tier=disk", 2)
    gauge(deck, NOW, "kvcache.tier.stuck", "tier=disk", 3)
    counted(deck, NOW, "kvcache.telemetry.dropped", "record=validation", 7)
    assert states(deck, NOW) == {
        "device_calls_stuck": "pending",
        "disk_breaker_open": "firing",
        "telemetry_dropped": "firing",
    }
    gauge(deck, later(seconds=30), "kvcache.tier.breaker", "tier=disk", 1)
    gauge(deck, later(seconds=30), "kvcache.tier.stuck", "tier=disk", 3)
    seen = states(deck, later(seconds=30))
    assert (seen["disk_breaker_open"], seen["device_calls_stuck"]) == ("firing", "firing"), "half open is not closed"
    gauge(deck, later(seconds=40), "kvcache.tier.breaker", "tier=disk", 0)
    assert states(deck, later(seconds=40))["disk_breaker_open"] == "resolved"


def test_a_gauge_not_heard_of_says_nothing(deck: Deck) -> None:
    gauge(deck, NOW, "kvcache.tier.breaker", "tier=disk", 2)
    states(deck, NOW)
    alive(deck, later(minutes=5))
    assert states(deck, later(minutes=5))["disk_breaker_open"] == "firing"


def test_quarantine_that_grows_fires_and_one_that_stands_does_not(deck: Deck) -> None:
    gauge(deck, later(minutes=-20), "kvcache.prefixes", "state=QUARANTINED", 2)
    for minutes in range(-15, 1):
        gauge(deck, later(minutes=minutes), "kvcache.prefixes", "state=QUARANTINED", 2)
    assert states(deck, NOW) == {}
    gauge(deck, later(seconds=10), "kvcache.prefixes", "state=QUARANTINED", 3)
    assert states(deck, later(seconds=10)) == {"quarantine_growing": "firing"}


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


def test_a_hit_rate_far_below_its_own_past_fires(deck: Deck) -> None:
    for minute in range(12, 70):
        requests(deck, later(minutes=-minute), prompt=1000, usable=600)
    requests(deck, later(minutes=-2), prompt=1000, usable=300)
    alive(deck, NOW)
    assert states(deck, NOW) == {"hit_rate_drop": "pending"}
    requests(deck, later(minutes=1), prompt=1000, usable=300)
    alive(deck, later(seconds=120))
    assert states(deck, later(seconds=121)) == {"hit_rate_drop": "firing"}
    with deck.store.read() as session:
        assert session.scalars(select(Alert)).one().value == pytest.approx(0.3)


def test_a_rule_of_one_namespace_looks_at_no_other(deck: Deck) -> None:
    with deck.store.write() as session:
        rules.change(session, deed(), "hit_rate_drop", {"scope": {"namespace": "tenant-a"}, "for_seconds": 0})
    for minute in range(12, 70):
        requests(deck, later(minutes=-minute), prompt=1000, usable=600)
        requests(deck, later(minutes=-minute), prompt=1000, usable=600, namespace="tenant-a")
    requests(deck, later(minutes=-2), prompt=1000, usable=0)
    requests(deck, later(minutes=-2), prompt=1000, usable=600, namespace="tenant-a")
    alive(deck, NOW)
    assert states(deck, NOW) == {}


def test_commits_refused_for_want_of_room_fire_others_do_not(deck: Deck) -> None:
    counted(deck, NOW, "kvcache.commits", "outcome=admitted,reason=ok", 50)
    counted(deck, NOW, "kvcache.commits", "outcome=refused,reason=second_touch", 40)
    assert states(deck, NOW) == {}
    counted(deck, NOW, "kvcache.commits", "outcome=refused,reason=over_prefix_cap", 60)
    assert states(deck, NOW) == {"caps_refusing": "pending"}


def test_failed_commands_and_failing_policies_fire(deck: Deck) -> None:
    alive(deck, NOW)
    with deck.store.write() as session:
        for number in range(3):
            session.add(
                Command(
                    id=f"c-{number}",
                    engine_id=ENGINE,
                    kind="evict",
                    arguments={},
                    idempotency_key=f"k-{number}",
                    epoch=1,
                    status="failed",
                    progress={},
                    outcome={},
                    actor="a",
                    reason="r",
                    created_at=NOW,
                    expires_at=NOW,
                    finished_at=NOW,
                )
            )
        failed = {"recorded": {"decision": "failed", "at": 0}}
        session.add(
            Policy(
                name="p",
                kind="scrub",
                parameters={},
                every_seconds=1,
                memory={ENGINE: failed, "(policy)": failed},
                changed_at=NOW,
            )
        )
    assert states(deck, NOW) == {"commands_failing": "firing", "policy_broken": "firing", "policy_failing": "firing"}
    with deck.store.read() as session:
        broken = session.scalars(select(Alert).where(Alert.rule == "policy_broken")).one()
    assert broken.engine_id == CONTROL_PLANE


def test_a_database_that_refused_or_was_slow_is_told_afterwards(deck: Deck) -> None:
    alive(deck, NOW)
    health = Health()
    health.note(NOW, 0.1, failed=True)
    health.note(NOW, 3.0)
    assert states(deck, NOW, health) == {"database_failing": "firing", "database_slow": "pending"}
    alive(deck, later(minutes=6))
    assert states(deck, later(minutes=6), health) == {"database_failing": "resolved"}


def test_metrics_that_stay_away_while_the_engine_speaks_are_late(deck: Deck) -> None:
    gauge(deck, NOW, "kvcache.leases", "", 1)
    alive(deck, later(seconds=31))
    assert states(deck, later(seconds=31)) == {"telemetry_late": "pending"}


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


def test_a_silence_keeps_quiet_is_seen_and_ends(deck: Deck) -> None:
    open_gap(deck)
    until = utc_now() + dt.timedelta(hours=1)
    with deck.client() as client:
        made = client.silence({"rule": "history_*", "engine": ENGINE}, until=until.isoformat(), reason="moving")
        assert made["holds"]
    at = utc_now()
    alive(deck, at)
    with deck.store.write() as session:
        alerts.evaluate(session, at)
        session.get(Engine, ENGINE).last_seen_at = at + dt.timedelta(seconds=31)
        alerts.evaluate(session, at + dt.timedelta(seconds=31))
        alert = session.scalars(select(Alert)).one()
        assert (alert.state, alert.silence_id, alert.notified_at) == ("firing", made["id"], None)
    with deck.client() as client:
        assert not client.unsilence(made["id"], reason="moved")["holds"]
        assert client.silences() == []
        assert client.silences(everything=True)[0]["removed_by"] == "test-operator"
        with pytest.raises(Conflict, match="already over"):
            client.unsilence(made["id"], reason="again")
    with deck.store.write() as session:
        alerts.evaluate(session, at + dt.timedelta(seconds=32))
        alert = session.scalars(select(Alert)).one()
        assert (alert.silence_id, alert.notified_at) == (None, at + dt.timedelta(seconds=32))


def test_a_silence_of_another_group_or_namespace_does_not_match(deck: Deck) -> None:
    facets = silences.Facets(rule="engine_silent", engine=ENGINE, group="chat", namespace="")
    assert silences.matches({"group": "ch*"}, facets)
    assert not silences.matches({"group": "batch"}, facets)
    assert not silences.matches({"rule": "engine_silent", "namespace": "tenant-a"}, facets)


@pytest.mark.parametrize(
    ("matchers", "hours", "said"),
    [({}, 1, "needs a matcher"), ({"rule": "x"}, -1, "until must lie"), ({"rule": "x"}, 24 * 40, "until must lie")],
)
def test_a_silence_that_cannot_be_is_refused(deck: Deck, matchers: dict[str, str], hours: int, said: str) -> None:
    until = (utc_now() + dt.timedelta(hours=hours)).isoformat()
    with deck.client() as client, pytest.raises(BadRequest, match=said):
        client.silence(matchers, until=until, reason="r")


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
