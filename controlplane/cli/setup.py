"""`kvdeck setup`: the first start of a deck in containers. Every verb may run again, at any later start."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from controlplane.auth import Role, authenticate, issue_token
from controlplane.cli.context import DEFAULT_DATA_DIR, DataDir, read_token, settings_for
from controlplane.cli.exits import OUT, CliError
from controlplane.errors import Unauthorised
from controlplane.store.session import Store

PASSWORD_BYTES = 24
OWNER_AND_GROUP = 0o640  # the database server has a user of its own, and shares the group
OWNER = 0o600


def register(app: typer.Typer) -> None:
    """Adds `kvdeck setup`."""
    setup = typer.Typer(no_args_is_help=True, help="First start of a deck in containers: passwords, schema, tokens.")
    setup.command("passwords")(passwords)
    setup.command("deck")(deck)
    app.add_typer(setup, name="setup")


def passwords(
    files: Annotated[list[Path], typer.Argument(help="Files to make; what is in one already is kept.")],
) -> None:
    """Put a random password in each file that has none, readable by its owner and group alone."""
    for file in files:
        kept = bool(read_token(file))
        if not kept:
            write_secret(file, secrets.token_urlsafe(PASSWORD_BYTES), OWNER_AND_GROUP)
        OUT.print(f"{file}: {'kept' if kept else 'made'}", markup=False)


def deck(
    engine_token_file: Annotated[
        Path, typer.Option(help="Where the engine host will read its token, readable by its owner alone.")
    ],
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Bring the database to this version's schema, and make the engine host's token unless the file has one that holds.

    People's tokens: `kvdeck token create`; a link for the browser: `kvdeck token link`.
    """
    from controlplane.store.migrate import upgrade

    settings = settings_for(data_dir)
    revision = upgrade(settings.database_url)
    OUT.print(f"The database is at revision {revision}.")
    store = Store(settings.database_url)
    try:
        standing_token(store, engine_token_file, "engine", Role.ENGINE)
    finally:
        store.dispose()
    OUT.print(f"The engine host's token is in {engine_token_file}.", markup=False)


def standing_token(store: Store, path: Path, name: str, role: Role) -> str:
    """The secret in the file, if it still holds; else a new one, readable by this user alone."""
    secret = read_token(path)
    with store.write() as session:
        if secret:
            try:
                if authenticate(session, secret).role is role:
                    return secret
            except Unauthorised:
                pass  # revoked, or of another database: a new one is made below
        secret = issue_token(session, name, role, ttl=None)
    write_secret(path, secret, OWNER)
    return secret


def write_secret(path: Path, secret: str, mode: int) -> None:
    """Write a file that is there whole or not at all, and was never readable by more than `mode` says.

    Raises CliError when it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER), "w", encoding="utf-8") as file:
            file.write(secret + "\n")
            os.fchmod(file.fileno(), mode)  # not at creation: a umask would take the group's share away
        draft.replace(path)
    except OSError as error:
        raise CliError(
            f"{path} cannot be written: {error.strerror}.", "Its folder must exist and be this user's to write."
        ) from error
