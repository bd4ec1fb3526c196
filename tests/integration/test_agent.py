"""The agent against a real control plane: settings down, commands down, outcomes up, and every kind of outage."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from databases import Database
from sqlalchemy import select
from steering_support import ENGINE, Deck, SmallEngine, prefix_id, running_agent, running_deck, wait_for

from controlplane.auth import Role
from controlplane.clock import utc_now
from controlplane.errors import Conflict, NotFound
from controlplane.host.client import AgentClient, CallFailed
from controlplane.host.keepsake import Keepsake
from controlplane.host.work import CommandWorker
from controlplane.steering.commands import Draft, submit
from controlplane.steering.deed import Deed, policy_principal
from controlplane.steering.leader import begin_epoch
from controlplane.store.models import Command, Engine, Prefix


@pytest.fixture
def deck(tmp_path: Path, database: Database) -> Iterator[Deck]:
    with running_deck(tmp_path, database) as running:
        yield running


def ended(deck: Deck, command_id: str) -> dict[str, object]:
    def look() -> dict[str, object] | None:
        command = client.command(command_id)
        return command if command["status"] not in ("pending", "delivered", "running") else None

    with deck.client() as client:
        found: dict[str, object] = wait_for(look, "the outcome")
        return found


def registered(deck: Deck, engine_id: str = "engine-1") -> Engine | None:
    with deck.store.read() as session:
        return session.get(Engine, engine_id)


def send(deck: Deck, kind: str = "evict", *, expires: int = 300, **arguments: object) -> str:
    arguments = arguments or {"prefix_ids": [prefix_id(1)]}
    with deck.client() as client:
        return str(client.submit("engine-1", kind, arguments, reason="test", expires_seconds=expires)["id"])


def test_registers_and_hands_its_snapshot_in(deck: Deck) -> None:
    with running_agent(deck.agent(SmallEngine(prefixes=5))):
        wait_for(lambda: (e := registered(deck)) and not e.snapshot_wanted, "the snapshot")
        with deck.store.read() as session:
            assert len(session.scalars(select(Prefix)).all()) == 5


def test_applies_desired_state_and_says_so(deck: Deck) -> None:
    engine = SmallEngine()
    with running_agent(deck.agent(engine)), deck.client() as client:
        wait_for(lambda: registered(deck), "the engine")
        revision = client.set_desired({"cap_prefixes": 7}, reason="less")["revision"]
        seen = wait_for(lambda: (e := registered(deck)) and e.observed_revision == revision and e, "the revision")
        assert seen.observed["cap_prefixes"] == 7
        assert engine.settings["cap_prefixes"] == 7


def test_reports_what_the_engine_refuses_and_recovers_from_it(deck: Deck) -> None:
    with running_agent(deck.agent(SmallEngine())), deck.client() as client:
        wait_for(lambda: registered(deck), "the engine")
        client.set_desired({"cap_prefixes": 1}, reason="too little")
        refused = wait_for(lambda: (e := registered(deck)) and e.observed.get("error") and e, "the refusal")
        assert "unpin them first" in refused.observed["error"]
        assert refused.observed["cap_prefixes"] is None
        client.set_desired({"cap_prefixes": 3}, reason="better")
        wait_for(lambda: (e := registered(deck)) and e.observed["cap_prefixes"] == 3, "the good revision")
        assert registered(deck).observed["error"] is None


def test_runs_a_command_and_posts_its_outcome(deck: Deck) -> None:
    engine = SmallEngine()
    with running_agent(deck.agent(engine)), deck.client() as client:
        wait_for(lambda: registered(deck), "the engine")
        trace = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
        sent = client.submit("engine-1", "evict", {"prefix_ids": [prefix_id(1)]}, reason="test", traceparent=trace)
        done = ended(deck, sent["id"])
    assert done["status"] == "succeeded"
    assert done["outcome"] == {"evicted": [prefix_id(1)], "bytes": 0, "refused": []}
    assert engine.executed[0].traceparent == trace
    assert engine.executed[0].actor == "test-operator"
    assert prefix_id(1) not in engine.versions


@pytest.mark.parametrize(("kind", "code"), [("scrub", "engine"), ("compact", "internal")])
def test_a_command_that_fails_says_why_and_the_agent_lives_on(deck: Deck, kind: str, code: str) -> None:
    with running_agent(deck.agent(SmallEngine())):
        wait_for(lambda: registered(deck), "the engine")
        argument = {"scrub": "max_bytes", "compact": "max_pages"}[kind]
        failed = ended(deck, send(deck, kind, **{argument: 1}))
        assert (failed["status"], failed["outcome"]["code"]) == ("failed", code)
        assert ended(deck, send(deck))["status"] == "succeeded"


def test_shows_progress_while_a_command_runs(deck: Deck) -> None:
    engine = SmallEngine()
    engine.hold.clear()
    with running_agent(deck.agent(engine)), deck.client() as client:
        wait_for(lambda: registered(deck), "the engine")
        command = send(deck)
        running = wait_for(
            lambda: (c := client.command(command))["status"] == "running" and c["progress"] and c, "progress"
        )
        assert running["progress"] == {"done": 0}
        engine.hold.set()
        assert ended(deck, command)["status"] == "succeeded"
        with pytest.raises(Conflict, match="is succeeded and cannot become cancelled"):
            client.cancel(command, reason="too late")


def test_a_running_command_is_cancelled_and_stops_where_the_engine_is(deck: Deck) -> None:
    engine = SmallEngine()
    engine.hold.clear()
    with running_agent(deck.agent(engine)) as agent, deck.client() as client:
        wait_for(lambda: registered(deck), "the engine")
        running, queued = send(deck), send(deck)
        wait_for(lambda: client.command(running)["status"] == "running", "the first to run")
        wait_for(lambda: client.command(queued)["status"] == "delivered", "the second to wait in the agent")
        for command in (running, queued):
            asked = client.cancel(command, reason="not needed")
            assert asked["cancel_requested_at"]
            assert asked["status"] in ("running", "delivered")
        wait_for(lambda: {running, queued} <= agent._worker._unwanted, "the agent to be told of both")
        assert engine.executed[0].cancelled()
        engine.hold.set()
        assert ended(deck, running)["status"] == "cancelled"
        assert ended(deck, queued)["outcome"]["reason"] == "cancelled before the engine came to it"
        assert len(engine.executed) == 1
        with pytest.raises(Conflict, match="is cancelled"):
            client.cancel(running, reason="again")


def test_a_command_cancelled_while_its_agent_was_away_is_never_run(deck: Deck) -> None:
    engine = SmallEngine()
    engine.hold.clear()
    with running_agent(deck.agent(engine)), deck.client() as client:
        wait_for(lambda: registered(deck), "the engine")
        command = send(deck)
        wait_for(lambda: client.command(command)["status"] == "running", "the command to run")
    with deck.client() as client:
        client.cancel(command, reason="its engine stopped")
    engine.hold.set()
    again = SmallEngine(boot_id="boot-2")
    with running_agent(deck.agent(again, deck.folder / "another disk")):
        assert ended(deck, command)["status"] in ("cancelled", "succeeded")
    assert again.executed == []


def test_an_engine_that_stops_says_goodbye_and_is_back_when_it_registers(deck: Deck) -> None:
    with running_agent(deck.agent(SmallEngine())), deck.client() as client:
        wait_for(lambda: registered(deck), "the engine")
        assert client.engines()[0]["health"] == "live"
    with deck.client() as client:
        assert client.engines()[0]["health"] == "left"
        with pytest.raises(Conflict, match="said goodbye"):
            client.submit(ENGINE, "unpin", {"prefix_ids": [prefix_id(1)]}, reason="nobody is there")
        with running_agent(deck.agent(SmallEngine(boot_id="boot-2"))):
            wait_for(lambda: client.engines()[0]["health"] == "live", "the engine to be back")
            with pytest.raises(Conflict, match=r"spoke \d+ s ago"):
                client._post(f"/v1/engines/{ENGINE}/forget", {"reason": "too early"})
        client._post(f"/v1/engines/{ENGINE}/forget", {"reason": "it is gone for good"})
        assert client.engines() == []
        with pytest.raises(NotFound, match="no engine 'engine-1'"):
            client.submit(ENGINE, "unpin", {"prefix_ids": [prefix_id(1)]}, reason="nobody is there")
        with running_agent(deck.agent(SmallEngine(boot_id="boot-3"))):
            wait_for(lambda: client.engines(), "the engine to be listed again")


def test_the_engine_keeps_its_last_settings_without_a_control_plane(deck: Deck) -> None:
    with running_agent(deck.agent(SmallEngine())), deck.client() as client:
        wait_for(lambda: registered(deck), "the engine")
        client.set_desired({"cap_prefixes": 5}, reason="keep")
        wait_for(lambda: registered(deck).observed.get("cap_prefixes") == 5, "the revision")
    deck.stop()
    restarted = SmallEngine(boot_id="boot-2")
    with running_agent(deck.agent(restarted)):
        assert restarted.settings["cap_prefixes"] == 5
        wait_for(lambda: restarted.ticks > 3, "housekeeping during the outage")


def test_a_mode_whose_hold_ended_meanwhile_is_not_brought_back(tmp_path: Path, deck: Deck) -> None:
    folder = tmp_path / "engine-1"
    folder.mkdir()
    past = (utc_now() - dt.timedelta(minutes=1)).isoformat()
    kept = {"desired": {"mode": "bypass", "mode_expires_at": past, "cap_prefixes": 5}, "revision": 3}
    (folder / "agent.json").write_text(json.dumps(kept))
    deck.stop()
    engine = SmallEngine()
    with running_agent(deck.agent(engine)):
        assert engine.settings == {"mode": "normal", "cap_prefixes": 5}


def test_an_outcome_outlives_an_outage_of_the_control_plane(deck: Deck) -> None:
    engine = SmallEngine()
    engine.hold.clear()
    with running_agent(deck.agent(engine)):
        wait_for(lambda: registered(deck), "the engine")
        command = send(deck)
        wait_for(lambda: engine.executed, "the command to run")
        deck.stop()
        engine.hold.set()
        wait_for(lambda: prefix_id(1) not in engine.versions, "the eviction")
        deck.start()
        assert ended(deck, command)["status"] == "succeeded"
    assert len(engine.executed) == 1


def test_a_command_whose_outcome_is_known_is_not_run_again(tmp_path: Path, deck: Deck) -> None:
    first = SmallEngine()
    with running_agent(deck.agent(first)):
        wait_for(lambda: registered(deck), "the engine")
        command = send(deck)
        ended(deck, command)
    with deck.store.write() as session:  # as if the outcome had never arrived
        row = session.get(Command, command)
        row.status, row.finished_at, row.outcome = "delivered", None, {}
        row.delivered_at = utc_now() - dt.timedelta(minutes=1)
    second = SmallEngine(boot_id="boot-2")
    with running_agent(deck.agent(second)):
        assert ended(deck, command)["status"] == "succeeded"
    assert second.executed == []


def test_a_command_of_an_older_leader_is_refused(deck: Deck) -> None:
    engine = SmallEngine()
    with deck.store.write() as session:
        begin_epoch(session)
    with running_agent(deck.agent(engine)):
        wait_for(lambda: registered(deck), "the engine")
        assert ended(deck, send(deck))["status"] == "succeeded"
        with deck.store.write() as session:
            begin_epoch(session)
        wait_for(lambda: json.loads((deck.folder / "engine-1" / "agent.json").read_text())["epoch"] == 2, "epoch 2")
        with deck.store.write() as session:
            draft = Draft(engine_id="engine-1", kind="evict", arguments={"prefix_ids": [prefix_id(2)]}, epoch=1)
            late = submit(session, Deed(principal=policy_principal("warm-up"), reason="late"), draft).id
        refused = ended(deck, late)
    assert refused["status"] == "refused"
    assert refused["outcome"]["code"] == "fenced"
    assert prefix_id(2) in engine.versions


def test_an_engine_the_store_has_forgotten_registers_again(deck: Deck) -> None:
    with running_agent(deck.agent(SmallEngine(prefixes=0))):
        wait_for(lambda: (e := registered(deck)) and not e.snapshot_wanted, "the engine")
        with deck.store.write() as session:
            session.delete(session.get(Engine, "engine-1"))
        wait_for(lambda: registered(deck), "the engine, again")


def test_a_damaged_keepsake_is_set_aside(tmp_path: Path, deck: Deck) -> None:
    folder = tmp_path / "engine-1"
    folder.mkdir()
    (folder / "agent.json").write_text('{"desired": {"mo')
    with running_agent(deck.agent(SmallEngine())):
        wait_for(lambda: registered(deck), "the engine")
    assert (folder / "agent.damaged").exists()


def test_a_viewer_may_not_play_the_engine(deck: Deck) -> None:
    client = AgentClient(deck.url, deck.tokens[Role.VIEWER], "engine-1")
    with closing(client), pytest.raises(CallFailed) as failed:
        client.poll(0, 0)
    assert failed.value.status == 403


def test_a_poll_of_an_unknown_engine_says_to_register(deck: Deck) -> None:
    client = AgentClient(deck.url, deck.tokens[Role.ENGINE], "nobody")
    with closing(client), pytest.raises(CallFailed) as failed:
        client.poll(0, 0)
    assert failed.value.must_register


def test_an_unknown_command_has_no_outcome(deck: Deck) -> None:
    with deck.client() as client, pytest.raises(NotFound):
        client.command("no-such")


def test_a_running_command_is_not_refused_when_a_new_leader_hands_it_out_again(tmp_path: Path) -> None:
    engine = SmallEngine()
    engine.hold.clear()
    worker = CommandWorker(engine, Keepsake(tmp_path), on_report=lambda: None)
    thread = threading.Thread(target=worker.run_forever)
    thread.start()
    expires_at = (utc_now() + dt.timedelta(minutes=5)).isoformat()
    command = {"id": "c", "kind": "unpin", "arguments": {}, "epoch": 1, "expires_at": expires_at, "actor": "policy:x"}
    command["traceparent"] = None
    worker.accept(command)
    wait_for(lambda: engine.executed, "the command to run")
    worker.note_epoch(2)
    worker.accept(command)
    engine.hold.set()
    wait_for(lambda: ("c", "succeeded") in [(key, said["status"]) for key, said in worker.due_reports()], "its end")
    worker.stop()
    thread.join()
    assert len(engine.executed) == 1
