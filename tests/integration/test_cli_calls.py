"""The command line that docs/reference/api.md gives for a call makes that call, against a real control plane."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from api_seed import ENGINE, Seed, Visit
from databases import Databases
from steering_support import Deck, prefix_id, running_deck
from test_cli_bad_input import GOOD, has, kvdeck  # noqa: F401  # a fixture
from test_openapi import CALLS, pairs

from controlplane.api.client import ControlPlaneClient
from controlplane.auth import Role

ROUTES = sorted(
    ((call.method, re.compile(re.sub(r"{[^}]+}", "[^/]+", call.path)), call.name) for call in CALLS),
    key=lambda route: route[1].pattern.count("[^/]"),
)
ADMINS = ("alert add-receiver", "alert set-receiver", "alert remove-receiver")


@pytest.fixture
def deck(tmp_path, databases: Databases) -> Iterator[Deck]:
    with running_deck(tmp_path / "deck", databases.new("sqlite")) as running:
        yield running


def name_of(method: str, path: str) -> str:
    return next(name for verb, route, name in ROUTES if verb == method and route.fullmatch(path))


def end_commands(deck: Deck, ids: list[str]) -> None:
    """Takes them and answers, as the engine would that is not here."""
    poll = Visit(name="poll", method="GET", path=f"/v1/engines/{ENGINE}/poll", role=Role.ENGINE, query={"wait_s": 0})
    poll.send(deck).raise_for_status()
    for command in ids:
        path, done = f"/v1/engines/{ENGINE}/commands/{command}/outcome", {"status": "succeeded", "outcome": {}}
        Visit(name="outcome", method="POST", path=path, role=Role.ENGINE, body=done).send(deck).raise_for_status()


def test_every_command_line_of_the_api_page_makes_its_call(deck, kvdeck, monkeypatch) -> None:  # noqa: F811
    seed, made = Seed(deck), []
    ask = ControlPlaneClient._call

    def noted(self: ControlPlaneClient, method: str, path: str, **how: Any) -> Any:
        answer = ask(self, method, path, **how)  # raises when it was refused
        made.append(name_of(method, path))
        if made[-1] == "submit_batch":
            end_commands(deck, [command["id"] for command in answer["commands"]])
        return answer

    monkeypatch.setattr(ControlPlaneClient, "_call", noted)
    ids = {"ENGINE": ENGINE, "PREFIX": prefix_id(1), "COMMAND": seed.told["submit_command"],
           "BATCH": seed.told["submit_batch"], "ALERT": seed.told["alert"], "SILENCE": seed.told["create_silence"],
           "REVISION": seed.told["revise_desired"]}  # fmt: skip
    wrong = []
    lines = pairs().VERBS
    for call in sorted(lines, key=lambda name: name == "forget_engine"):  # the last of all
        if call == "forget_engine":
            seed.engines()[-1].send(deck)  # only what said goodbye can be forgotten
        verb = next(each for each in sorted(GOOD, key=len, reverse=True) if f"{lines[call]} ".startswith(f"{each} "))
        arguments = [ids.get(word, word) for word in lines[call].split()]
        more = ["--yes"] if has(verb, "--yes") else []
        more += ["--expires", "1s"] if has(verb, "--expires") else []
        more += ["--no-wait"] if has(verb, "--wait") and call != "batch" else []
        token = deck.tokens[Role.ADMIN if verb in ADMINS else Role.OPERATOR]
        made.clear()
        ended = kvdeck(*arguments, *more, "--url", deck.url, "--token", token)
        if call not in made:
            wrong.append(f"{call}: kvdeck {lines[call]} calls {made} and says {ended.err[-200:]!r}")
    assert wrong == []
