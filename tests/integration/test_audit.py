"""The audit: one row for each write, refusals too; nobody changes it; no secret is in it or in anything else said."""

from __future__ import annotations

import ast
import contextlib
import datetime as dt
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from api_seed import ENGINE, TRACE_ID, WEBHOOK_PATH, WEBHOOK_SECRET, Seed, Visit
from databases import Databases
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError
from steering_support import running_deck

from controlplane import audit
from controlplane.api.app import ROUTERS
from controlplane.api.openapi import calls_of
from controlplane.auth import ANY_ENGINE, Principal, Role, issue_token
from controlplane.clock import utc_now
from controlplane.settings import Settings
from controlplane.store.models import Audit, DesiredState, Token
from controlplane.store.retention import forget_old

ROOT = Path(__file__).parents[2]
ONLY_ASK = {"preview_command", "preview_batch", "try_desired"}
"""Calls by POST that change nothing: a body says what is asked."""
FROM_ENGINES = {"receive_traces", "receive_metrics", "register", "heartbeat", "goodbye", "outcome", "curve", "snapshot"}
"""What engines say of themselves is history, not a deed; the binding of a token is audited."""
ELSEWHERE = {"open_oidc_session"}
"""Tested beside what it needs: an identity provider."""


@pytest.fixture(params=["sqlite", "postgresql"])
def seeded(request, databases: Databases, tmp_path) -> Iterator[Seed]:
    with running_deck(tmp_path, databases.new(request.param)) as deck:
        yield Seed(deck)


def audited(seed: Seed) -> list[Audit]:
    with seed.deck.store.read() as session:
        return list(session.scalars(select(Audit).order_by(Audit.id)))


def all_writes(seed: Seed) -> list[Visit]:
    engines = seed.engines()
    return [*engines[:-1], *seed.people(), engines[-1], seed.forget()]


def test_every_write_adds_one_row_with_who_why_what_and_the_trace(seeded: Seed) -> None:
    visits = all_writes(seeded)
    names = {call.name for call in calls_of(ROUTERS) if call.writes}
    assert {visit.name for visit in visits if visit.method == "POST"} == names - ELSEWHERE
    for visit in visits:
        before = len(audited(seeded))
        answer = visit.send(seeded.deck)
        assert answer.is_success, f"{visit.name}: {answer.text}"
        rows = audited(seeded)[before:]
        assert len(rows) == visit.audited, f"{visit.name}: {[row.action for row in rows]}"
        assert (len(rows) == 0) == (visit.name in ONLY_ASK | FROM_ENGINES | {"poll"}), visit.name
        for row in rows:
            who = "ann" if visit.name == "open_session" else f"test-{visit.role.word}"
            assert (row.actor, row.role) == (who, (visit.role or Role.OPERATOR).word)
            assert row.reason
            assert row.target
            if visit.name not in ("open_session", "receive_alertmanager", "run_policy"):
                assert row.trace_id == TRACE_ID, visit.name
            if visit.name.startswith(("change_", "place_", "revise_", "rollback_", "remove_", "cancel_")):
                assert row.before is not None, visit.name


def test_a_write_that_a_role_may_not_is_refused_changes_nothing_and_is_audited_once_a_minute(seeded: Seed) -> None:
    deck = seeded.deck
    visits = [visit for visit in all_writes(seeded) if visit.role is not None and visit.method == "POST"]
    with deck.store.read() as session:
        revisions = session.scalar(select(func.count()).select_from(DesiredState))
    before = len(audited(seeded))
    for role in Role:
        for visit in visits:
            allowed = role is visit.role if Role.ENGINE in (role, visit.role) else role >= visit.role
            if allowed:
                continue
            answers = [visit.send(deck, token=deck.tokens[role]).status_code for _ in range(2)]
            assert answers == [403, 403], f"{visit.name} as {role.word}"
    rows = audited(seeded)[before:]
    assert {row.action for row in rows} == {"denied"}
    assert {row.role for row in rows} == {role.word for role in Role}
    assert len({(row.actor, row.target) for row in rows}) == len(rows)
    assert all("this needs" in row.reason and row.trace_id == TRACE_ID for row in rows)
    with deck.store.read() as session:
        assert session.scalar(select(func.count()).select_from(DesiredState)) == revisions


def test_one_engine_s_token_speaks_for_no_other_engine(seeded: Seed) -> None:
    deck = seeded.deck
    with deck.store.write() as session:
        tokens = {name: issue_token(session, name, Role.ENGINE, ttl=None, engine_id=name) for name in ("a", ENGINE)}
        fleet = issue_token(session, "fleet", Role.ENGINE, ttl=None, engine_id=ANY_ENGINE)
    for visit in seeded.engines():
        before = len(audited(seeded))
        answer = visit.send(deck, token=tokens["a"])
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "engine_token_bound"), visit.name
        assert len(audited(seeded)) - before == (visit.method == "POST"), visit.name
    for token in (tokens[ENGINE], fleet):
        for visit in seeded.engines()[:-1]:
            answer = visit.send(deck, token=token)
            assert answer.is_success, f"{visit.name}: {answer.text}"


def test_an_engine_s_token_reads_nothing_of_people(seeded: Seed) -> None:
    for visit in seeded.reads():
        if visit.role is Role.VIEWER and visit.name != "me":
            assert visit.send(seeded.deck, token=seeded.deck.tokens[Role.ENGINE]).status_code == 403, visit.name


CHANGES = [
    "UPDATE audit SET actor = 'nobody'",
    "UPDATE audit SET reason = reason",
    "DELETE FROM audit",
    "DELETE FROM audit WHERE id = 1",
]


@pytest.mark.parametrize("statement", CHANGES)
def test_the_database_itself_refuses_to_change_the_audit(seeded: Seed, statement: str) -> None:
    before = [(row.id, row.actor, row.reason) for row in audited(seeded)]
    assert before
    with pytest.raises(DBAPIError, match="append-only"), seeded.deck.store.engine.begin() as connection:
        connection.execute(text(statement))
    assert [(row.id, row.actor, row.reason) for row in audited(seeded)] == before


def test_postgres_refuses_to_empty_it_too(databases: Databases) -> None:
    store = databases.new("postgresql").open()
    with pytest.raises(DBAPIError, match="append-only"), store.engine.begin() as connection:
        connection.execute(text("TRUNCATE audit"))
    store.dispose()


def test_retention_lets_go_of_what_is_old_and_of_nothing_else(database, tmp_path) -> None:
    store = database.open()
    who, now = Principal("ann", Role.OPERATOR), utc_now()
    settings = Settings(database_url=database.url, data_dir=tmp_path, keep_audit_days=10)
    with store.write() as session:
        for days in (30, 20, 11, 9, 0):
            audit.record(session, who, "evict", str(days), "r", clock=lambda days=days: now - dt.timedelta(days=days))
    assert forget_old(store, settings, now)["audit"] == 3
    assert forget_old(store, settings, now - dt.timedelta(days=5))["audit"] == 0
    with store.read() as session:
        assert list(session.scalars(select(Audit.target).order_by(Audit.id))) == ["9", "0"]
    with pytest.raises(DBAPIError, match="append-only"), store.engine.begin() as connection:
        connection.execute(text("DELETE FROM audit"))
    store.dispose()


def test_no_code_changes_or_deletes_the_audit_but_retention() -> None:
    found = set()
    for path in [*(ROOT / "controlplane").rglob("*.py"), *(ROOT / "dashboard").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not any(
                isinstance(a, ast.Name) and a.id == "Audit" for a in node.args
            ):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name not in ("select", "select_from"):
                found.add((path.relative_to(ROOT).as_posix(), name))
    assert found == {("controlplane/store/retention.py", "Rule")}


def test_no_secret_is_in_any_answer_log_row_or_trace(seeded: Seed, caplog, tmp_path) -> None:
    """Every call is made, and some are made to fail; then everything that was said is searched."""
    deck, said, out, err = seeded.deck, [], io.StringIO(), io.StringIO()
    with deck.store.write() as session:
        link = issue_token(session, "ann", Role.OPERATOR, ttl=dt.timedelta(hours=1), one_time=True)
    secrets = {*deck.tokens.values(), link, WEBHOOK_SECRET, WEBHOOK_PATH}
    with caplog.at_level(logging.DEBUG), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        for visit in [*seeded.reads(), *all_writes(seeded)]:
            said.append(visit.send(deck).text)
            said.append(visit.send(deck, token=deck.tokens[Role.VIEWER]).text)
        for body in ({"token": link, "more": WEBHOOK_SECRET}, {"token": [link]}, {"token": link}, {"token": link}):
            answer = httpx.post(f"{deck.url}/v1/session", json=body, trust_env=False, timeout=30)
            said.append(answer.text.replace(answer.json().get("session_token", "-"), ""))
        wrong = {"name": "x", "url": f"ftp://h/{WEBHOOK_PATH}", "secret": [WEBHOOK_SECRET], "reason": "r"}
        for body in (wrong, {**wrong, "secret": WEBHOOK_SECRET}, {**wrong, "secret": WEBHOOK_SECRET, "enabled": "?"}):
            headers = {"Authorization": f"Bearer {deck.tokens[Role.ADMIN]}"}
            answer = httpx.post(f"{deck.url}/v1/receivers", json=body, headers=headers, trust_env=False, timeout=30)
            assert answer.status_code == 400
            said.append(answer.text)
    with deck.store.read() as session:
        said += [json.dumps([row.before, row.after, row.reason, row.target]) for row in session.scalars(select(Audit))]
        said += [token.name + token.secret_sha256 for token in session.scalars(select(Token))]
    said += [out.getvalue(), err.getvalue()]
    # A client's debug log says which headers it sends: that is this test's own client, not the deck.
    said += [record.getMessage() for record in caplog.records if not record.name.startswith(("httpcore", "httpx"))]
    everything = "\n".join(said)
    assert len(everything) > 10_000
    assert [secret for secret in secrets if secret in everything] == []
