"""`kvdeck up`: the whole deck on this machine, with one command, and down again with Ctrl-C."""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import httpx
import typer

from controlplane.api.client import ControlPlaneClient
from controlplane.auth import Role
from controlplane.cli.children import Child, stop_together
from controlplane.cli.context import DECK, DEFAULT_DATA_DIR, OPERATOR_TOKEN, DataDir, settings_for
from controlplane.cli.exits import ERR, OUT, CliError, show_error
from controlplane.cli.ports import require_free
from controlplane.cli.serve import ApiPort, DashboardPort, Host, environment_of
from controlplane.cli.setup import standing_token
from controlplane.cli.token import one_time_link
from controlplane.clock import utc_now
from controlplane.errors import ControlPlaneError
from controlplane.settings import Settings
from controlplane.store.session import Store
from engine import preset

if TYPE_CHECKING:
    from controlplane.cli.outages import Outages

ENGINE_TOKEN = "engine.token"
RUNNING = "running.json"  # the children of the `up` that runs, to name what a killed one leaves behind
LEAST_FREE_BYTES = 1 << 30
READY_SECONDS = 120.0
LOOK_EVERY_SECONDS = 0.2
ENGINE_PATIENCE_SECONDS = 12.0  # the engine writes prefixes to disk for up to 5 s and then flushes its spans
SERVER_PATIENCE_SECONDS = 3.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A child and how to see that it is ready."""

    child: Child
    is_ready: Callable[[], bool]


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command()(up)


def up(
    host: Host = None,
    api_port: ApiPort = None,
    dashboard_port: DashboardPort = None,
    engine: Annotated[bool, typer.Option("--engine/--no-engine", help="Also run an engine with a workload.")] = True,
    dashboard: Annotated[bool, typer.Option("--dashboard/--no-dashboard", help="Also run the dashboard.")] = True,
    spec: Annotated[str, typer.Option(help="The engine's model preset; `kvdeck spec` lists them.")] = "",
    device: Annotated[str, typer.Option(help="The engine's device: cpu or cuda.")] = "",
    rate: Annotated[str, typer.Option(help="Requests a second of the engine's workload.")] = "",
    game_days: Annotated[
        bool, typer.Option("--game-days", help="Let admins of this machine break it on purpose: `kvdeck gameday`.")
    ] = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Start control plane, engine and dashboard on this machine; keep running until Ctrl-C."""
    if spec:
        preset(spec)  # an unknown one is refused before anything is started
    settings = settings_for(data_dir, host=host, api_port=api_port, dashboard_port=dashboard_port)
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _only_one(settings.data_dir), _stop_signal() as stop:
        _require_room(settings)
        _require_ports(settings, dashboard)
        tokens = _prepare(settings)
        chosen = {"--spec": spec, "--device": device, "--rate": rate}
        options = [part for flag, value in chosen.items() if value for part in (flag, value)]
        options += ["--allow-faults"] if game_days else []
        parts = _parts(settings, tokens, options if engine else None, with_dashboard=dashboard)
        try:
            _run(settings, parts, tokens["link"], stop, game_days=game_days)
        finally:
            _stop([part.child for part in parts])
            for note in (RUNNING, DECK):
                (settings.data_dir / note).unlink(missing_ok=True)


@contextmanager
def _only_one(data_dir: Path) -> Iterator[None]:
    # An OS lock, not a pid file: it ends with the process, however the process ends.
    with (data_dir / "up.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CliError(
                f"Another `kvdeck up` runs on {data_dir}.",
                "Use that one, stop it, or give this one its own --data-dir.",
            ) from None
        yield


@contextmanager
def _stop_signal() -> Iterator[threading.Event]:
    stop = threading.Event()

    def ask(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _require_room(settings: Settings) -> None:
    free = shutil.disk_usage(settings.data_dir).free
    if free < LEAST_FREE_BYTES:
        raise CliError(
            f"Only {free >> 20} MiB are free under {settings.data_dir}; the history and the disk tier need 1024 MiB.",
            "Make room, or choose another place with --data-dir.",
        )


def _require_ports(settings: Settings, with_dashboard: bool) -> None:
    try:
        require_free(settings.host, settings.api_port, "the API", "--api-port")
        if with_dashboard:
            require_free(settings.host, settings.dashboard_port, "the dashboard", "--dashboard-port")
    except CliError as error:
        left = _left_behind(settings.data_dir / RUNNING)
        if left:
            hint = f"A `kvdeck up` that was killed left these processes: end them with `kill {left}`."
            raise CliError(error.message, hint) from None
        raise


def _left_behind(path: Path) -> str:
    try:
        pids = [int(pid) for pid in json.loads(path.read_text())]
    except (OSError, ValueError):
        return ""
    return " ".join(str(pid) for pid in pids if Path(f"/proc/{pid}").exists())


def _prepare(settings: Settings) -> dict[str, str]:
    from controlplane.store.migrate import upgrade

    upgrade(settings.database_url)
    store = Store(settings.database_url)
    try:
        return {
            "operator": standing_token(store, settings.data_dir / OPERATOR_TOKEN, "operator", Role.OPERATOR),
            "engine": standing_token(store, settings.data_dir / ENGINE_TOKEN, "engine", Role.ENGINE),
            "link": one_time_link(store, settings),
        }
    finally:
        store.dispose()


def _parts(
    settings: Settings, tokens: dict[str, str], engine_options: Sequence[str] | None, *, with_dashboard: bool
) -> list[Part]:
    environment = {**os.environ, **environment_of(settings), "KVDECK_URL": settings.api_url}
    environment.pop("KVDECK_TOKEN", None)  # a person's token is not for the children
    logs = settings.data_dir / "logs"
    kvdeck = [sys.executable, "-m", "controlplane.cli.main"]
    serve = Child("control plane", [*kvdeck, "serve", "--no-link"], environment, logs / "serve.log")
    parts = [Part(child=serve, is_ready=lambda: _answers(f"{settings.api_url}/healthz"))]
    if engine_options is not None:
        folder = str(settings.data_dir / "engine")
        command = [*kvdeck, "engine", "--url", settings.api_url, "--data-dir", folder, *engine_options]
        voice = {"KVDECK_DASHBOARD_URL": _dashboard_url(settings)} if with_dashboard else {}
        engine_environment = {**voice, **environment, "KVDECK_ENGINE_TOKEN": tokens["engine"]}
        child = Child("engine", command, engine_environment, logs / "engine.log")
        started = utc_now()
        parts.append(Part(child=child, is_ready=lambda: _engine_speaks(settings, tokens["operator"], started)))
    if with_dashboard:
        child = Child("dashboard", [*kvdeck, "dashboard"], environment, logs / "dashboard.log")
        health = f"{_dashboard_url(settings)}/_stcore/health"
        parts.append(Part(child=child, is_ready=lambda: _answers(health)))
    return parts


def _dashboard_url(settings: Settings) -> str:
    return f"{settings.api_url.rsplit(':', 1)[0]}:{settings.dashboard_port}"


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _engine_speaks(settings: Settings, token: str, since: dt.datetime) -> bool:
    try:
        with ControlPlaneClient(settings.api_url, token, timeout_seconds=2.0) as client:
            return any(dt.datetime.fromisoformat(engine["last_seen_at"]) >= since for engine in client.engines())
    except ControlPlaneError:
        return False


def _run(settings: Settings, parts: Sequence[Part], link: str, stop: threading.Event, *, game_days: bool) -> None:
    OUT.print(f"Starting; the logs are in {settings.data_dir / 'logs'}", markup=False)
    _note_ports(settings)
    for part in parts:
        part.child.start()
        _note_running(settings, parts)
        _wait_ready(part, parts, stop)
        if stop.is_set():
            return
    OUT.print(f"API        {settings.api_url}", markup=False)
    if any(part.child.name == "dashboard" for part in parts):
        OUT.print(f"Dashboard  {link}  (signs one browser in, within the hour)", markup=False)
    with _outages(settings, parts) if game_days else nullcontext() as outages:
        OUT.print("Everything runs. Ctrl-C stops it.")
        while not stop.wait(LOOK_EVERY_SECONDS):
            if outages is not None and (done := outages.step()):
                OUT.print(f"Game day: the {done}", markup=False)
                _note_running(settings, parts)
            _require_alive([part for part in parts if outages is None or part.child is not outages.down])


@contextmanager
def _outages(settings: Settings, parts: Sequence[Part]) -> Iterator[Outages]:
    from controlplane.cli.outages import Outages, OutageServer

    outages = Outages([part.child for part in parts if part.child.name != "dashboard"])
    server = OutageServer(settings, outages)
    try:
        _note_ports(settings, game_days_port=server.port)
        OUT.print("Game days are on: admins of this machine can break it on purpose (`kvdeck gameday list`)")
        yield outages
    finally:
        server.close()


def _note_running(settings: Settings, parts: Sequence[Part]) -> None:
    pids = [part.child.pid for part in parts if part.child.pid]
    (settings.data_dir / RUNNING).write_text(json.dumps(pids))


def _note_ports(settings: Settings, **more: int) -> None:
    ports = {"api_port": settings.api_port, "dashboard_port": settings.dashboard_port, **more}
    (settings.data_dir / DECK).write_text(json.dumps(ports))


def _wait_ready(part: Part, parts: Sequence[Part], stop: threading.Event) -> None:
    deadline = utc_now() + dt.timedelta(seconds=READY_SECONDS)
    while not part.is_ready():
        _require_alive(parts)
        if stop.wait(LOOK_EVERY_SECONDS):
            return
        if utc_now() > deadline:
            raise CliError(
                f"The {part.child.name} did not become ready within {READY_SECONDS:.0f} s.",
                f"Its log may say why: {part.child.log_path}.",
            )
    OUT.print(f"  {part.child.name} is ready")


def _require_alive(parts: Sequence[Part]) -> None:
    for part in parts:
        if part.child.ended_with is not None:
            ERR.print(part.child.tail(), markup=False)
            raise CliError(
                f"The {part.child.name} ended by itself (status {part.child.ended_with}), so everything is stopped.",
                f"Above is the end of {part.child.log_path}; correct what it names and run `kvdeck up` again.",
            )


def _stop(children: Sequence[Child]) -> None:
    running = [child for child in children if child.runs]
    if not running:
        return
    OUT.print("Stopping...")
    # The control plane goes last: the engine's last spans and outcomes still need it.
    killed = stop_together([child for child in running if child.name != "control plane"], ENGINE_PATIENCE_SECONDS)
    killed += stop_together([child for child in running if child.name == "control plane"], SERVER_PATIENCE_SECONDS)
    if killed:
        show_error(CliError(f"{', '.join(killed)} did not end when asked, and was killed.", "Its log may say why."))
    OUT.print("Stopped. The history is kept; `kvdeck up` goes on with it.")
