"""Tokens, roles and the audit trail."""

from __future__ import annotations

import datetime as dt

import pytest
from ingest_support import NOW, new_store
from sqlalchemy import select

from controlplane import audit
from controlplane.auth import Principal, Role, authenticate, check_secret, issue_token, note_use, redeem, revoke_token
from controlplane.errors import BadRequest, Forbidden, Unauthorised
from controlplane.store import models, queries

HOUR = dt.timedelta(hours=1)


@pytest.fixture
def store(database):
    store = new_store(database)
    yield store
    store.dispose()


def at(offset: dt.timedelta = dt.timedelta()):
    return lambda: NOW + offset


def issue(store, role: Role = Role.OPERATOR, **more) -> str:
    with store.write() as session:
        return issue_token(session, "someone", role, **{"ttl": HOUR, "clock": at()} | more)


def prove(store, secret: str, offset: dt.timedelta = dt.timedelta()) -> Principal:
    with store.read() as session:
        return authenticate(session, secret, clock=at(offset))


def test_a_token_proves_its_name_and_role(store):
    assert prove(store, issue(store, Role.ADMIN)) == Principal("someone", Role.ADMIN)


def test_the_secret_is_not_in_the_store(store):
    secret = issue(store)
    with store.read() as session:
        (row,) = session.scalars(select(models.Token))
    assert secret not in repr({name: getattr(row, name) for name in row.__table__.c.keys()})  # noqa: SIM118


def test_an_unknown_or_expired_token_proves_nothing(store):
    secret = issue(store)
    with pytest.raises(Unauthorised, match="not known"):
        prove(store, secret + "x")
    prove(store, secret, HOUR - dt.timedelta(seconds=1))
    with pytest.raises(Unauthorised, match="ended at 2026-03-01 13:00:30"):
        prove(store, secret, HOUR)


def test_a_token_without_an_end_goes_on(store):
    assert prove(store, issue(store, ttl=None), HOUR * 100_000)


def test_a_revoked_token_proves_nothing(store):
    secret = issue(store)
    with store.write() as session:
        token_id = check_secret(session, secret, clock=at()).token_id
        assert revoke_token(session, token_id, clock=at())
        assert not revoke_token(session, token_id, clock=at())
    with pytest.raises(Unauthorised):
        prove(store, secret)


def test_a_one_time_link_is_spent_by_its_first_use(store):
    link = issue(store, one_time=True)
    with pytest.raises(Unauthorised, match="one-time link cannot"):
        prove(store, link)
    with store.write() as session:
        principal, secret = redeem(session, link, ttl=HOUR, clock=at())
    assert principal == prove(store, secret) == Principal("someone", Role.OPERATOR)
    with pytest.raises(Unauthorised, match="already used"), store.write() as session:
        redeem(session, link, ttl=HOUR, clock=at())


def test_an_ordinary_token_cannot_be_redeemed_for_a_longer_one(store):
    secret = issue(store)
    with pytest.raises(Unauthorised, match="not a one-time link"), store.write() as session:
        redeem(session, secret, ttl=HOUR * 100, clock=at())


def test_last_use_is_noted_once_a_minute(store):
    secret = issue(store)
    noted = []
    for seconds in (0, 30, 61):
        clock = at(dt.timedelta(seconds=seconds))
        with store.write() as session:
            note_use(session, check_secret(session, secret, clock=clock), clock=clock)
        with store.read() as session:
            noted.append((check_secret(session, secret, clock=clock).used_at - NOW).total_seconds())
    assert noted == [0, 0, 61]


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        (Role.VIEWER, {Role.VIEWER}),
        (Role.OPERATOR, {Role.VIEWER, Role.OPERATOR}),
        (Role.ADMIN, {Role.VIEWER, Role.OPERATOR, Role.ADMIN}),
        (Role.ENGINE, {Role.ENGINE}),
    ],
)
def test_roles_are_ordered_and_engine_is_apart(role, allowed):
    for wanted in Role:
        if wanted in allowed:
            Principal("p", role).must_be(wanted)
        else:
            with pytest.raises(Forbidden, match=f"p is {role.word}; this needs {wanted.word}"):
                Principal("p", role).must_be(wanted)


def test_an_unknown_role_is_answered_with_those_there_are():
    with pytest.raises(BadRequest, match="viewer, operator, admin"):
        Role.parse("root")


def test_the_audit_row_shares_the_fate_of_the_deed(store):
    who = Principal("someone", Role.OPERATOR)

    def fail():
        with store.write() as session:
            audit.record(session, who, "evict", "prefix", "too old", clock=at())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with store.write() as session:
        audit.record(session, who, "evict", "p" * 300, "too old", {"a": 1}, {"a": 2}, "t" * 32, clock=at())
    with store.read() as session:
        (row,) = queries.list_audit(session)
    assert (row.actor, row.role, row.action, row.before, row.after) == (
        "someone",
        "operator",
        "evict",
        {"a": 1},
        {"a": 2},
    )
    assert len(row.target) == 128
