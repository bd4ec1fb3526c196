"""`kvdeck top` as a person has it: in a real terminal of several widths, with keys, and with the control plane gone.
And what the shell completes."""

from __future__ import annotations

import datetime as dt
import fcntl
import io
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from ingest_support import Spans, traces
from rich.console import Console
from steering_support import Deck, SmallEngine, running_agent, running_deck, wait_for

from controlplane.auth import Role
from controlplane.cli.top import Screen
from controlplane.cli.top_view import Look
from controlplane.ingest.spans import ingest_traces

PATIENCE_SECONDS = 60.0
KVDECK = str(Path(sys.executable).with_name("kvdeck"))  # completion goes by the name it is called by
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """`kvdeck` on a pty of this width; `text` is everything it drew, frame by frame."""

    def __init__(self, width: int, *arguments: str) -> None:
        self.text = ""
        self._main, self._other = pty.openpty()
        fcntl.ioctl(self._other, termios.TIOCSWINSZ, struct.pack("HHHH", 30, width, 0, 0))
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVDECK_")} | {"TERM": "xterm-256color"}
        environment.pop("COLUMNS", None)
        self.process = subprocess.Popen(
            [KVDECK, *arguments],
            stdin=self._other, stdout=self._other, stderr=self._other, env=environment, start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._main)
        os.close(self._other)

    def press(self, keys: str) -> None:
        os.write(self._main, keys.encode())

    def until(self, wanted: str) -> str:
        """The first frame from now on that has `wanted`."""
        begin, end = len(self.text), time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            self._read()
            for frame in self.text[begin:].split("\x1b[H"):
                plain = ESCAPES.sub("", frame)
                if re.search(wanted, plain):
                    return plain
        raise AssertionError(f"no {wanted!r} in {ESCAPES.sub('', self.text[-3000:])}")

    def ended(self) -> int:
        end = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None and time.monotonic() < end:
            self._read()
        return self.process.wait(1)

    def _read(self) -> None:
        if select.select([self._main], [], [], 0.1)[0]:
            self.text += os.read(self._main, 65536).decode(errors="replace")


@pytest.fixture
def deck(tmp_path: Path):
    with running_deck(tmp_path) as deck, running_agent(deck.agent(SmallEngine())), deck.client() as client:
        wait_for(client.engines, "the engine")
        now = wait_for(lambda: client.engines()[0]["last_seen_at"], "a heartbeat")
        assert now
        yield deck


def options(deck: Deck) -> list[str]:
    return ["--url", deck.url, "--token", deck.tokens[Role.VIEWER]]


def ask(deck: Deck) -> None:
    """One request of namespace tenant-a, a moment ago."""
    with deck.store.write() as session:
        ingest_traces(session, traces([Spans().acquire(at=dt.datetime.now(dt.UTC))]))


@pytest.mark.parametrize(("width", "columns"), [(38, "engine req/s usable"), (80, "health mode lcp queue gpu"),
                                                (140, "prefixes leases restores host disk")])  # fmt: skip
def test_it_fits_terminals_of_any_width(deck: Deck, width: int, columns: str) -> None:
    ask(deck)
    with Terminal(width, "top", *options(deck)) as terminal:
        frame = terminal.until("engine-1[^$]*tenant-a|engin[^$]*tenan")
        for column in columns.split():
            assert column in frame
        assert max(len(line.rstrip()) for line in frame.splitlines()) <= width
        assert ("disk" in frame) == (width >= 130)
        terminal.press("q")
        assert terminal.ended() == 0


def test_keys_sort_pause_and_end(deck: Deck) -> None:
    with Terminal(100, "top", *options(deck)) as terminal:
        terminal.until(r"sort \(engine\)")
        terminal.press("s")
        terminal.until(r"sort \(requests\)")
        terminal.press("p")
        terminal.until("paused")
        terminal.press("q")
        assert terminal.ended() == 0


def test_it_says_stale_while_nobody_answers_and_goes_on_when_somebody_does(deck: Deck) -> None:
    with Terminal(120, "top", *options(deck)) as terminal:
        terminal.until("engine-1")
        deck.stop()
        frame = terminal.until("stale, .* s old: No control plane answers")
        assert "engine-1" in frame
        deck.start()
        begin = terminal.until("engine-1(?![^$]*stale)")
        assert "stale" not in begin
        terminal.press("q")
        assert terminal.ended() == 0


def test_an_answer_from_before_the_database_went_away_is_stale_by_its_own_age() -> None:
    ages: list[int] = []

    class Told:
        """What looks while the control plane repeats itself."""

        def look(self) -> Look:
            ages.append(42)
            return Look(at="2026-11-30T12:00:00")

    screen = Screen(Told(), 1, "engine", ages)
    screen._look()
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(screen._drawn())
    assert "stale, 42 s old: The database does not answer." in console.export_text()


def kvdeck(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [KVDECK, *arguments], env=os.environ | environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def test_scripts_get_one_look(deck: Deck) -> None:
    ask(deck)
    found = json.loads(kvdeck("top", "--json", *options(deck)).stdout)
    assert [line["id"] for line in found["engines"]] == ["engine-1"]
    assert found["namespaces"][0] | {"requests_per_s": 0, "prompt_tokens_per_s": 0} == {
        "engine_id": "engine-1", "namespace": "tenant-a", "requests_per_s": 0, "prompt_tokens_per_s": 0,
        "usable_ratio": 0.32, "lcp_ratio": 0.5,
    }  # fmt: skip
    once = kvdeck("top", "--once", *options(deck))
    assert (once.returncode, "engine-1" in once.stdout) == (0, True)
    assert kvdeck("top", "--sort", "colour", *options(deck)).returncode == 2
    assert kvdeck("top", "--once", "--url", "http://127.0.0.1:9").returncode == 3


def completed(deck: Deck, line: str, url: str = "") -> set[str]:
    done = kvdeck(
        _KVDECK_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(line.split(" ")) - 1),
        KVDECK_URL=url or deck.url, KVDECK_TOKEN=deck.tokens[Role.VIEWER],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_shell_completes_engines_prefixes_and_nothing_when_nobody_answers(deck: Deck) -> None:
    with deck.client() as client:
        rows = wait_for(lambda: client.prefixes()["rows"], "the prefixes")
    start = rows[0]["prefix_id"][:31]
    wanted = {row["prefix_id"] for row in rows if row["prefix_id"].startswith(start)}
    assert completed(deck, "kvdeck compact --engine eng") == {"engine-1"}
    assert completed(deck, f"kvdeck evict {start}") == wanted
    assert completed(deck, "kvdeck doc") == {"doctor"}
    assert completed(deck, "kvdeck compact --engine eng", "http://127.0.0.1:9") == set()
