"""`inspect` from the API and from the command line, through the agent, to a real engine and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_support import Live, live_engine, prompt
from steering_support import Deck, running_deck, wait_for
from typer.testing import CliRunner, Result

from controlplane.auth import Role
from controlplane.cli.exits import Exit, exit_code_of
from controlplane.cli.main import app
from controlplane.errors import BadRequest, ControlPlaneError, Forbidden

ENGINE = "live"
UNKNOWN = "0" * 32


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deck, Live, str]]:
    """A deck, its engine, and the id of the one prefix there is."""
    folder: Path = tmp_path_factory.mktemp("deck")
    with running_deck(folder) as deck, live_engine(deck, folder / "engine") as live:
        live.serve(prompt(1))
        with deck.client() as client:
            wait_for(lambda: client.prefixes(engine=ENGINE)["total"] == 1, "the prefix")
            prefix_id = client.prefixes(engine=ENGINE)["rows"][0]["prefix_id"]
            # A snapshot may be before the span; then its row is replaced by the one that was told.
            wait_for(lambda: client.prefix(ENGINE, prefix_id)["versions"][0]["span_id"], "the span of its commit")
            yield deck, live, prefix_id


def asked(deck: Deck, prefix_id: str) -> dict[str, Any]:
    with deck.client() as client:
        sent = client.submit(ENGINE, "inspect", {"prefix_id": prefix_id}, reason="who holds it?")
        over = ("succeeded", "refused", "failed", "expired")
        found: dict[str, Any] = wait_for(
            lambda: (c := client.command(sent["id"]))["status"] in over and c, "the engine's answer"
        )
        return found


def kvdeck(deck: Deck, *words: str) -> tuple[int, str]:
    variables = {"KVDECK_URL": deck.url, "KVDECK_TOKEN": deck.tokens[Role.OPERATOR], "COLUMNS": "110"}
    done: Result = CliRunner().invoke(app, ["inspect", *words], env=variables)
    if done.exception is None or isinstance(done.exception, SystemExit):
        return done.exit_code, done.output
    assert isinstance(done.exception, ControlPlaneError), repr(done.exception)
    return int(exit_code_of(done.exception)), f"{done.output}{done.exception} {done.exception.hint}"


def test_the_engine_tells_who_holds_a_prefix_and_nothing_is_changed(ground) -> None:
    deck, live, prefix_id = ground
    with live.engine.acquire(prompt(1), deadline_s=5.0) as lease:
        said = asked(deck, prefix_id)
    assert (said["status"], said["outcome"]["inspected"], said["outcome"]["leases"]) == ("succeeded", 1, 1)
    (row,) = said["outcome"]["oldest_leases"]
    assert (row["lease_id"], row["current"]) == (lease.lease_id, True)
    assert 0 < row["left_s"] < live.engine.config.lease_s
    with deck.client() as client:
        before = client.prefix(ENGINE, prefix_id)
        assert asked(deck, prefix_id)["outcome"]["version"] == before["now"]["version"]
        assert client.prefix(ENGINE, prefix_id)["versions"] == before["versions"]
        radius = client.preview(ENGINE, "inspect", {"prefix_id": prefix_id})
    assert (radius["prefixes"], radius["own_tokens"], radius["warnings"]) == (0, 0, [])


def test_a_prefix_that_the_engine_does_not_hold_is_refused(ground) -> None:
    deck, _, _ = ground
    said = asked(deck, UNKNOWN)
    assert (said["status"], said["outcome"]["reason"]) == ("refused", "1 unknown_prefix")


def test_a_viewer_may_not_ask_and_an_id_must_be_whole(ground) -> None:
    deck, _, prefix_id = ground
    with deck.client(Role.VIEWER) as viewer, pytest.raises(Forbidden):
        viewer.submit(ENGINE, "inspect", {"prefix_id": prefix_id}, reason="look")
    with deck.client() as client, pytest.raises(BadRequest, match="32 hex digits"):
        client.submit(ENGINE, "inspect", {"prefix_id": prefix_id[:9]}, reason="look")


def test_the_command_line_shows_leases_and_generations(ground) -> None:
    deck, live, prefix_id = ground
    with live.engine.acquire(prompt(1), deadline_s=5.0) as lease:
        code, text = kvdeck(deck, prefix_id[:10])
        assert code == 0, text
        assert "1 lease\n" in text.replace(" \n", "\n")
        assert any(line.startswith(f"{lease.lease_id} ") and " yes" in line for line in text.splitlines())
    assert f"{prefix_id} is FULL" in text
    kinds = {row["kind"] for row in asked(deck, prefix_id)["outcome"]["objects"]}
    assert all(any(line.startswith(f"{kind} ") for line in text.splitlines()) for kind in kinds)
    assert len(kinds) > 1
    code, text = kvdeck(deck, prefix_id, "--engine", ENGINE, "--json")
    said = json.loads(text[text.index("{") :])
    assert (code, said["outcome"]["prefix_id"], said["outcome"]["leases"]) == (0, prefix_id, 0)
    code, text = kvdeck(deck, UNKNOWN)
    assert code == Exit.FAILED
    assert "1 unknown_prefix" in text
    assert "does not hold it" in text
    code, text = kvdeck(deck, prefix_id, "--no-wait")
    assert code == 0
    assert "inspect is pending on live" in text
