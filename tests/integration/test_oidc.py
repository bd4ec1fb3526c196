"""ID tokens over the API: what holds gets a session of its role, and what does not is refused in words."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from joserfc.jwk import RSAKey
from oidc_support import KeyHolder
from sqlalchemy import select

from controlplane.api.app import create_app
from controlplane.errors import SettingsError
from controlplane.oidc import name_of, words_at
from controlplane.settings import Settings
from controlplane.store import models as m
from controlplane.store.migrate import upgrade
from controlplane.store.session import Store

ROLES = "kv-admins=admin,kv-ops=operator,*=viewer"


@pytest.fixture(scope="module")
def holder() -> Iterator[KeyHolder]:
    made = KeyHolder()
    yield made
    made.close()


@pytest.fixture
def deck(tmp_path, holder) -> Iterator[TestClient]:
    yield from _deck(tmp_path, holder.issuer, ROLES)


def _deck(folder, issuer: str, roles: str) -> Iterator[TestClient]:
    environment = {"KVDECK_DATA_DIR": str(folder), "KVDECK_OIDC_CLIENT_ID": "kvdeck"}
    if issuer:
        environment |= {"KVDECK_OIDC_ISSUER": issuer, "KVDECK_OIDC_ROLES": roles}
    settings = Settings.from_environment(environment)
    upgrade(settings.database_url)
    store = Store(settings.database_url)
    with TestClient(create_app(settings, store), base_url="http://127.0.0.1") as client:
        client.store = store  # type: ignore[attr-defined]
        yield client
    store.dispose()


def _trade(deck: TestClient, token: str) -> tuple[int, dict]:
    answer = deck.post("/v1/session/oidc", json={"id_token": token})
    return answer.status_code, answer.json()


@pytest.mark.parametrize(
    ("groups", "role"),
    [(["kv-ops"], "operator"), (["kv-ops", "kv-admins"], "admin"), ("kv-ops", "operator"), ([], "viewer")],
)
def test_a_token_that_holds_gets_the_highest_role_of_its_claim(deck, holder, groups, role):
    status, said = _trade(deck, holder.token(groups=groups, email="ann@example.org"))
    assert (status, said["role"], said["name"]) == (200, role, "ann@example.org")
    bearer = {"Authorization": f"Bearer {said['session_token']}"}
    assert deck.get("/v1/me", headers=bearer).json() == {"role": role, "name": "ann@example.org"}
    with deck.store.read() as session:  # type: ignore[attr-defined]
        row = session.scalars(select(m.Audit).order_by(m.Audit.id.desc())).first()
    assert (row.actor, row.role, row.action) == ("ann@example.org", role, "open_session")
    assert holder.issuer in row.reason


def test_a_session_by_oidc_ends_with_its_time_and_acts_only_by_its_role(deck, holder):
    _, said = _trade(deck, holder.token())
    bearer = {"Authorization": f"Bearer {said['session_token']}"}
    body = {"changes": {"cap_prefixes": 9}, "reason": "as a viewer"}
    assert deck.post("/v1/desired", headers=bearer, json=body).json()["error"]["code"] == "role_insufficient"
    with deck.store.read() as session:  # type: ignore[attr-defined]
        token = session.scalars(select(m.Token)).one()
    assert (token.expires_at - token.created_at).total_seconds() == 12 * 3600


def test_what_does_not_hold_is_refused(deck, holder):
    stranger = RSAKey.generate_key(2048, {"kid": "first"})
    unsigned = ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "none"}, {"iss": holder.issuer, "aud": "kvdeck", "sub": "u1", "exp": time.time() + 60})
    )
    for token in (
        holder.token(key=stranger),
        holder.token(aud="another"),
        holder.token(iss="https://elsewhere.example"),
        holder.token(aud=["kvdeck", "another"]),
        holder.token(nbf=int(time.time()) + 3600),
        unsigned + ".",
        "no token at all",
    ):
        status, said = _trade(deck, token)
        assert (status, said["error"]["code"]) in ((401, "id_token_invalid"), (429, "too_many_failures")), said
    with deck.store.read() as session:  # type: ignore[attr-defined]
        assert session.scalars(select(m.Token)).all() == []


def test_an_old_token_says_to_sign_in_again(deck, holder):
    status, said = _trade(deck, holder.token(exp=int(time.time()) - 120))
    assert (status, said["error"]["code"]) == (401, "id_token_expired")


def test_a_key_signed_with_the_client_secret_is_refused(deck, holder):
    from joserfc import jwt
    from joserfc.jwk import OctKey

    claims = {"iss": holder.issuer, "aud": "kvdeck", "sub": "u1", "exp": int(time.time()) + 60}
    shared = jwt.encode({"alg": "HS256"}, claims, OctKey.import_key("a secret that the client knows, 32+"))
    assert _trade(deck, shared)[0] == 401


def test_a_new_key_of_the_provider_is_looked_for_but_not_at_every_token(tmp_path):
    holder = KeyHolder()
    try:
        for deck in _deck(tmp_path, holder.issuer, ROLES):
            assert _trade(deck, holder.token())[0] == 200
            asked = holder.asked
            assert _trade(deck, "x.y.z")[0] == 401
            assert holder.asked == asked
            deck.app.state.provider._keys_at -= 60
            holder.change_key()
            assert _trade(deck, holder.token())[0] == 200
    finally:
        holder.close()


def test_without_a_role_the_refusal_names_claim_and_words(tmp_path, holder):
    for deck in _deck(tmp_path, holder.issuer, "kv-ops=operator"):
        status, said = _trade(deck, holder.token(groups=["sales"]))
        assert (status, said["error"]["code"]) == (403, "oidc_no_role")
        assert "'groups' is sales" in said["error"]["message"]


def test_without_a_provider_and_with_one_that_is_gone_it_says_so(tmp_path):
    for deck in _deck(tmp_path / "off", "", ""):
        assert _trade(deck, "a.b.c")[1]["error"]["code"] == "oidc_off"
    for deck in _deck(tmp_path / "gone", "http://127.0.0.1:9", ROLES):
        status, said = _trade(deck, "a.b.c")
        assert (status, said["error"]["code"]) == (503, "oidc_unavailable")


def test_a_name_is_what_the_provider_stands_by():
    assert name_of({"sub": "u1", "email": "ann@example.org"}) == "ann@example.org"
    assert name_of({"sub": "u1", "email": "boss@example.org", "email_verified": False}) == "u1"
    assert name_of({"sub": "u1", "preferred_username": "root"}) == "u1"


def test_a_claim_may_lie_inside():
    assert words_at({"realm_access": {"roles": ["a", 3, "b"]}}, "realm_access.roles") == ("a", "b")
    assert words_at({"https://x.example/groups": "a"}, "https://x.example/groups") == ("a",)
    assert words_at({}, "groups") == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"KVDECK_OIDC_ISSUER": "http://idp.example"},
        {"KVDECK_OIDC_ROLES": "ops"},
        {"KVDECK_OIDC_ROLES": "ops=engine"},
        {"KVDECK_OIDC_ISSUER": "https://idp.example"},
        {"KVDECK_OIDC_ISSUER": "https://idp.example", "KVDECK_OIDC_CLIENT_ID": "kvdeck"},
    ],
)
def test_settings_that_would_let_nobody_or_anybody_in_stop_the_start(tmp_path, wrong):
    with pytest.raises(SettingsError, match="KVDECK_OIDC"):
        Settings.from_environment({"KVDECK_DATA_DIR": str(tmp_path), **wrong})
