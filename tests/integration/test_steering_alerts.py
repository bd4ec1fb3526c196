"""Alerts on a real store: what the rules read, pending, firing, resolved, acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alert_support import alert_deck, alive, counted, gauge, later, open_gap, requests, states
from databases import Database
from sqlalchemy import select
from steering_support import ENGINE, NOW, Deck, deed

from controlplane.errors import Conflict
from controlplane.steering.alerts import rules
from controlplane.steering.alerts.health import Health
from controlplane.steering.alerts.readings import CONTROL_PLANE
from controlplane.store.models import (
    Alert,
    Command,
    Engine,
    HistoryGap,
    Policy,
)


@pytest.fixture
def deck(tmp_path: Path, database: Database) -> Iterator[Deck]:
    with alert_deck(tmp_path, database) as running:
        yield running


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
