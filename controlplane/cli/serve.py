"""Verbs that run one process of the deck: serve, dashboard; and migrate."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from sqlalchemy import func, select

from controlplane.cli.context import DEFAULT_DATA_DIR, DataDir, settings_for
from controlplane.cli.exits import OUT, CliError
from controlplane.cli.ports import require_free
from controlplane.cli.token import one_time_link
from controlplane.settings import Settings
from controlplane.store.models import Token
from controlplane.store.session import Store

if TYPE_CHECKING:
    import uvicorn

GRACE_SECONDS = 3
Host = Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")]
ApiPort = Annotated[int | None, typer.Option("--api-port", min=1, max=65535, show_default="8410")]
DashboardPort = Annotated[int | None, typer.Option("--dashboard-port", min=1, max=65535, show_default="8411")]


def register(app: typer.Typer) -> None:
    """Adds the verbs."""
    app.command()(serve)
    app.command()(dashboard)
    app.command()(migrate)


def migrate(data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Bring the database to this version's schema. Nothing that is stored is lost."""
    from controlplane.store.migrate import upgrade

    revision = upgrade(settings_for(data_dir).database_url)
    OUT.print(f"The database is at revision {revision}.")


def serve(
    host: Host = None,
    api_port: ApiPort = None,
    dashboard_port: DashboardPort = None,
    link: Annotated[bool, typer.Option("--link/--no-link", help="Print a one-time link for the browser.")] = True,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Run the control plane: API, ingest, scheduler. Ends on Ctrl-C or SIGTERM."""
    from controlplane.api.app import create_app
    from controlplane.steering.scheduler import Scheduler
    from controlplane.store.migrate import require_current_schema

    settings = settings_for(data_dir, host=host, api_port=api_port, dashboard_port=dashboard_port)
    require_free(settings.host, settings.api_port, "the API", "--api-port")
    store = Store(settings.database_url)
    try:
        require_current_schema(store.engine)
        _require_guarded(store, settings)
        if link and settings.is_loopback:
            OUT.print(f"Open once: {one_time_link(store, settings)}", markup=False)
        OUT.print(f"The control plane answers at {settings.api_url}", markup=False)
        _server(create_app(settings, store, background=Scheduler(store, settings)), settings).run()
    finally:
        store.dispose()


def _server(app: object, settings: Settings) -> uvicorn.Server:
    import uvicorn

    from controlplane.steering.wakeups import WAKEUPS

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            WAKEUPS.close()  # long polls answer now, so that nothing keeps the server from ending
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        host=settings.host,
        port=settings.api_port,
        log_level="warning",
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return Server(config)


def _require_guarded(store: Store, settings: Settings) -> None:
    if settings.is_loopback:
        return
    with store.read() as session:
        tokens = session.scalar(select(func.count()).select_from(Token).where(Token.one_time.is_(False)))
    if not tokens:
        raise CliError(
            f"{settings.host} can be reached by others, and nobody has a token yet.",
            "Make one first: `kvdeck token create YOUR-NAME --role admin`.",
        )


def dashboard(
    host: Host = None,
    api_port: ApiPort = None,
    dashboard_port: DashboardPort = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Run the dashboard. It reads the database and writes through the control plane."""
    settings = settings_for(data_dir, host=host, api_port=api_port, dashboard_port=dashboard_port)
    require_free(settings.host, settings.dashboard_port, "the dashboard", "--dashboard-port")
    os.environ |= {"KVDECK_URL": os.environ.get("KVDECK_URL", settings.api_url), **environment_of(settings)}
    command = [sys.executable, "-m", *_dashboard_arguments(settings)]
    # The dashboard takes this process over, so that signals and the exit status are its own.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execv(sys.executable, command)


def environment_of(settings: Settings) -> dict[str, str]:
    """The variables with which another process of the deck has these settings."""
    return {
        "KVDECK_DATABASE_URL": settings.database_url,
        "KVDECK_DATA_DIR": str(settings.data_dir),
        "KVDECK_HOST": settings.host,
        "KVDECK_API_PORT": str(settings.api_port),
        "KVDECK_DASHBOARD_PORT": str(settings.dashboard_port),
    }


def _dashboard_arguments(settings: Settings) -> list[str]:
    # The package is found and not imported: importing it would bring Streamlit into this process.
    if importlib.util.find_spec("dashboard") is None:
        raise CliError("This installation has no dashboard.", "Install kvdeck again.")
    return ["dashboard", f"--server.port={settings.dashboard_port}", f"--server.address={settings.host}"]
