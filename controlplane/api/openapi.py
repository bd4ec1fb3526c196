"""The description of the API as it is served: roles, examples and error bodies added to what FastAPI knows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from controlplane.api.security import Required, authenticated
from controlplane.errors import (
    BadRequest,
    Conflict,
    ControlPlaneError,
    Forbidden,
    Misdirected,
    NotFound,
    TooLarge,
    TooManyRequests,
    Unauthorised,
    Unavailable,
)

ANYONE = "none"
"""The role of a call that needs no token."""
ANY_TOKEN = "any"
ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "hint"],
            "additionalProperties": False,
            "properties": {
                "code": {"type": "string", "description": "Stable, for programs."},
                "message": {"type": "string", "description": "What happened, and to which value."},
                "hint": {"type": "string", "description": "What to do next."},
            },
        }
    },
}
ALWAYS = (BadRequest, TooLarge, Misdirected, Unavailable)
WITH_TOKEN = (Unauthorised, Forbidden, NotFound, Conflict, TooManyRequests)
ERROR_EXAMPLES: Mapping[type[ControlPlaneError], tuple[str, str, str]] = {
    BadRequest: ("request_invalid", "query.limit: Input should be less than or equal to 1000 (got '5000').",
                 "Correct the field; /docs shows what each call takes."),
    Unauthorised: ("token_missing", "This call needs a token.",
                   "Send it as `Authorization: Bearer <token>` (`kvdeck token`)."),
    Forbidden: ("role_insufficient", "ann is viewer; this needs operator.",
                "Ask an admin for a token: `kvdeck token issue --role operator`."),
    NotFound: ("engine_unknown", "No engine 'local' has registered here.", "`kvdeck status` lists them."),
    Conflict: ("version_moved", "Since you looked, 1 prefixes moved on: 3f2a9c0d5b7e is at 7.",
               "Look again and decide on what is there now."),
    TooLarge: ("body_too_large", "The body is over 67108864 bytes.", "Send less at once."),
    Misdirected: ("host_unknown", "This control plane is not known as 'elsewhere.example'.",
                  "Use the address it was started with, or name this one in KVDECK_ALLOWED_HOSTS."),
    TooManyRequests: ("too_many_failures", "Too many tokens from here were wrong; none is looked at for 3 s.",
                      "Correct the token first: `kvdeck token list` shows which there are."),
    Unavailable: ("database_locked", "Another writer held the database for over 5 seconds; nothing was written.",
                  "Try again. If it stays so, look for a process that keeps the database file open."),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of the API: what it is named, who may make it, what it does."""

    method: str
    path: str
    name: str
    role: str
    summary: str

    @property
    def writes(self) -> bool:
        """Whether it is a POST. Some only ask; the audit's test knows which."""
        return self.method == "POST"


def calls_of(routers: Iterable[APIRouter]) -> list[Call]:
    """Every call there is, in the order of the routes."""
    found = []
    for route in (route for router in routers for route in router.routes):
        if isinstance(route, APIRoute) and route.include_in_schema:
            summary = " ".join((route.endpoint.__doc__ or "").strip().partition("\n\n")[0].split())
            role = role_of(route.dependant)
            found += [
                Call(method=method, path=route.path, name=route.name, role=role, summary=summary)
                for method in sorted(route.methods or ())
            ]
    return found


def role_of(dependant: Dependant) -> str:
    """The least role that a route asks for, from its dependencies: ANYONE, ANY_TOKEN or a role's word."""
    calls = list(_every_call(dependant))
    roles = [call.role.word for call in calls if isinstance(call, Required)]
    if roles:
        return roles[0]
    return ANY_TOKEN if authenticated in calls else ANYONE


def install_openapi(app: FastAPI, routers: Iterable[APIRouter]) -> None:
    """Make the app, which has these routers, describe itself with all of this."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _described(app, routers)
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]  # FastAPI's own way to replace it


def operation_id(route: APIRoute) -> str:
    """The function's name: what a generated client calls the method."""
    return route.name


def _described(app: FastAPI, routers: Iterable[APIRouter]) -> dict[str, Any]:
    schema = get_openapi(title=app.title, version=app.version, routes=app.routes, description=app.description)
    parts = schema.setdefault("components", {})
    parts.setdefault("schemas", {})["Error"] = ERROR_SCHEMA
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own shape of errors, which is never sent
        parts["schemas"].pop(name, None)
    parts["responses"] = {kind.__name__: _error_response(kind) for kind in ERROR_EXAMPLES}
    for call in calls_of(routers):
        operation = schema["paths"][call.path][call.method.lower()]
        operation["summary"] = call.summary.partition(". ")[0].rstrip(".") + "."
        operation["x-kvdeck-role"] = call.role
        _add_answers(operation, call)
    return schema


def _add_answers(operation: dict[str, Any], call: Call) -> None:
    answers = operation["responses"]
    answers.pop("422", None)
    example = examples().get(call.name)
    for status, answer in answers.items():
        content = answer.get("content", {}).get("application/json")
        if status.startswith("2") and content is not None and example is not None:
            content["example"] = example
    token = () if call.role == ANYONE and call.method == "GET" else WITH_TOKEN
    for kind in (*ALWAYS, *token):
        answers[str(kind.status)] = {"$ref": f"#/components/responses/{kind.__name__}"}


def _error_response(kind: type[ControlPlaneError]) -> dict[str, Any]:
    code, message, hint = ERROR_EXAMPLES[kind]
    example = {"error": {"code": code, "message": message, "hint": hint}}
    answer: dict[str, Any] = {
        "description": " ".join((kind.__doc__ or "").split()),
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}, "example": example}},
    }
    if kind in (Unavailable, TooManyRequests):
        answer["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds to wait."}}
    return answer


@cache
def examples() -> Mapping[str, Any]:
    """Answers of a real control plane, by the name of the call: `docs/api_examples.py` wrote them down."""
    text = files("controlplane.api").joinpath("examples.json").read_text(encoding="utf-8")
    found: Mapping[str, Any] = json.loads(text)
    return found


def _every_call(dependant: Dependant) -> Iterator[Any]:
    yield dependant.call
    for other in dependant.dependencies:
        yield from _every_call(other)
