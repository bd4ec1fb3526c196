"""What the API says of itself: every call has a role, a summary and examples that its own schema allows, and a verb."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema_rs
import pytest
from databases import Databases
from fastapi.testclient import TestClient

from controlplane.api.app import ROUTERS, create_app
from controlplane.api.openapi import ANY_TOKEN, ANYONE, calls_of, examples
from controlplane.auth import Role
from controlplane.settings import Settings

ROOT = Path(__file__).parents[2]
CALLS = calls_of(ROUTERS)
JSON, PROTOBUF = "application/json", "application/x-protobuf"


def pairs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_api", ROOT / "docs" / "api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("openapi")
    database = Databases(lambda: pytest.fail("no Postgres is needed here"), folder).new("sqlite")
    store = database.open()
    yield TestClient(create_app(Settings(database_url=database.url, data_dir=folder), store), "http://127.0.0.1")
    store.dispose()


@pytest.fixture(scope="module")
def schema(client) -> dict[str, Any]:
    return client.get("/openapi.json").json()


def checked(schema: dict[str, Any], part: dict[str, Any], example: Any) -> list[str]:
    """What is wrong with an example of a part of the document."""
    whole = {**part, "components": schema["components"]}
    return [error.message for error in jsonschema_rs.Draft202012Validator(whole).iter_errors(example)]


def operation(schema: dict[str, Any], call: Any) -> dict[str, Any]:
    return schema["paths"][call.path][call.method.lower()]


def test_each_call_has_a_name_of_its_own_a_role_and_a_summary(schema) -> None:
    assert len({call.name for call in CALLS}) == len(CALLS) > 60
    for call in CALLS:
        said = operation(schema, call)
        assert said["operationId"] == call.name
        assert said["x-kvdeck-role"] == call.role
        assert call.role in {role.word for role in Role} | {ANY_TOKEN, ANYONE}
        assert 5 < len(said["summary"]) <= 200, call.name
        assert said["description"]
        assert bool(said.get("security")) == (call.role != ANYONE), call.name
    assert sum(len(calls) for calls in schema["paths"].values()) == len(CALLS)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_what_is_sent_and_answered_has_an_example_that_its_schema_allows(schema, call) -> None:
    said = operation(schema, call)
    if call.method == "POST":
        ((media_type, content),) = said["requestBody"]["content"].items()
        if media_type == JSON:
            name = content["schema"]["$ref"].rpartition("/")[2]
            given = schema["components"]["schemas"][name]["examples"]
            assert [checked(schema, content["schema"], one) for one in given] == [[] for _ in given]
        else:
            assert media_type == PROTOBUF
    good = {status: answer for status, answer in said["responses"].items() if status.startswith("2")}
    assert len(good) == 1
    for answer in good.values():
        for media_type, content in answer["content"].items():
            if media_type == JSON:
                assert "example" in content, f"{call.name}: run docs/api_examples.py"
                assert checked(schema, content["schema"], content["example"]) == []


def test_every_error_that_a_call_can_answer_is_described_with_an_example(schema) -> None:
    for call in CALLS:
        statuses = set(operation(schema, call)["responses"])
        assert {"400", "413", "421", "503"} <= statuses
        assert "422" not in statuses
        if call.role != ANYONE:
            assert {"401", "403", "404", "409", "429"} <= statuses
    for name, answer in schema["components"]["responses"].items():
        content = answer["content"][JSON]
        assert checked(schema, content["schema"], content["example"]) == [], name
        assert content["example"]["error"]["hint"]
    assert "Retry-After" in schema["components"]["responses"]["TooManyRequests"]["headers"]


def test_examples_are_of_calls_that_there_are_and_tell_no_secret() -> None:
    names = {call.name for call in CALLS}
    assert set(examples()) <= names
    text = json.dumps(examples())
    assert "/tmp" not in text
    assert [word for word in text.split('"') if word.startswith("kvd_")] == ["kvd_shown-once-and-never-again"] * 2


def test_every_call_has_a_verb_or_a_maker_that_is_no_person() -> None:
    found = pairs()
    names = {call.name for call in CALLS}
    assert set(found.VERBS) | set(found.NO_VERB) == names
    assert not set(found.VERBS) & set(found.NO_VERB)
    for call in CALLS:  # whatever a person may change can be changed in a shell
        if call.writes and call.role in ("operator", "admin"):
            assert call.name in found.VERBS or call.name == "receive_alertmanager"


def test_the_page_of_the_calls_shows_each_and_loads_nothing(client) -> None:
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    for call in CALLS:
        assert f"{call.method} {call.path}</code>" in page.text
    for loading in ("<script", "src=", "<link", "@import", "url("):
        assert loading not in page.text
