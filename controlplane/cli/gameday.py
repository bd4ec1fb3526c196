"""`kvdeck gameday`: breaks the running deck on purpose, by a script, and shows whether it recovers without a hand."""

from __future__ import annotations

import datetime as dt
import json
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controlplane import audit
from controlplane.auth import Principal, Role, authenticate, issue_token, revoke_token
from controlplane.cli.context import (
    DECK,
    DEFAULT_DATA_DIR,
    DEFAULT_URL,
    AsJson,
    DataDir,
    EngineOption,
    TokenOption,
    Url,
    as_bytes,
    choose_engine,
    connect,
    running_ports,
    settings_for,
    show_json,
    show_table,
)
from controlplane.cli.exits import ERR, OUT, CliError, Exit
from controlplane.cli.token import local_principal
from controlplane.clock import utc_now
from controlplane.store.session import Store

if TYPE_CHECKING:
    from controlplane.api.client import ControlPlaneClient
    from controlplane.workload.gameday import GameDay
    from controlplane.workload.gameday_result import Event, HitRates, Result

SETTLE_SECONDS = 15.0
TOKEN_LASTS = dt.timedelta(hours=1)
UNDO = "gameday.json"  # what a game day that was killed did not put back
INTERRUPTED = 130
ALLOW = "Start it with `kvdeck up --game-days`, or the engine alone with `kvdeck engine --allow-faults`."
COLOURS = {"injected": "red", "detected": "yellow", "acted": "cyan", "over": "bold", "recovered": "green"}


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command()(gameday)


def gameday(
    name: Annotated[str, typer.Argument(help="Which one; `list` shows them.")],
    own_windows: Annotated[
        bool, typer.Option("--own-windows", help="Leave policies and alert rules as they are; takes much longer.")
    ] = False,
    engine: EngineOption = "",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Break a deck that allows it (`kvdeck up --game-days`), by a script, and print the timeline.

    Ends with 0 only if everything was seen in time, the deck recovered without a hand, and no byte was wrong. Ctrl-C
    withdraws the fault and puts everything back. Never on a deck that serves people.
    """
    from controlplane.workload.gameday import GAME_DAYS

    if name == "list":
        _list(as_json)
        return
    if name not in GAME_DAYS:
        raise CliError(f"There is no game day {name!r}.", f"There are: {', '.join(GAME_DAYS)}.", Exit.USAGE)
    with _stopped_by_term(), _admin(url, token, data_dir) as secret, connect(url, secret, data_dir) as client:
        result = _run(client, secret, GAME_DAYS[name], choose_engine(client, engine), data_dir, own_windows, as_json)
    if as_json:
        show_json(_as_json(result))
    else:
        _show(result)
    if not result.went_well:
        raise typer.Exit(Exit.FAILED)


def _list(as_json: bool) -> None:
    from controlplane.workload.gameday import GAME_DAYS

    rows = [
        {"name": day.name, "title": day.title, "shows": day.shows, "incident": day.incident.words}
        for day in GAME_DAYS.values()
    ]
    if as_json:
        show_json(rows)
        return
    for row in rows:
        OUT.print(f"[bold]{row['name']}[/]  {row['title']}: {row['incident']}")
        OUT.print(f"  {row['shows']}", style="dim")


def _run(
    client: ControlPlaneClient,
    secret: str,
    day: GameDay,
    engine: str,
    data_dir: Path,
    own_windows: bool,
    as_json: bool,
) -> Result:
    from controlplane.workload.gameday_eyes import Deck, OutageLine
    from controlplane.workload.gameday_run import Run, put_back

    outages = _outage_port(data_dir)
    _require_allowed(client, day, engine, outages)
    line = OutageLine(f"http://127.0.0.1:{outages}", secret) if outages else None
    deck = Deck(client, engine, reason=f"game day {day.name}", outages=line)
    journal = FileJournal(data_dir / UNDO)
    if left := journal.left():
        ERR.print("An earlier game day was killed; what it had changed is put back first.")
        put_back(deck, left, journal, utc_now, time.sleep)

    def say(event: Event) -> None:
        if not as_json:
            _show_event(event)

    if not as_json:
        OUT.print(f"[bold]{day.title}[/] ({day.name}) on engine {engine}. Ctrl-C withdraws it.")
    run = Run(day, deck, journal, clock=utc_now, sleep=time.sleep, say=say, own_windows=own_windows)
    try:
        return run.go()
    except KeyboardInterrupt:
        ERR.print("Withdrawn, and everything was put back.")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if line is not None:
            line.close()


def _require_allowed(client: ControlPlaneClient, day: GameDay, engine: str, outages: int) -> None:
    from controlplane.workload.gameday import OutageIncident

    me = client.me()
    Principal(me["name"], Role.parse(me["role"])).must_be(Role.ADMIN)  # before anything is prepared
    found = _live_engine(client, engine)
    if isinstance(day.incident, OutageIncident):
        if not outages:
            raise CliError("No `kvdeck up --game-days` runs on this data folder, to kill a part of it.", ALLOW)
    elif not found["stats"].get("faults", {}).get("allowed"):
        raise CliError(f"Engine {engine} takes no faults.", ALLOW)
    mode = found["observed"].get("mode")
    if mode != "normal":
        raise CliError(f"Engine {engine} runs in mode {mode}; a game day begins in normal.", "`kvdeck mode normal`")


def _live_engine(client: ControlPlaneClient, engine: str) -> dict[str, Any]:
    """The engine, once it is live: a busy machine may let a heartbeat wait. Raises CliError."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        found: dict[str, Any] | None = next((row for row in client.engines() if row["id"] == engine), None)
        if found is not None and found["health"] == "live":
            return found
        if found is None or time.monotonic() > deadline:
            how = "is not known here" if found is None else f"is {found['health']}"
            raise CliError(f"Engine {engine} {how}; a game day begins on a deck that is well.", "`kvdeck status`")
        time.sleep(1.0)


def _outage_port(data_dir: Path) -> int:
    try:
        return int(json.loads((data_dir / DECK).read_text()).get("game_days_port", 0))
    except (OSError, ValueError):
        return 0


class FileJournal:
    """What must be put back, in the data folder: the next game day does it if this one is killed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, undo: Sequence[dict[str, Any]]) -> None:
        """Keeps this, instead of what was kept; nothing for an empty list."""
        if not undo:
            self._path.unlink(missing_ok=True)
            return
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(list(undo)))
        beside.replace(self._path)

    def left(self) -> list[dict[str, Any]]:
        """What an earlier one left."""
        try:
            found = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return []
        return list(found)


@contextmanager
def _admin(url: str, given: str, data_dir: Path) -> Iterator[str]:
    """An admin's token: the one given, or one made for this game day and ended after it.

    Whoever can write the deck's database on this machine needs no other proof, as in `kvdeck token`.
    """
    if given:
        yield given
        return
    if url != DEFAULT_URL or not running_ports(data_dir):
        raise CliError(
            "A game day needs an admin's token: no `kvdeck up` runs on this data folder to make one for.",
            "Give --token or KVDECK_TOKEN, or name the deck's --data-dir.",
            Exit.FORBIDDEN,
        )
    store = Store(settings_for(data_dir).database_url)
    try:
        with store.write() as session:
            secret = issue_token(session, f"gameday:{local_principal().name}", Role.ADMIN, ttl=TOKEN_LASTS)
            token_id = authenticate(session, secret).token_id
            audit.record(session, local_principal(), "create_token", "gameday", "for one game day")
        try:
            yield secret
        finally:
            with store.write() as session:
                revoke_token(session, str(token_id))
    finally:
        store.dispose()


@contextmanager
def _stopped_by_term() -> Iterator[None]:
    """SIGTERM is as Ctrl-C: both withdraw the fault. Once one has come, another cannot cut that short."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        ERR.print("Withdrawing...")
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show_event(event: Event) -> None:
    offset = "" if event.offset_seconds is None else f"{event.offset_seconds:+.1f} s"
    colour = COLOURS.get(event.phase, "dim")
    text = event.text.replace("[", "\\[")
    OUT.print(f"{event.at:%H:%M:%S}  {offset:>8}  [{colour}]{event.phase:<9}[/]  {text}")


def _show(result: Result) -> None:
    rates = result.hit_rate
    shown = ((name, _share(rate)) for name, rate in _rates(rates).items())
    show_table("", ("hit rate", "of prompt tokens"), shown)
    OUT.print(f"wrong bytes  {result.wrong_bytes} of {as_bytes(result.verified_bytes)} verified")
    OUT.print(f"quarantined  {result.quarantined_files} files, {as_bytes(result.quarantined_bytes)}")
    if result.went_well:
        OUT.print("[bold green]Recovered without a hand, with 0 wrong bytes.[/]")
        return
    for missed in result.missed:
        OUT.print(f"[bold red]Not seen in time:[/] {missed}")
    if result.wrong_bytes:
        OUT.print("[bold red]Wrong bytes were served.[/] Do not serve from this engine; please report this.")
    if not result.verified_bytes:
        OUT.print("[bold red]Nothing was verified[/], so that 0 wrong bytes proves nothing: is there a workload?")


def _rates(rates: HitRates) -> dict[str, float | None]:
    lost = None if rates.before is None or rates.lowest is None else max(0.0, rates.before - rates.lowest)
    regained = None if rates.after is None or rates.lowest is None else max(0.0, rates.after - rates.lowest)
    return {"before": rates.before, "lowest": rates.lowest, "after": rates.after, "lost": lost, "regained": regained}


def _share(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1%}"


def _as_json(result: Result) -> dict[str, Any]:
    found = asdict(result)
    events = [{**asdict(event), "at": event.at.isoformat()} for event in result.events]
    return {**found, "events": events, "hit_rate": _rates(result.hit_rate), "went_well": result.went_well}
