"""The API over a real store: who may read what, what errors look like, and OTLP as an exporter sends it."""

from __future__ import annotations

import asyncio
import datetime as dt
import gzip
import threading
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from ingest_support import BOOT, ENGINE, PREFIX, Spans, counter, gauge, new_store, points, traces
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import select

from controlplane.api.app import create_app
from controlplane.auth import Role, issue_token
from controlplane.clock import utc_now
from controlplane.settings import Settings
from controlplane.store import Store
from controlplane.store.models import Engine

PROTOBUF = {"Content-Type": "application/x-protobuf"}


class Client:
    """Calls an app in this process, one event loop a call."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app

    def request(self, method: str, path: str, **more: object) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.request(method, path, **more)

        return asyncio.run(call())

    def get(self, path: str, **more: object) -> httpx.Response:
        return self.request("GET", path, **more)

    def post(self, path: str, **more: object) -> httpx.Response:
        return self.request("POST", path, **more)


class Api:
    """A client for each role over one app."""

    def __init__(self, store: Store, **settings: int) -> None:
        self.store = store
        self.settings = Settings(database_url=store.url, data_dir=Path("x"), **settings)
        self.client = Client(create_app(self.settings, store))
        self.tokens: dict[Role, str] = {}

    def headers(self, role: Role) -> dict[str, str]:
        if role not in self.tokens:
            with self.store.write() as session:
                self.tokens[role] = issue_token(session, role.word, role, ttl=None)
        return {"Authorization": f"Bearer {self.tokens[role]}"}

    def get(self, path: str, role: Role = Role.VIEWER, **query: object):
        return self.client.get(path, params=query or None, headers=self.headers(role))

    def send(self, path: str, body: bytes, role: Role = Role.ENGINE, **headers: str):
        return self.client.post(path, content=body, headers=self.headers(role) | PROTOBUF | headers)


@pytest.fixture
def api(database):
    store = new_store(database, ENGINE)
    yield Api(store)
    store.dispose()


def a_batch(*spans, at: dt.datetime | None = None) -> bytes:
    at = at or utc_now()
    book = Spans()
    return traces([book.transition(1, at=at), book.acquire(at=at), *spans]).SerializeToString()


def error_of(response) -> dict[str, str]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "hint"}
    assert "Traceback" not in response.text
    return body["error"]


READS = [
    "/v1/overview",
    "/v1/engines",
    "/v1/prefixes",
    f"/v1/prefixes/{ENGINE}/{PREFIX}",
    "/v1/validations",
    "/v1/validations/failures",
    "/v1/damaged",
    "/v1/series?name=usable_and_lcp",
    "/v1/marks",
    "/v1/desired",
    "/v1/commands",
    "/v1/policies",
    "/v1/policies/runs",
    "/v1/alerts",
    "/v1/audit",
]


@pytest.mark.parametrize("path", READS)
def test_a_viewer_may_read_and_an_engine_or_a_stranger_may_not(api, path):
    assert api.send("/v1/traces", a_batch()).status_code == 200
    assert api.get(path).status_code == 200
    assert error_of(api.get(path, Role.ENGINE))["code"] == "role_insufficient"
    refused = api.client.get(path)
    assert refused.status_code == 401
    assert refused.headers["WWW-Authenticate"] == "Bearer"
    assert error_of(refused)["code"] == "token_missing"


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR, Role.ADMIN])
@pytest.mark.parametrize("path", ["/v1/traces", "/v1/metrics"])
def test_only_an_engine_may_send_telemetry(api, role, path):
    response = api.send(path, b"", role)
    assert response.status_code == 403
    assert error_of(response)["code"] == "role_insufficient"


def test_spans_sent_as_gzip_are_seen_in_the_reads(api):
    response = api.send("/v1/traces", gzip.compress(a_batch()), **{"Content-Encoding": "gzip"})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/x-protobuf"
    assert not ExportTraceServiceResponse.FromString(response.content).HasField("partial_success")
    overview = api.get("/v1/overview").json()
    assert (overview["requests"], overview["usable_tokens"]) == (1, 64)
    assert overview["usable"] == {"part": 64, "whole": 200, "ratio": 0.32}
    assert overview["holdings"]["prefixes_by_state"] == {"FULL": 1}
    assert api.get("/v1/prefixes", search=PREFIX[:6].upper()).json()["total"] == 1
    assert api.get(f"/v1/prefixes/{ENGINE}/{PREFIX}").json()["now"]["objects"] == {"compressed_kv": {"gpu": 100}}


def test_a_bad_span_comes_back_as_partial_success(api):
    bad = Spans().transition(1, prefix="b" * 33)
    answer = ExportTraceServiceResponse.FromString(api.send("/v1/traces", a_batch(bad)).content)
    assert answer.partial_success.rejected_spans == 1
    assert "prefix.id must be a text of 1 to 32 characters" in answer.partial_success.error_message


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"not protobuf", {}, 400, "otlp_protobuf"),
        (b"not gzip", {"Content-Encoding": "gzip"}, 400, "otlp_gzip"),
        (gzip.compress(b"x" * 100, mtime=0)[:-12], {"Content-Encoding": "gzip"}, 400, "otlp_gzip"),
        (b"", {"Content-Encoding": "br"}, 400, "otlp_encoding"),
        (b"{}", {"Content-Type": "application/json"}, 400, "otlp_media_type"),
    ],
)
def test_bytes_that_are_no_export_are_refused_with_the_reason(api, body, headers, status, code):
    response = api.send("/v1/traces", body, **headers)
    assert response.status_code == status
    assert error_of(response)["code"] == code


def test_bodies_are_bounded_as_sent_and_as_inflated(database):
    store = new_store(database, ENGINE)
    api = Api(store, ingest_max_bytes=1000)
    assert error_of(api.send("/v1/traces", b"x" * 1001))["code"] == "otlp_body"
    bomb = gzip.compress(b"\0" * 100_000)
    assert len(bomb) < 1000
    response = api.send("/v1/traces", bomb, **{"Content-Encoding": "gzip"})
    assert response.status_code == 413
    assert error_of(response)["code"] == "otlp_inflated"
    store.dispose()


def test_unknown_engine_and_wrong_boot_are_told_apart(api):
    stranger = traces([Spans(engine="stranger").acquire()]).SerializeToString()
    assert api.send("/v1/traces", stranger).status_code == 404
    other_boot = traces([Spans(boot="boot-9").acquire()]).SerializeToString()
    assert api.send("/v1/traces", other_boot).status_code == 409


def test_metrics_become_series_and_rates(api):
    now = utc_now()
    body = points(
        counter("kvcache.queries", 100, now, now, of="tokens"),
        counter("kvcache.hits", 80, now, now, of="tokens", object__kind="swa_window", state="FULL", tier="gpu"),
        counter("kvcache.recoveries", 3, now, now, tier="disk", outcome="ok"),
        counter("kvcache.recoveries", 1, now, now, tier="disk", outcome="late"),
        gauge("kvcache.fragmentation", 0.25, now, **{"class": "all"}),
    )
    assert api.send("/v1/metrics", body.SerializeToString()).status_code == 200
    overview = api.get("/v1/overview").json()
    assert overview["hit_by_kind"]["swa_window"] == {"part": 80, "whole": 100, "ratio": 0.8}
    assert overview["recovery_failures"] == {"part": 1, "whole": 4, "ratio": 0.25}
    found = {p["label"]: p["value"] for p in api.get("/v1/series", name="recovery_failure_rate").json()["points"]}
    assert found == {"all": 0.25, "disk": 0.25}
    assert api.get("/v1/series", name="fragmentation").json()["points"][0]["value"] == 0.25


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/nothing", 404, "http_404"),
        (f"/v1/prefixes/{ENGINE}/{'c' * 32}", 404, "prefix_unknown"),
        ("/v1/commands/none", 404, "command_unknown"),
        ("/v1/series?name=mood", 404, "series_unknown"),
        ("/v1/prefixes?order=mood", 400, "order_unknown"),
        ("/v1/prefixes?limit=0", 400, "request_invalid"),
        ("/v1/overview?since=2026-01-01T00:00:00", 400, "time_naive"),
        ("/v1/overview?since=2999-01-01T00:00:00Z", 400, "time_order"),
        ("/v1/overview?minutes=many", 400, "request_invalid"),
    ],
)
def test_errors_have_one_shape_and_say_what_to_do(api, path, status, code):
    response = api.get(path)
    assert response.status_code == status
    error = error_of(response)
    assert error["code"] == code
    assert error["message"]
    assert error["hint"]


def test_every_read_refuses_an_engine_that_never_registered_and_answers_of_a_forgotten_one(api):
    """A slip in a name, answered with nothing, would read as calm."""
    needed = {"name": "usable_and_lcp"}
    asked = 0
    for path, calls in api.client.app.openapi()["paths"].items():
        parameters = [one["name"] for one in calls.get("get", {}).get("parameters", ()) if one["in"] == "query"]
        if "engine" in parameters:
            asked += 1
            called = path.replace("{name}", "warm-up")
            more = {key: value for key, value in needed.items() if key in parameters}
            response = api.get(called, engine="nobody", **more)
            assert (response.status_code, error_of(response)["code"]) == (404, "engine_unknown"), called
    assert asked >= 18
    with api.store.write() as session:
        session.get(Engine, ENGINE).forgotten_at = utc_now()
    assert api.get("/v1/validations/failures", engine=ENGINE).status_code == 200
    assert api.get("/v1/alerts", engine="(control plane)").json() == []


def test_an_unknown_series_is_answered_with_those_there_are(api):
    assert "tier_io_p99" in error_of(api.get("/v1/series", name="x"))["hint"]


def test_a_locked_database_is_503_with_when_to_try_again(api):
    api.headers(Role.ENGINE)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with api.store.write() as session:
            session.execute(select(Engine).with_for_update())  # SQLite locks the file, Postgres the row
            held.set()
            release.wait(30)

    impatient = Store(api.store.url)
    with impatient.engine.connect() as connection:
        wait = "PRAGMA busy_timeout=1" if impatient.dialect == "sqlite" else "SET lock_timeout = '10ms'"
        connection.exec_driver_sql(wait)
        connection.commit()
    api.client.app.state.store = impatient
    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    response = api.send("/v1/traces", a_batch())
    assert api.get("/v1/engines", Role.ENGINE).status_code == 403  # reads, tokens too, go on
    release.set()
    holder.join()
    assert response.status_code == 503
    assert int(response.headers["Retry-After"]) > 0
    assert error_of(response)["code"] == "database_locked"
    impatient.dispose()


def test_a_database_without_tables_is_503_and_says_migrate(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/empty.sqlite3")
    client = Client(create_app(Settings(database_url=store.url, data_dir=tmp_path), store))
    response = client.get("/healthz")
    assert response.status_code == 503
    assert "kvdeck migrate" in error_of(response)["hint"]
    store.dispose()


def test_a_bug_is_told_without_its_traceback(api, monkeypatch):
    def fail(*_arguments: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("controlplane.store.queries.list_policies", fail)
    response = api.get("/v1/policies")
    assert response.status_code == 500
    assert "secret detail" not in response.text
    assert error_of(response)["code"] == "internal"


def test_a_one_time_link_becomes_a_session_once(api):
    with api.store.write() as session:
        link = issue_token(session, "operator link", Role.OPERATOR, ttl=dt.timedelta(hours=1), one_time=True)
    opened = api.client.post("/v1/session", json={"token": link})
    assert opened.json()["role"] == "operator"
    headers = {"Authorization": f"Bearer {opened.json()['session_token']}"}
    assert api.client.get("/v1/me", headers=headers).json() == {"role": "operator", "name": "operator link"}
    again = api.client.post("/v1/session", json={"token": link})
    assert again.status_code == 401
    assert error_of(again)["code"] == "token_spent"
    assert [row["action"] for row in api.get("/v1/audit").json()] == ["open_session"]


def test_health_and_metrics_need_no_token_and_name_no_prefix(api):
    api.send("/v1/traces", a_batch())
    api.send("/v1/traces", b"junk")
    assert api.client.get("/healthz").json() == {"status": "ok", "database": api.store.dialect}
    response = api.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    found = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }

    def value(name, **labels):
        return found[name, frozenset(labels.items())]

    assert value("kvdeck_ingest_items_total", fate="accepted", of="spans") == 2
    assert value("kvdeck_ingest_exports_total", of="spans", status="otlp_protobuf") == 1
    assert value("kvdeck_ingest_lag_seconds_count", of="spans") == 1
    assert value("kvdeck_prefixes", state="FULL") == 1
    assert value("kvdeck_engines", health="unreachable") == 1
    assert value("kvdeck_database_up") == 1
    assert value("kvdeck_leader") == 0
    assert value("kvdeck_http_requests_total", method="POST", route="/v1/traces", status="200") == 1
    assert PREFIX not in response.text
    assert "tenant-a" not in response.text


def test_paths_that_are_none_of_ours_make_no_series_of_their_own(api):
    for path in ("/v1/nothing", "/wp-login.php", f"/v1/prefixes/{ENGINE}/{PREFIX}", "/v1/overview"):
        api.get(path)
    text = api.client.get("/metrics").text
    assert 'route="none",status="404"} 2.0' in text
    assert 'route="/v1/prefixes/{engine}/{prefix_id}"' in text
    assert "wp-login" not in text


def test_engines_show_health_and_sync_apart(api):
    (engine,) = api.get("/v1/engines").json()
    assert (engine["id"], engine["boot_id"], engine["sync"]) == (ENGINE, BOOT, "in_sync")
    assert engine["health"] == "unreachable"  # it registered at a fixed time, long ago
    assert engine["snapshot_wanted"]


def test_background_work_lives_as_long_as_the_app(tmp_path, database):
    calls: list[str] = []

    class Recorder:
        def start(self) -> None:
            calls.append("start")

        def stop(self) -> None:
            calls.append("stop")

    store = new_store(database)
    app = create_app(Settings(database_url=store.url, data_dir=tmp_path), store, background=Recorder())

    async def live() -> None:
        async with app.router.lifespan_context(app):
            assert calls == ["start"]

    asyncio.run(live())
    assert calls == ["start", "stop"]
    store.dispose()
