"""Every command of the on-call pages is run, as it is written, against a live deck with an engine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_support import live_engine, prompt
from steering_support import Deck, running_deck, wait_for
from typer.testing import CliRunner

from controlplane.auth import Role
from controlplane.cli.main import app
from controlplane.clock import utc_now
from controlplane.steering import alerts
from controlplane.steering.alerts.defaults import DEFAULT_RULES
from controlplane.steering.policies import registry
from controlplane.store.models import Alert

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
ENGINE = "live"


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deck]:
    """With a real engine that has served; without the scheduler, whose sweep would end the alerts a test makes."""
    folder = tmp_path_factory.mktemp("deck")
    with running_deck(folder) as running, live_engine(running, folder / "engine") as live:
        with running.store.write() as session:
            registry.seed(session, utc_now())
            alerts.seed(session, utc_now())
        for number in range(6):
            live.serve(prompt(number))
        with running.client(Role.ADMIN) as client:
            wait_for(lambda: any(engine["id"] == ENGINE for engine in client.engines()), "the engine")
            client.add_receiver("on-call", "http://127.0.0.1:9/", reason="the runbook names it")
        yield running


def blocks(page: str) -> list[tuple[str, str]]:
    """The commands of a page's tested blocks, each with the section it stands in."""
    section, found, inside = "top", [], False
    for line in (HOWTO / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        inside = line == "```sh" if line.startswith("```") else inside
        if inside and line.startswith("kvdeck "):
            found.append((section, line))
    return found


def firing(deck: Deck, rule: str) -> int:
    """An alert of this rule, as the section is about one."""
    now = utc_now()
    with deck.store.write() as session:
        alert = Alert(
            rule=rule, engine_id=ENGINE, state="firing", summary="s", value=1, threshold=0, since=now, fired_at=now
        )
        session.add(alert)
        session.flush()
        return alert.id


def run(deck: Deck, line: str, alert: int) -> None:
    words = shlex.split(line.replace("$ALERT", str(alert)).replace("$ENGINE", ENGINE))[1:]
    variables = {"KVDECK_URL": deck.url, "KVDECK_TOKEN": deck.tokens[Role.ADMIN], "KVDECK_DATA_DIR": str(deck.folder)}
    done = CliRunner().invoke(app, words, env=variables)
    assert done.exception is None or isinstance(done.exception, SystemExit), f"{line}: {done.exception!r}"
    # `doctor` ends with 1 when it has found something: that is its answer, not a failure.
    allowed = (0, 1) if words[0] == "doctor" else (0,)
    assert done.exit_code in allowed, f"{line}: {done.exit_code}\n{done.output}"


@pytest.mark.parametrize("page", ["runbook.md", "warm-up.md", "degrade.md"])
def test_each_command_on_the_page_runs(deck: Deck, page: str) -> None:
    lines = blocks(page)
    assert len(lines) > 8
    names = {rule.name for rule in DEFAULT_RULES}
    for section, line in lines:
        rule = section if section in names else "engine_silent"
        run(deck, line, firing(deck, rule) if "$ALERT" in line else 0)


def test_what_the_pages_name_is_there(deck: Deck) -> None:
    text = "".join((HOWTO / page).read_text(encoding="utf-8") for page in ("runbook.md", "warm-up.md", "degrade.md"))
    inline = {found.split(" ...")[0] for found in re.findall(r"`(kvdeck [a-z-]+(?: [a-z-]+)?)", text)}
    assert len(inline) > 8
    for command in sorted(inline):
        done = CliRunner().invoke(app, [*command.split()[1:], "--help"])
        assert done.exit_code == 0, command
