"""`/docs`: the calls there are, as a page that loads nothing from anywhere."""

from __future__ import annotations

import html
import json
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

router = APIRouter(include_in_schema=False)

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
summary { cursor: pointer; padding: .3rem 0; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { overflow-x: auto; padding: .6rem .8rem; border: 1px solid color-mix(in srgb, currentColor 20%, transparent);
      border-radius: 4px; max-height: 22rem; }
.role { opacity: .7; float: right; }
td, th { text-align: left; padding: .1rem 1rem .1rem 0; vertical-align: top; }
"""


@router.get("/docs", response_class=HTMLResponse)
def docs(request: Request) -> HTMLResponse:
    """Every call with its role, parameters and examples, out of /openapi.json."""
    schema = request.app.openapi()
    calls = [
        _call(schema, method, path, operation)
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
    ]
    intro = (
        f"<p>{html.escape(schema['info']['description'])} A token goes into <code>Authorization: Bearer</code>; "
        'for programs: <a href="/openapi.json">openapi.json</a>.</p>'
    )
    title = f"kvdeck {schema['info']['version']}"
    return HTMLResponse(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"<h1>{title}</h1>{intro}{''.join(calls)}</html>"
    )


def _call(schema: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> str:
    name = f"<code>{method.upper()} {html.escape(path)}</code>"
    role = f'<span class="role">{html.escape(operation["x-kvdeck-role"])}</span>'
    text = html.escape(operation.get("description", ""))
    shown = [f"<p>{text}</p>", _parameters(operation)]
    body = operation.get("requestBody", {}).get("content", {})
    shown += [_example("Sent", _body_example(schema, content)) for content in body.values()]
    shown += [
        _example(f"Answered with {status}", content["example"])
        for status, answer in operation["responses"].items()
        for content in answer.get("content", {}).values()
        if "example" in content
    ]
    summary = html.escape(operation["summary"])
    return f"<details><summary>{name} {summary} {role}</summary>{''.join(shown)}</details>"


def _parameters(operation: dict[str, Any]) -> str:
    rows = [
        f"<tr><td><code>{html.escape(one['name'])}</code></td><td>{one['in']}</td>"
        f"<td>{html.escape(one.get('description', ''))}</td></tr>"
        for one in operation.get("parameters", ())
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""


def _body_example(schema: dict[str, Any], content: dict[str, Any]) -> Any:
    if "example" in content:
        return content["example"]
    name = str(content["schema"].get("$ref", "")).rpartition("/")[2]
    found = schema["components"]["schemas"].get(name, {}).get("examples", [None])
    return found[0]


def _example(title: str, example: Any) -> str:
    if example in (None, ""):
        return ""
    text = html.escape(json.dumps(example, indent=2, ensure_ascii=False))
    return f"<p>{title}</p><pre>{text}</pre>"
