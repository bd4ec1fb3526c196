"""`kvdeck top`: the deck live in a terminal. Reads over the API only, so it works from anywhere."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.live import Live

from controlplane.cli.completion import complete_engines
from controlplane.cli.context import (
    DEFAULT_DATA_DIR,
    DEFAULT_URL,
    AsJson,
    DataDir,
    TokenOption,
    Url,
    connect,
    show_json,
)
from controlplane.cli.exits import OUT, CliError, Exit
from controlplane.cli.top_view import SORTS, Look, Looker, screen
from controlplane.errors import ControlPlaneError, Forbidden, Unauthorised


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command()(top)


def top(
    engine: Annotated[
        str, typer.Option("--engine", "-e", help="Only this engine.", autocompletion=complete_engines)
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    every: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between looks.")] = 1.0,
    sort: Annotated[str, typer.Option(help=f"Order of engines: {', '.join(SORTS)}.")] = SORTS[0],
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Hit rates, traffic, tiers, queues, alerts and policies, live. Keys: q ends, p pauses, s sorts.

    Without a terminal, with --once or with --json it looks once. While the control plane does not answer, the last
    look stays on the screen, marked stale, and it keeps trying.
    """
    if sort not in SORTS:
        raise CliError(f"{sort!r} is no order.", f"Orders: {', '.join(SORTS)}.", Exit.USAGE)
    looks_once = as_json or once or not OUT.is_terminal
    ages: list[int] = []  # of answers from before the database went away; on the screen they have a line of their own
    with connect(url, token, data_dir, on_stale=None if looks_once else ages.append) as client:
        looker = Looker(client, engine or None)
        if as_json:
            show_json(looker.look().document)
        elif looks_once:
            OUT.print(screen(looker.look(), OUT.width, sort=sort))
        else:
            Screen(looker, every, sort, ages).run()


class Screen:
    """The live screen: looks, draws, and listens for keys until `q`."""

    def __init__(self, looker: Looker, every_seconds: float, sort: str, ages: list[int]) -> None:
        self._looker = looker
        self._ages = ages
        self._every_seconds = every_seconds
        self._sort = sort
        self._paused = False
        self._last: Look | None = None
        self._last_at = 0.0
        self._said = ""

    def run(self) -> None:
        """Until `q`, Ctrl-C or the end of the terminal."""
        with _keys() as listening, Live(console=OUT, screen=True, auto_refresh=False) as live:
            try:
                while True:
                    if not self._paused:
                        self._look()
                    live.update(self._drawn(), refresh=True)
                    if self._wait(listening, live):
                        return
            except KeyboardInterrupt:
                return

    def _look(self) -> None:
        self._ages.clear()
        try:
            self._last, self._last_at, self._said = self._looker.look(), time.monotonic(), ""
            if self._ages:
                self._last_at -= max(self._ages)
                self._said = "The database does not answer."
        except (Unauthorised, Forbidden):
            raise  # no trying again helps
        except ControlPlaneError as error:
            self._said = error.message

    def _drawn(self) -> RenderableType:
        width = OUT.width
        look = self._last or Look(at="-" * 19)
        note = ""
        if self._said:
            age = f"stale, {time.monotonic() - self._last_at:.0f} s old" if self._last else "nothing heard yet"
            note = f"{age}: {self._said} Trying again."[: max(10, width - 1)]
        return screen(look, width, sort=self._sort, note=note, paused=self._paused)

    def _wait(self, listening: bool, live: Live) -> bool:
        """Until the next look is due. True: leave."""
        end = time.monotonic() + self._every_seconds
        while (left := end - time.monotonic()) > 0:
            if not listening:
                time.sleep(left)
                return False
            if not select.select([sys.stdin], [], [], left)[0]:
                continue
            typed = os.read(sys.stdin.fileno(), 64).decode(errors="replace").lower()
            if not typed or "q" in typed:
                return True
            for key in typed:
                self._press(key)
            live.update(self._drawn(), refresh=True)
        return False

    def _press(self, key: str) -> None:
        if key == "p":
            self._paused = not self._paused
        elif key == "s":
            self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]


@contextmanager
def _keys() -> Iterator[bool]:
    """Single keys without Enter, while standard input is a terminal; gives it back as it was."""
    if not sys.stdin.isatty():
        yield False
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin, termios.TCSADRAIN)  # what was typed meanwhile stays
        yield True
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
