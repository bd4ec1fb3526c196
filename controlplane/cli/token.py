"""`kvdeck token`: credentials. Works on the database itself: whoever can write that file needs no other proof."""

from __future__ import annotations

import datetime as dt
import getpass
from enum import StrEnum
from typing import Annotated, Any

import typer
from sqlalchemy import select

from controlplane import audit
from controlplane.auth import Principal, Role, issue_token, revoke_token
from controlplane.cli.context import (
    DEFAULT_DATA_DIR,
    AsJson,
    DataDir,
    as_time,
    parse_seconds,
    running_ports,
    settings_for,
    show_json,
    show_table,
)
from controlplane.cli.exits import OUT, CliError, Exit
from controlplane.clock import utc_now
from controlplane.settings import Settings
from controlplane.store.models import Token
from controlplane.store.session import Store

LINK_LASTS = dt.timedelta(hours=1)


class RoleWord(StrEnum):
    """The roles there are."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    ENGINE = "engine"


RoleOption = Annotated[RoleWord, typer.Option(help="What the token may do.")]


def register(app: typer.Typer) -> None:
    """Adds `kvdeck token`."""
    token = typer.Typer(no_args_is_help=True, help="Credentials: create, list, revoke, link. Needs the database.")
    token.command("create")(create)
    token.command("issue", hidden=True)(create)
    token.command("list")(list_tokens)
    token.command("revoke")(revoke)
    token.command("link")(link)
    app.add_typer(token, name="token")


def create(
    name: Annotated[str, typer.Argument(help="Whose it is; shown in the audit.")],
    role: RoleOption = RoleWord.VIEWER,
    lasts: Annotated[str, typer.Option("--for", help="How long: 12h, 30d; empty: until revoked.")] = "",
    engine: Annotated[
        str, typer.Option(help="Role engine: whom it speaks for; left out: the first that registers; * for any.")
    ] = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Make a token. Its secret is shown once, here, and never again."""
    ttl = dt.timedelta(seconds=parse_seconds(lasts)) if lasts else None
    store = _open(settings_for(data_dir))
    with store.write() as session:
        secret = issue_token(session, name, Role.parse(role.value), ttl=ttl, engine_id=engine or None)
        audit.record(session, local_principal(), "create_token", name, f"role {role.value}")
    store.dispose()
    show_json({"name": name, "role": role.value, "token": secret}) if as_json else typer.echo(secret)


def list_tokens(data_dir: DataDir = DEFAULT_DATA_DIR, as_json: AsJson = False) -> None:
    """The tokens there are; their secrets are not kept anywhere."""
    store = _open(settings_for(data_dir))
    with store.read() as session:
        rows = [_view(token) for token in session.scalars(select(Token).order_by(Token.created_at))]
    store.dispose()
    if as_json:
        show_json(rows)
        return
    columns = ("id", "name", "role", "engine", "created_at", "expires_at", "used_at", "one_time", "state")
    times = ("created_at", "expires_at", "used_at")
    cells = ([as_time(row[name]) if name in times else row[name] for name in columns] for row in rows)
    show_table("Tokens", columns, cells)


def revoke(
    token_id: Annotated[str, typer.Argument(help="The token's id, as `kvdeck token list` shows it.")],
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """End a token now."""
    store = _open(settings_for(data_dir))
    with store.write() as session:
        ended = revoke_token(session, token_id)
        if ended:
            audit.record(session, local_principal(), "revoke_token", token_id, "revoked on the command line")
    store.dispose()
    if not ended:
        raise CliError(f"No live token has the id {token_id!r}.", "`kvdeck token list` shows them.", Exit.NOT_FOUND)
    OUT.print(f"token {token_id} has ended", markup=False)


def link(role: RoleOption = RoleWord.OPERATOR, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Print a link that signs one browser in, once, within the hour."""
    settings = settings_for(data_dir, **running_ports(data_dir))
    store = _open(settings)
    typer.echo(one_time_link(store, settings, Role.parse(role.value)))
    store.dispose()


def one_time_link(store: Store, settings: Settings, role: Role = Role.OPERATOR) -> str:
    """The address of the dashboard with a token that can be redeemed once, within the hour."""
    with store.write() as session:
        secret = issue_token(session, local_principal().name, role, ttl=LINK_LASTS, one_time=True)
        audit.record(session, local_principal(), "create_link", role.word, "a one-time link was printed")
    host = settings.api_url.rsplit(":", 1)[0]
    return f"{host}:{settings.dashboard_port}/?token={secret}"


def local_principal() -> Principal:
    """Whoever runs this process on this machine."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        name = "local"
    return Principal(name, Role.ADMIN)


def _open(settings: Settings) -> Store:
    return Store(settings.database_url)


def _view(token: Token) -> dict[str, Any]:
    now = utc_now()
    ended = token.expires_at is not None and token.expires_at <= now
    spent = token.one_time and token.used_at is not None
    return {
        "id": token.id,
        "name": token.name,
        "role": token.role,
        "engine": token.engine_id,
        "created_at": token.created_at.isoformat(),
        "expires_at": token.expires_at.isoformat() if token.expires_at else None,
        "used_at": token.used_at.isoformat() if token.used_at else None,
        "one_time": token.one_time,
        "state": "ended" if ended else "spent" if spent else "live",
    }
