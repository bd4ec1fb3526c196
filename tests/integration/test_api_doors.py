"""The doors of the API: wrong tokens are bounded, strange names and long bodies refused, cookies mean nothing."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import socket
from collections.abc import Iterator

import httpx
import pytest
from api_seed import BOOT, ENGINE, PROTOBUF, Seed
from databases import Databases
from steering_support import Deck, running_deck

from controlplane.api.gate import STRANGERS_BYTES, Gate, allowed_names, host_name
from controlplane.api.throttle import (
    FAILURES_AT_ONCE,
    MOST_KEYS,
    PROVEN_SECONDS,
    SECONDS_A_FAILURE,
    FailureThrottle,
    address_key,
)
from controlplane.auth import Role, issue_token, redeem, revoke_token
from controlplane.errors import SettingsError, TooManyRequests
from controlplane.settings import Settings
from controlplane.store.models import Token


@pytest.fixture
def deck(tmp_path, databases: Databases, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deck]:
    """A control plane for which no time passes between failures, however slow the machine."""
    monkeypatch.setattr("controlplane.api.app.FailureThrottle", lambda: FailureThrottle(lambda: 0.0))
    with running_deck(tmp_path, databases.new("sqlite")) as running:
        yield running


def me(deck: Deck, token: str = "", **headers: str) -> httpx.Response:
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return httpx.get(f"{deck.url}/v1/me", headers=headers, trust_env=False, timeout=30)


def test_wrong_tokens_are_bounded_and_a_right_one_from_the_same_address_still_works(deck: Deck) -> None:
    viewer = deck.tokens[Role.VIEWER]
    assert me(deck, viewer).status_code == 200
    answers = [me(deck, f"kvd_wrong{n}") for n in range(FAILURES_AT_ONCE + 5)]
    assert [answer.status_code for answer in answers[:FAILURES_AT_ONCE]] == [401] * FAILURES_AT_ONCE
    assert answers[-1].status_code == 429
    assert int(answers[-1].headers["Retry-After"]) >= 1
    assert answers[-1].json()["error"]["code"] == "too_many_failures"
    assert me(deck, viewer).status_code == 200
    # Which one that was never seen before is right can only be told by looking, and that is what is bounded.
    assert me(deck, deck.tokens[Role.OPERATOR]).status_code == 429


def test_guessing_links_is_bounded_like_guessing_tokens(deck: Deck) -> None:
    def redeemed(n: int) -> int:
        body = {"token": f"kvd_guess{n}"}
        return httpx.post(f"{deck.url}/v1/session", json=body, trust_env=False, timeout=30).status_code

    assert {redeemed(n) for n in range(FAILURES_AT_ONCE)} == {401}
    assert redeemed(99) == 429


def test_a_token_that_was_revoked_is_not_remembered_as_right(deck: Deck) -> None:
    secret = deck.tokens[Role.VIEWER]
    assert me(deck, secret).status_code == 200
    with deck.store.write() as session:
        token_id = session.query(Token.id).filter(Token.role == "viewer").scalar()
        revoke_token(session, token_id)
    answers = [me(deck, secret).status_code for _ in range(FAILURES_AT_ONCE + 1)]
    assert answers == [401] * FAILURES_AT_ONCE + [429]


def test_failures_are_forgiven_steadily_and_counted_for_each_address_apart() -> None:
    now = [0.0]
    throttle = FailureThrottle(lambda: now[0])
    for n in range(FAILURES_AT_ONCE):
        throttle.check("a", f"s{n}")
        throttle.failed("a", f"s{n}")
    with pytest.raises(TooManyRequests, match="none is looked at for 3 s") as caught:
        throttle.check("a", "s")
    assert caught.value.retry_after_seconds == SECONDS_A_FAILURE
    throttle.check("b", "s")
    now[0] += SECONDS_A_FAILURE
    throttle.check("a", "s")


def test_the_memory_of_failures_is_bounded() -> None:
    throttle = FailureThrottle()
    for n in range(MOST_KEYS + 500):
        throttle.failed(f"address:{n}", "s")
        throttle.proved(f"secret-{n}")
    assert len(throttle._buckets) == len(throttle._proven) == MOST_KEYS


def test_what_was_right_is_believed_for_a_while_only() -> None:
    now = [0.0]
    throttle = FailureThrottle(lambda: now[0])
    throttle.proved("good")
    for _ in range(FAILURES_AT_ONCE):
        throttle.failed("a", "bad")
    throttle.check("a", "good")
    now[0] += PROVEN_SECONDS
    for _ in range(FAILURES_AT_ONCE):
        throttle.failed("a", "bad")
    with pytest.raises(TooManyRequests):
        throttle.check("a", "good")


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("10.0.0.7", "address:10.0.0.7"),
        ("::ffff:10.0.0.7", "address:10.0.0.7"),
        ("2001:db8:1:2:aaaa::1", "address:2001:db8:1:2::/64"),
        ("2001:db8:1:2:bbbb::2", "address:2001:db8:1:2::/64"),
        ("testclient", "address:unknown"),
    ],
)
def test_an_ipv6_host_is_its_network(host: str, key: str) -> None:
    assert address_key(host) == key


@pytest.mark.parametrize("name", ["127.0.0.1:1", "localhost", "LOCALHOST.", "[::1]:8410", "127.0.0.1"])
def test_this_machine_s_own_names_are_answered(deck: Deck, name: str) -> None:
    assert me(deck, deck.tokens[Role.VIEWER], Host=name).status_code == 200


@pytest.mark.parametrize(
    "name", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8410", "", "10.0.0.1"]
)
def test_a_name_that_somebody_made_mean_this_machine_is_refused(deck: Deck, name: str) -> None:
    answer = me(deck, deck.tokens[Role.VIEWER], Host=name)
    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "host_unknown")


def test_other_names_are_allowed_by_a_setting_and_off_loopback() -> None:
    def names(**more: str) -> frozenset[str]:
        environ = {"KVDECK_DATA_DIR": "x"} | {f"KVDECK_{key.upper()}": value for key, value in more.items()}
        return allowed_names(Settings.from_environment(environ))

    assert "deck.example" in names(allowed_hosts="Deck.example, 10.0.0.5")
    assert names(host="0.0.0.0") == frozenset()  # any: who listens for others has names that are not known here
    assert names(host="0.0.0.0", allowed_hosts="deck.example") == {"deck.example"}
    with pytest.raises(SettingsError, match="KVDECK_ALLOWED_HOSTS is 'https://a'"):
        names(allowed_hosts="https://a")
    assert host_name("[FE80::1]:80") == "fe80::1"


def told_length(deck: Deck, n_bytes: int, token: str = "") -> bytes:
    """The status of a request that tells the length of its body, and sends not a byte of it."""
    token = f"Authorization: Bearer {token}\r\n" if token else ""
    head = f"POST /v1/session HTTP/1.1\r\nHost: localhost\r\n{token}Content-Length: {n_bytes}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", deck.settings.api_port), timeout=30) as line:
        line.sendall(head.encode())
        return line.recv(4096).split(b" ")[1]


def test_a_body_that_is_too_long_is_refused_unread_with_413(deck: Deck) -> None:
    assert told_length(deck, STRANGERS_BYTES + 1) == b"413"
    chunks = (b"x" * 8192 for _ in range(20))  # of a length that nobody tells
    answer = httpx.post(f"{deck.url}/v1/session", content=chunks, headers={"Content-Type": "application/json"},
                        trust_env=False, timeout=30)  # fmt: skip
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


def test_a_token_allows_a_snapshot_of_many_prefixes_and_no_more(deck: Deck) -> None:
    headers = {"Authorization": f"Bearer {deck.tokens[Role.ENGINE]}", "Content-Type": "application/json"}
    url = f"{deck.url}/v1/engines/{ENGINE}/snapshot"
    some = json.dumps({"boot_id": BOOT, "prefixes": [], "more": "x" * (STRANGERS_BYTES * 2)})
    assert httpx.post(url, content=some, headers=headers, trust_env=False, timeout=30).status_code == 404
    assert told_length(deck, deck.settings.ingest_max_inflated_bytes + 1, deck.tokens[Role.ENGINE]) == b"413"
    assert told_length(deck, 10**19, deck.tokens[Role.ENGINE]) == b"413"


def test_a_gzip_bomb_is_inflated_no_further_than_the_bound(tmp_path, databases: Databases) -> None:
    with running_deck(tmp_path, databases.new("sqlite")) as deck:
        Seed(deck)
        bomb = gzip.compress(b"\0" * (deck.settings.ingest_max_inflated_bytes + 1), compresslevel=9)
        headers = {"Authorization": f"Bearer {deck.tokens[Role.ENGINE]}", "Content-Encoding": "gzip", **PROTOBUF}
        answer = httpx.post(f"{deck.url}/v1/traces", content=bomb, headers=headers, trust_env=False, timeout=60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "otlp_inflated")


def test_a_cookie_proves_nothing_so_no_page_of_elsewhere_can_write(deck: Deck) -> None:
    token = deck.tokens[Role.ADMIN]
    for cookie in (f"token={token}", f"Authorization=Bearer {token}", f"session={token}"):
        assert me(deck, Cookie=cookie).status_code == 401
    assert me(deck, token).headers.get("set-cookie") is None
    crossing = httpx.options(f"{deck.url}/v1/desired", trust_env=False, timeout=30, headers={
        "Origin": "https://evil.example", "Access-Control-Request-Method": "POST"})  # fmt: skip
    assert crossing.status_code == 405
    assert not [name for name in crossing.headers if name.startswith("access-control")]
    # A form can be sent without asking; what it sends is no JSON and has no token.
    form = httpx.post(f"{deck.url}/v1/desired", data={"changes": "{}"}, trust_env=False, timeout=30)
    assert form.status_code == 401


@pytest.mark.parametrize("path", ["/v1/me", "/healthz", "/nowhere", "/docs", "/metrics", "/openapi.json"])
def test_every_answer_carries_the_security_headers(deck: Deck, path: str) -> None:
    headers = httpx.get(deck.url + path, trust_env=False, timeout=30).headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert "default-src 'none'" in headers["Content-Security-Policy"]


def test_a_link_ends_after_its_time_even_unused(deck: Deck) -> None:
    with deck.store.write() as session:
        secret = issue_token(session, "ann", Role.OPERATOR, ttl=dt.timedelta(seconds=-1), one_time=True)
    body = {"token": secret}
    answer = httpx.post(f"{deck.url}/v1/session", json=body, trust_env=False, timeout=30)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "token_expired")


def test_a_session_ends_with_its_time(deck: Deck) -> None:
    with deck.store.write() as session:
        link = issue_token(session, "ann", Role.OPERATOR, ttl=dt.timedelta(hours=1), one_time=True)
        _, secret = redeem(session, link, ttl=dt.timedelta(seconds=-1))
    assert me(deck, secret).json()["error"]["code"] == "token_expired"


def test_the_gate_lets_what_is_no_http_through() -> None:
    seen = []

    async def app(scope, _receive, _send) -> None:
        seen.append(scope["type"])

    import asyncio

    gate = Gate(app, Settings.from_environment({"KVDECK_DATA_DIR": "x"}))
    asyncio.run(gate({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]
