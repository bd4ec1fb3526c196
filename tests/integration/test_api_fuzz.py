"""Every call of the API, from its own description and from good requests spoilt one value at a time: never a 5xx.

The first part is schemathesis on the served OpenAPI document, as each role. The second takes one good request for each
call and puts what databases and JSON choke on into each of its values: it reaches what random bodies do not.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import requests
import schemathesis
from api_seed import ENGINE, Seed, Visit
from databases import Databases
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from sqlalchemy import func, select
from steering_support import Deck, prefix_id, running_deck

from controlplane.auth import Role
from controlplane.store.models import Audit, Base

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
EXAMPLES = {Role.OPERATOR: 8, Role.ADMIN: 8, Role.VIEWER: 2, Role.ENGINE: 8}
"""Requests a call and kind (that fit the description, and that do not), by role."""
ALLOWED = {Role.ENGINE: {"engine"}, Role.ADMIN: {"admin"}, Role.OPERATOR: {"viewer", "operator", "any", "none"}}
"""Whose calls a role makes: what it is refused answers 403 before it looks, and a viewer, who makes all, shows that."""
MODES = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)


@schemathesis.serializer("application/x-protobuf")
def as_it_is(_context: Any, value: Any) -> bytes:
    """OTLP bodies are bytes to the description; test_ingest_bad_input.py has those that are nearly right."""
    return value if isinstance(value, bytes) else json.dumps(value, default=repr).encode()


@pytest.fixture(params=["sqlite", "postgresql"])
def seeded(request, databases: Databases, tmp_path) -> Iterator[Seed]:
    """A control plane with some of everything."""
    with running_deck(tmp_path, databases.new(request.param)) as deck:
        yield Seed(deck)


def rows(deck: Deck) -> dict[str, int]:
    """How many rows each table has."""
    with deck.store.read() as session:
        return {
            table.name: session.scalar(select(func.count()).select_from(table)) for table in Base.metadata.sorted_tables
        }


def refusals(deck: Deck) -> int:
    """How often it is audited that the viewer tried to write: once a minute for a call."""
    tried = (Audit.actor == "test-viewer", Audit.action == "denied")
    with deck.store.read() as session:
        return session.scalar(select(func.count()).select_from(Audit).where(*tried)) or 0


def described(deck: Deck) -> schemathesis.BaseSchema:
    project = ProjectConfig(generation=GenerationConfig(deterministic=True))
    config = SchemathesisConfig(projects=ProjectsConfig(default=project))
    document = requests.get(f"{deck.url}/openapi.json", timeout=30).json()
    return schemathesis.openapi.from_dict(document, config=config)


def cases(operation: Any, known: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Requests for a call: with ids of their own, and with those of things that are there."""
    # A poll waits for as long as it is told to.
    query = {"query": {"wait_s": 0}} if operation.path.endswith("/poll") else {}
    here = {p.name: known[p.name] for p in operation.path_parameters if p.name in known}
    ways = [operation.as_strategy(mode, **query) for mode in MODES]
    if here:
        ways += [operation.as_strategy(mode, path_parameters=here, **query) for mode in MODES]
    return st.one_of(ways)


@pytest.mark.parametrize("role", list(EXAMPLES))
@pytest.mark.parametrize("seeded", ["sqlite"], indirect=True)
def test_no_call_fails_on_what_its_description_allows_or_forbids(seeded: Seed, role: Role) -> None:
    deck, before = seeded.deck, rows(seeded.deck)
    known = {"engine_id": ENGINE, "engine": ENGINE, "prefix_id": prefix_id(1), "name": "warm-up",
             "command_id": seeded.told["submit_command"], "batch_id": seeded.told["submit_batch"],
             "alert_id": int(seeded.told["alert"]), "silence_id": int(seeded.told["create_silence"])}  # fmt: skip
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {deck.tokens[role]}"
    called = 0
    for found in described(deck).get_all_operations():
        operation = found.ok()
        if role in ALLOWED and operation.definition.raw["x-kvdeck-role"] not in ALLOWED[role]:
            continue

        @seed(20260301)
        @settings(max_examples=EXAMPLES[role] * len(MODES), derandomize=True, database=None, deadline=None,
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(case=cases(operation, known))
        def one_call(case: Any) -> None:
            answer = case.call(base_url=deck.url, session=session)
            case.validate_response(answer, checks=CHECKS)

        one_call()
        called += 1
    assert called > {Role.VIEWER: 70, Role.OPERATOR: 60, Role.ENGINE: 6, Role.ADMIN: 1}[role]
    if role is Role.VIEWER:
        assert rows(deck) == before | {"audit": before["audit"] + refusals(deck)}


REFUSED: dict[str, str] = {
    "nul": r'"a\u0000b"',
    "half a pair": r'"\ud800"',
    "over 63 bits": str(2**63),
    "under 63 bits": str(-(2**63) - 1),
    "infinite": "1e400",
    "NaN": "NaN",
    "Infinity": "-Infinity",
    "huge number": "9" * 6000,
    "deep": "[" * 400 + "]" * 400,
    "very deep": "[" * 60_000 + "]" * 60_000,
    "deep maps": '{"a":' * 60 + "1" + "}" * 60,
    "no end": '{"a": [1, 2',
    "no text": "\udcff",
}
"""What no field may hold: refused before any field is looked at."""
ODD: dict[str, str] = {
    "minus one": "-1",
    "largest": str(2**63 - 1),
    "a fraction": "1.5",
    "large": "1e308",
    "long": json.dumps("x" * 70_000),
    "blank": '" "',
    "empty": '""',
    "null": "null",
    "true": "true",
    "list": '["x", 1, null]',
    "map": '{"x": {"y": null}, "": 1}',
    "year 1": '"0001-01-01T00:00:00+14:00"',
    "year 9999": '"9999-12-31T23:59:59-14:00"',
    "odd offset": '"2026-03-01T12:00:00+99:99"',
    "naive time": '"2026-03-01T12:00:00"',
    "right to left": '"\u202egnp.exe\u0301\U0001f600"',
    "quotes": r'"\"; DROP TABLE audit; --"',
}
KEPT = ("minus one", "largest", "large", "long", "blank", "empty", "year 1", "year 9999", "right to left", "quotes")
"""Of ODD, what a field may hold, and so what a database meets. The others are refused by their type: one database is
enough to show that."""
PLACE = "@@here@@"
JSON = {"Content-Type": "application/json"}


def spoilt(body: Any) -> Iterator[Any]:
    """The body with PLACE instead of each of its values in turn, and with a field more."""

    def places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        if path:
            yield path
        children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, child in children:
            yield from places(child, (*path, key))

    for path in places(body, ()):
        changed = copy.deepcopy(body)
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = PLACE
        yield changed
    yield {**body, "one_more": PLACE}
    yield PLACE


def complaint(visit: Visit, what: str, answer: httpx.Response) -> str | None:
    """What is wrong with an answer to a spoilt request, or None."""
    if answer.status_code >= 500 or (answer.status_code >= 400 and set(answer.json()) != {"error"}):
        return f"{visit.name} {what}: {answer.status_code} {answer.text[:200]}"
    if "NaN" in answer.text or "Infinity" in answer.text.replace("-Infinity)", ""):
        return f"{visit.name} {what}: {answer.text[:200]}" if answer.is_success else None
    return None


def test_no_value_of_any_body_breaks_a_call(seeded: Seed) -> None:
    deck, complaints = seeded.deck, []
    clients = {role: httpx.Client(base_url=deck.url, trust_env=False, timeout=30) for role in Role}
    for role, client in clients.items():
        client.headers["Authorization"] = f"Bearer {deck.tokens[role]}"
    for visit in [*seeded.engines()[:-1], *seeded.people()]:
        if not isinstance(visit.body, dict) or visit.role is None:
            continue
        *places, more, whole = spoilt(visit.body)
        if deck.store.dialect == "sqlite":
            sent = [(place, what, odd) for place in (*places, more, whole) for what, odd in ODD.items()]
            sent += [(places[-1], what, odd) for what, odd in REFUSED.items()]
        else:
            sent = [(place, what, ODD[what]) for place in places for what in KEPT]
        for place, what, odd in sent:
            text = json.dumps(place)
            content = text.replace(f'"{PLACE}"', odd).encode("utf-8", "surrogateescape")
            answer = clients[visit.role].request(visit.method, visit.path, content=content, headers=JSON)
            complaints.append(complaint(visit, f"{what} in {text[:160]}", answer))
            if what in REFUSED:
                assert answer.status_code == 400, f"{visit.name} {what}: {answer.text[:200]}"
    for client in clients.values():
        client.close()
    assert len(complaints) > (2000 if deck.store.dialect == "sqlite" else 1000)
    assert [one for one in complaints if one] == []


QUERY = ["", " ", "a\0b", "%00", "9" * 500, "-1", "1e999", "nan", "inf", str(2**63), str(2**64), "0001-01-01T00:00:00Z",
         "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-03-01T12:00:00", "2026-13-45", "true", "[]",
         "x" * 5000, "%", "_", "\\", "'", "\U0001f600", "%ed%a0%80"]  # fmt: skip


def filled(template: str, value: str) -> str:
    """The path with a value, as it goes over the line, for each of its parameters."""
    return "".join(quote(value, safe="") if part[:1] == "{" else part for part in re.split(r"(\{[a-z_]+\})", template))


def test_no_query_and_no_path_breaks_a_read(seeded: Seed) -> None:
    deck, complaints = seeded.deck, []
    paths = httpx.get(f"{deck.url}/openapi.json", trust_env=False, timeout=30).json()["paths"]
    with httpx.Client(base_url=deck.url, trust_env=False, timeout=30) as client:
        client.headers["Authorization"] = f"Bearer {deck.tokens[Role.OPERATOR]}"
        for visit in seeded.reads():
            if visit.path == "/metrics":
                continue
            template = next(
                path for path, calls in paths.items() if calls.get("get", {}).get("operationId") == visit.name
            )
            names = [p["name"] for p in paths[template]["get"].get("parameters", ()) if p["in"] == "query"]
            for value in QUERY:
                for name in names:
                    answer = client.get(visit.path, params={**visit.query, name: value})
                    complaints.append(complaint(visit, f"{name}={value[:60]!r}", answer))
                if "{" in template:
                    answer = client.get(filled(template, value[:200]))
                    complaints.append(complaint(visit, f"path {value[:60]!r}", answer))
    assert len(complaints) > 1000
    assert [one for one in complaints if one] == []
