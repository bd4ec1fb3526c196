"""Who may do what: roles, and tokens that are stored only as hashes."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import secrets
import uuid
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, cast

from sqlalchemy import Row, Table, bindparam, or_, select, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session

from controlplane.clock import Clock, utc_now
from controlplane.errors import BadRequest, Forbidden, Unauthorised
from controlplane.store.models import Token

SECRET_PREFIX = "kvd_"  # lets secret scanners find a leaked one
ANY_ENGINE = "*"  # the engine of a token that may speak for all: for hosts that come and go by themselves
USE_NOTED_EVERY = dt.timedelta(minutes=1)  # a read must not cost a write each time


class Role(IntEnum):
    """People's roles are ordered. ENGINE lies below them all: an engine may speak, never look or steer."""

    ENGINE = 0
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        """The role as it is stored, printed and typed."""
        return self.name.lower()

    @classmethod
    def parse(cls, word: str) -> Role:
        """The role a person typed. Raises BadRequest naming the roles there are."""
        try:
            return cls[word.upper()]
        except KeyError:
            allowed = ", ".join(role.word for role in cls)
            raise BadRequest("role_unknown", f"There is no role {word!r}.", f"Roles: {allowed}.") from None


@dataclass(frozen=True, slots=True)
class Principal:
    """Whoever is asking, once proven. `engine_id` is the engine a token of role engine speaks for: None while it has
    registered none, ANY_ENGINE for all."""

    name: str
    role: Role
    engine_id: str | None = None
    token_id: str | None = field(default=None, compare=False)

    def must_be(self, role: Role) -> None:
        """Raise Forbidden unless this principal has `role` or more. ENGINE is not "less", it is different."""
        allowed = self.role is Role.ENGINE if role is Role.ENGINE else self.role >= role
        if not allowed:
            raise Forbidden(
                "role_insufficient",
                f"{self.name} is {self.role.word}; this needs {role.word}.",
                f"Ask an admin for a token: `kvdeck token issue --role {role.word}`.",
            )

    def must_speak_for(self, engine_id: str) -> None:
        """Raise Forbidden when this engine's token was bound to another engine."""
        if self.engine_id not in (None, ANY_ENGINE, engine_id):
            raise Forbidden(
                "engine_token_bound",
                f"The token {self.name!r} speaks for engine {self.engine_id!r}, not for {engine_id!r}.",
                f"Give this host a token of its own: `kvdeck token create {engine_id} --role engine`.",
            )


@dataclass(frozen=True, slots=True)
class Credential:
    """A token that was found valid, and when its use was last noted."""

    principal: Principal
    token_id: str
    used_at: dt.datetime | None


def issue_token(
    session: Session,
    name: str,
    role: Role,
    *,
    ttl: dt.timedelta | None,
    one_time: bool = False,
    engine_id: str | None = None,
    clock: Clock = utc_now,
) -> str:
    """Store a new token's hash and return its secret, which is never seen again. `ttl` None: it does not expire.

    `engine_id`, for role engine alone: whom it speaks for; None binds it to the first engine that registers with it.
    """
    if engine_id is not None and role is not Role.ENGINE:
        raise BadRequest("token_engine", f"A token of role {role.word} speaks for no engine.", "Use role engine.")
    secret = SECRET_PREFIX + secrets.token_urlsafe(32)
    now = clock()
    session.add(
        Token(
            id=str(uuid.uuid4()),
            name=name,
            role=role.word,
            secret_sha256=_digest(secret),
            created_at=now,
            expires_at=None if ttl is None else now + ttl,
            used_at=None,
            one_time=one_time,
            engine_id=engine_id,
        )
    )
    session.flush()
    return secret


def authenticate(session: Session, secret: str, *, clock: Clock = utc_now) -> Principal:
    """The principal a secret proves. Raises Unauthorised when it is unknown, expired or a one-time link."""
    return check_secret(session, secret, clock=clock).principal


def check_secret(session: Session, secret: str, *, clock: Clock = utc_now) -> Credential:
    """As `authenticate`, with the token's own facts beside the principal."""
    token = _find(session, secret, clock())
    if token.one_time:
        raise Unauthorised(
            "token_one_time",
            "A one-time link cannot be used as a token.",
            "Redeem it first: open the link, or POST it to /v1/session.",
        )
    return Credential(_principal(token), token.id, token.used_at)


def bind_engine(session: Session, principal: Principal, engine_id: str) -> bool:
    """Bind an engine's token to the first engine that registers with it; whether this call did. Needs a write session.

    Raises Forbidden when it is bound to another one, also by somebody at the same moment.
    """
    principal.must_speak_for(engine_id)
    if principal.engine_id is not None or principal.token_id is None:
        return False
    unbound = (Token.id == principal.token_id, Token.engine_id.is_(None))
    result = session.execute(update(Token).where(*unbound).values(engine_id=engine_id))
    if isinstance(result, CursorResult) and result.rowcount == 1:
        return True
    bound = session.scalar(select(Token.engine_id).where(Token.id == principal.token_id))
    Principal(principal.name, principal.role, bound).must_speak_for(engine_id)
    return False


def note_use(session: Session, credential: Credential, *, clock: Clock = utc_now) -> None:
    """Remember that the token was used, at most once a minute. Needs a write session."""
    now = clock()
    stale = or_(Token.used_at.is_(None), Token.used_at <= now - USE_NOTED_EVERY)
    session.execute(update(Token).where(Token.id == credential.token_id, stale).values(used_at=now))


def use_is_stale(credential: Credential, *, clock: Clock = utc_now) -> bool:
    """Whether `note_use` would write anything."""
    return credential.used_at is None or credential.used_at <= clock() - USE_NOTED_EVERY


def redeem(session: Session, secret: str, *, ttl: dt.timedelta, clock: Clock = utc_now) -> tuple[Principal, str]:
    """Spend a one-time token: its principal, and the secret of a session token that lives for `ttl`.

    Needs a write session. Raises Unauthorised when it is unknown, expired, spent, or not a one-time token.
    """
    now = clock()
    token = _find(session, secret, now)
    if not token.one_time:
        raise Unauthorised("token_not_one_time", "This token is not a one-time link.", "Use it directly as a token.")
    spend = update(Token).where(Token.id == token.id, Token.used_at.is_(None)).values(used_at=now)
    result = session.execute(spend.execution_options(synchronize_session=False))
    # The update is the test: of two that redeem at once, one finds the row unspent.
    if not isinstance(result, CursorResult) or result.rowcount != 1:
        raise Unauthorised(
            "token_spent", "This one-time link was already used.", "Print a new one: `kvdeck token link`."
        )
    principal = _principal(token)
    return principal, issue_token(session, principal.name, principal.role, ttl=ttl, clock=clock)


def revoke_token(session: Session, token_id: str, *, clock: Clock = utc_now) -> bool:
    """End a token now. False when there is none with this id, or it had already ended."""
    now = clock()
    live = or_(Token.expires_at.is_(None), Token.expires_at > now)
    result = session.execute(update(Token).where(Token.id == token_id, live).values(expires_at=now))
    return isinstance(result, CursorResult) and result.rowcount == 1


# Every call asks: one statement, made once, that loads no row of the store as an object.
_TOKENS = cast(Table, Token.__table__)
_BY_DIGEST = select(_TOKENS).where(_TOKENS.c.secret_sha256 == bindparam("digest"))


def _find(session: Session, secret: str, now: dt.datetime) -> Row[Any]:
    digest = _digest(secret)
    token = session.execute(_BY_DIGEST, {"digest": digest}).one_or_none()
    # The index compares digests, which tells an attacker nothing of the secret; this costs nothing and settles it.
    if token is None or not hmac.compare_digest(token.secret_sha256, digest):
        raise Unauthorised("token_unknown", "This token is not known here.", "Check it, or ask an admin for a new one.")
    if token.expires_at is not None and token.expires_at <= now:
        raise Unauthorised(
            "token_expired", f"This token ended at {token.expires_at:%Y-%m-%d %H:%M:%S} UTC.", "Ask for a new one."
        )
    return token


def _principal(token: Row[Any]) -> Principal:
    return Principal(token.name, Role.parse(token.role), token.engine_id, token.id)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
