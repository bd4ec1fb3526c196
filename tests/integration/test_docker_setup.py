"""`kvdeck setup` and the files that secrets are read from."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from databases import Database
from typer.testing import CliRunner, Result

from controlplane.auth import Role, authenticate
from controlplane.cli.main import app
from controlplane.errors import SchemaMismatch, SettingsError
from controlplane.settings import Settings, read_secret


def run(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(app, ["setup", *words], env=environment)


def test_passwords_are_made_once_and_for_owner_and_group_alone(tmp_path: Path) -> None:
    files = [tmp_path / "database", tmp_path / "grafana"]
    assert run("passwords", *map(str, files)).exit_code == 0
    first = [file.read_text() for file in files]
    assert len(set(first)) == 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o640}
    again = run("passwords", *map(str, files))
    assert again.stdout.count("kept") == 2
    assert [file.read_text() for file in files] == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["database", "grafana"]


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    done = run("passwords", str(tmp_path / "absent" / "password"))
    assert done.exit_code != 0
    assert "cannot be written" in str(done.exception)


def test_the_deck_is_migrated_and_its_token_made_once(databases, tmp_path: Path) -> None:
    for kind in ("sqlite", "postgresql"):
        database: Database = databases.new(kind, migrated=False)
        token = tmp_path / f"{kind}.token"
        for _ in range(2):
            done = run("deck", "--engine-token-file", str(token), KVDECK_DATABASE_URL=database.url)
            assert done.exit_code == 0, done.output
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        store = database.open()
        with store.read() as session:
            assert authenticate(session, token.read_text().strip()).role is Role.ENGINE
        store.dispose()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_every_text_is_refused(postgres_server, tmp_path: Path, encoding: str) -> None:
    name = f"kvdeck_{encoding.lower()}"
    postgres_server.do(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
    done = run("deck", "--engine-token-file", str(tmp_path / "token"), KVDECK_DATABASE_URL=postgres_server.url(name))
    postgres_server.drop(name)
    assert isinstance(done.exception, SchemaMismatch)
    assert done.exception.code == "database_encoding"
    assert encoding in done.exception.message
    assert "ENCODING 'UTF8'" in done.exception.hint
    assert not (tmp_path / "token").exists()


def test_a_token_of_another_database_is_replaced(databases, tmp_path: Path) -> None:
    token = tmp_path / "token"
    for _ in range(2):
        database: Database = databases.new("sqlite")
        assert run("deck", "--engine-token-file", str(token), KVDECK_DATABASE_URL=database.url).exit_code == 0
        store = database.open()
        with store.read() as session:
            assert authenticate(session, token.read_text().strip()).role is Role.ENGINE
        store.dispose()


def test_the_database_password_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("p@ss/w:rd\n")
    environment = {
        "KVDECK_DATA_DIR": str(tmp_path),
        "KVDECK_DATABASE_URL": "postgresql://kvdeck@postgres/kvdeck",
        "KVDECK_DATABASE_PASSWORD_FILE": str(file),
    }
    read = Settings.from_environment(environment)
    assert read.database_url == "postgresql://kvdeck:p%40ss%2Fw%3Ard@postgres/kvdeck"
    with pytest.raises(SettingsError, match="KVDECK_DATABASE_PASSWORD_FILE"):
        Settings.from_environment({**environment, "KVDECK_DATABASE_URL": f"sqlite:///{tmp_path}/x"})


@pytest.mark.parametrize(("content", "says"), [(None, "No such file"), (b"\n", "empty"), (b"\xff\xfe", "not text")])
def test_a_secret_that_cannot_be_read_names_its_variable(tmp_path: Path, content: bytes | None, says: str) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError) as refused:
        read_secret("KVDECK_ENGINE_TOKEN_FILE", str(file))
    assert "KVDECK_ENGINE_TOKEN_FILE" in refused.value.message
    assert says in refused.value.hint
