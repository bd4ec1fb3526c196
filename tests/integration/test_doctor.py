"""The doctor over a real store, on both databases: what its facts are gathered from; and the verb itself."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pytest
from databases import free_port
from ingest_support import ENGINE, LIFE, Spans, counter, histogram, new_store, send, send_points
from steering_support import SmallEngine, running_agent, running_deck, wait_for
from test_api_read import Api
from typer.testing import CliRunner

from controlplane.api.client import Unreachable
from controlplane.auth import Role
from controlplane.cli.exits import Exit
from controlplane.cli.main import app
from controlplane.insight.doctor import examine
from controlplane.insight.doctor_gather import gather
from controlplane.insight.installation import check_installation
from controlplane.settings import Settings
from controlplane.steering import hosts
from controlplane.store.migrate import upgrade
from controlplane.store.models import Command, DesiredState, Engine, LeadershipRow, Policy, PolicyRun, RequestRecord
from controlplane.store.query_types import TimeRange

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
HOUR = TimeRange(NOW - dt.timedelta(hours=1), NOW + dt.timedelta(minutes=1))


@pytest.fixture
def store(database):
    store = new_store(database, ENGINE)
    with store.write() as session:
        session.get(Engine, ENGINE).last_seen_at = NOW
    yield store
    store.dispose()


def facts_of(store):
    settings = Settings(database_url=store.url, data_dir=Path("x"))
    with store.read() as session:
        return gather(session, settings, NOW, HOUR)


def found(store) -> set[str]:
    return {finding.rule for finding in examine(facts_of(store))}


def test_an_engine_that_is_well_has_no_findings(store) -> None:
    assert found(store) == set()
    assert facts_of(store).store.size_bytes > 0


def test_prefixes_made_again_soon_after_their_eviction_are_thrashing(store) -> None:
    spans, life = Spans(), LIFE
    for number in range(24):
        prefix = f"{number:032x}"
        at = NOW - dt.timedelta(minutes=20)
        soon = number < 20
        again = at + dt.timedelta(minutes=2 if soon else 15)
        send(store, spans.transition(1, prefix=prefix, at=at - dt.timedelta(minutes=5), life=life + number), now=NOW)
        send(store, spans.transition(2, "EVICTED", prefix=prefix, at=at, life=life + number, cause="cap"), now=NOW)
        born = int(again.timestamp()) * 1_000_000_000 + number
        send(store, spans.transition(1, prefix=prefix, at=again, life=born), now=NOW)
    (thrash,) = facts_of(store).engines[0].thrash
    assert (thrash.namespace, thrash.evicted, thrash.came_back) == ("tenant-a", 24, 20)
    assert "namespace_thrashing" in found(store)


def test_slow_reads_failed_restores_and_dropped_spans_are_read_from_the_metrics(store) -> None:
    started = NOW - dt.timedelta(minutes=30)

    def heard(at: dt.datetime, ios: list[int], failed: int) -> None:
        send_points(
            store,
            histogram("kvcache.tier.io.duration", ios, at, started, tier="disk", direction="read"),
            counter("kvcache.recoveries", 2 * failed, at, started, tier="disk", outcome="ok"),
            counter("kvcache.recoveries", failed, at, started, tier="disk", outcome="late"),
            counter("kvcache.telemetry.dropped", failed, at, started, record="validation"),
        )

    heard(NOW - dt.timedelta(minutes=10), [0, 0, 0, 0], 0)
    heard(NOW - dt.timedelta(minutes=5), [90, 0, 0, 10], 9)
    engine = facts_of(store).engines[0]
    assert (engine.recoveries, engine.failed_recoveries, engine.dropped_spans) == (27, 9, 9)
    assert engine.io[0].count == 100
    assert {"disk_slow", "restores_failing", "telemetry_dropped"} <= found(store)


def test_a_clock_ahead_a_revision_not_applied_and_an_old_request(store) -> None:
    with store.write() as session:
        said = {"boot_id": session.get(Engine, ENGINE).boot_id, "observed_revision": 0, "observed": {}, "stats": {}}
        hosts.heartbeat(session, ENGINE, now=NOW, sent_at=NOW + dt.timedelta(seconds=30), **said)
        old = NOW - dt.timedelta(minutes=5)
        session.add(DesiredState(document={}, actor="a", reason="r", at=old))
        session.add(
            RequestRecord(
                engine_id=ENGINE, trace_id="1" * 32, span_id="1" * 16, at=NOW - dt.timedelta(days=3), namespace="a",
                outcome="miss", reason="none", mode="normal", prompt_tokens=1, lcp_tokens=0, usable_tokens=0,
                replay_tokens=0, lost={"new_content": 1},
            )
        )  # fmt: skip
    assert facts_of(store).engines[0].clock_ahead_seconds == 30
    assert {"clock_skew", "desired_unobserved", "database_growing"} <= found(store)


def test_commands_and_policies_that_fail(store) -> None:
    with store.write() as session:
        for number, kind in enumerate(("warm", "warm", "warm", "inspect", "foresee")):
            session.add(
                Command(
                    id=f"c{number}", engine_id=ENGINE, kind=kind, arguments={}, idempotency_key=f"k{number}", epoch=0,
                    status="failed", progress={}, outcome={"error": "no such prefix"}, actor="a", reason="r",
                    created_at=NOW, expires_at=NOW,
                )
            )  # fmt: skip
        session.add(
            Policy(name="p", kind="compact", parameters={}, every_seconds=10, memory={}, changed_at=NOW, paused=False)
        )
        session.add(LeadershipRow(epoch=1, holder="h:1", began_at=NOW, seen_at=NOW - dt.timedelta(minutes=2)))
        for minutes, error in ((30, None), (20, "boom"), (10, "boom")):
            at = NOW - dt.timedelta(minutes=minutes)
            session.add(
                PolicyRun(
                    policy="p", engine_id=None, at=at, trigger="schedule", dry_run=False, inputs={}, decision="none",
                    proposed=[], did={}, error=error,
                )
            )  # fmt: skip
    facts = facts_of(store)
    (failed,) = facts.commands
    assert (failed.count, failed.said) == (3, "no such prefix")
    assert facts.policies[-1].failures_in_a_row == 2
    assert {"commands_failed", "policy_failing", "leader_missing"} <= found(store)


def test_however_often_another_engine_fails_this_ones_failures_are_told_with_the_newest(store) -> None:
    def failed(name: str, engine: str, seconds: int, error: str) -> Command:
        at = NOW - dt.timedelta(seconds=seconds)
        return Command(
            id=name, engine_id=engine, kind="evict", arguments={}, idempotency_key=name, epoch=0, status="failed",
            progress={}, outcome={"error": error}, actor="a", reason="r", created_at=at, expires_at=at,
        )  # fmt: skip

    with store.write() as session:
        session.add_all(failed(f"b{number}", "gone", 1, "away") for number in range(1001))
        session.add_all((failed("older", ENGINE, 30, "older"), failed("newer", ENGINE, 20, "newer")))
    (mine,) = facts_of(store).commands
    assert (mine.engine_id, mine.count, mine.said) == (ENGINE, 2, "newer")


def test_the_api_tells_findings_and_refuses_an_engine_it_does_not_know(store) -> None:
    api = Api(store)
    with store.write() as session:
        session.get(Engine, ENGINE).stats = {"wrong_bytes": 3}
        session.get(Engine, ENGINE).last_seen_at = dt.datetime.now(dt.UTC)
    (finding,) = api.get("/v1/doctor", engine=ENGINE).json()["findings"]
    assert (finding["rule"], finding["severity"], finding["evidence"]["wrong_bytes"]) == ("wrong_bytes", "severe", 3)
    assert api.get("/v1/doctor", engine="nobody").status_code == 404


def test_the_verb_ends_with_one_only_when_something_is_severe(tmp_path: Path) -> None:
    run = CliRunner()
    with running_deck(tmp_path) as deck, running_agent(deck.agent(SmallEngine())):
        with deck.client() as client:
            wait_for(client.engines, "the engine")
        base = ["doctor", "--url", deck.url, "--token", deck.tokens[Role.VIEWER]]
        well = run.invoke(app, [*base, "--json"])
        assert well.exit_code == Exit.OK, well.output
        assert json.loads(well.stdout)["engines"] == ["engine-1"]
        with deck.store.write() as session:
            session.add(
                Engine(
                    id="gone", boot_id="b", model="m", fingerprint="f", page_tokens=64, labels={}, registered_at=NOW,
                    last_seen_at=NOW - dt.timedelta(days=1), observed={}, stats={},
                )
            )  # fmt: skip
        bad = run.invoke(app, base)
        assert bad.exit_code == Exit.FAILED
        assert "severe engine_silent on gone" in bad.stdout
        assert run.invoke(app, [*base, "--engine", "engine-1"]).exit_code == Exit.OK


# -- without a deck ----------------------------------------------------------------------------------------------------


def checked(settings: Settings) -> dict[str, object]:
    return {check.name: check.severity and check.severity.word for check in check_installation(settings)}


def a_settings(folder: Path) -> Settings:
    url = f"sqlite:///{folder / 'deck.sqlite3'}"
    return Settings(database_url=url, data_dir=folder, api_port=free_port(), dashboard_port=free_port())


def test_an_installation_that_is_well(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "deck"
    assert {name: word for name, word in checked(a_settings(folder)).items() if name != "gpu"} == {
        "data_dir": None, "disk_space": None, "database": None, "schema": None, "ports": None,
    }  # fmt: skip
    assert not folder.exists()


def test_an_old_schema_a_taken_port_and_a_folder_that_is_a_file(tmp_path: Path) -> None:
    settings = a_settings(tmp_path)
    upgrade(settings.database_url, "0001")
    assert checked(settings)["schema"] == "severe"
    with running_deck(tmp_path / "deck") as deck:
        assert checked(deck.settings)["ports"] == "warning"
    (tmp_path / "file").write_text("")
    assert checked(a_settings(tmp_path / "file"))["database"] == "severe"


def test_a_deck_that_was_named_and_does_not_answer_is_an_error_not_a_check(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", "--url", "http://127.0.0.1:9", "--data-dir", str(tmp_path)])
    assert isinstance(done.exception, Unreachable)
    here = CliRunner().invoke(app, ["doctor", "--installation", "--json", "--data-dir", str(tmp_path)])
    assert {check["name"] for check in json.loads(here.stdout)["checks"]} >= {"data_dir", "schema", "gpu"}
