"""A control plane with some of everything, told through its own API, and one good request for every call there is."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from ingest_support import Spans, counter, gauge, points, traces
from steering_support import Deck, prefix_id

from controlplane.auth import Role, issue_token
from controlplane.clock import utc_now
from controlplane.steering.alerts import rules
from controlplane.steering.policies import registry
from controlplane.store.models import Alert, Notification

ENGINE, BOOT = "engine-1", "boot-1"
TRACEPARENT = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
TRACE_ID = "ab" * 16
PROTOBUF = {"Content-Type": "application/x-protobuf"}
WEBHOOK_PATH = "T0P-SECRET-PATH"
WEBHOOK_SECRET = "a-webhook-secret-that-signs"


TOLD_FIRST = (
    "submit_command",
    "submit_batch",
    "revise_desired",
    "create_policy",
    "create_alert_rule",
    "create_silence",
    "create_receiver",
    "label_prefixes",
    "run_policy",
    "receive_alertmanager",
)


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One request that a seeded control plane answers with 2xx. `audited`: how many rows it adds to the audit."""

    name: str
    method: str
    path: str
    role: Role | None
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | bytes | None = None
    audited: int = 0

    def send(self, deck: Deck, *, token: str | None = None) -> httpx.Response:
        """Makes the request, as the role it needs or with the token given."""
        headers = {"traceparent": TRACEPARENT}
        if token or self.role is not None:
            headers["Authorization"] = f"Bearer {token or deck.tokens[self.role]}"
        how: dict[str, Any] = {"params": dict(self.query), "headers": headers, "trust_env": False, "timeout": 30}
        if isinstance(self.body, bytes):
            how |= {"content": self.body, "headers": headers | PROTOBUF}
        elif self.body is not None:
            how["json"] = self.body
        return httpx.request(self.method, deck.url + self.path, **how)


def curve_document() -> dict[str, Any]:
    """A curve as engines post it: a hot tenth of the pages gets most of the hits."""
    sums = {"samples": 4000.0, "watched_pages": 2048, "rate": 0.25, "references": 16000.0, "requests": 500.0,
            "prompt_tokens": 1_024_000.0, "lcp_tokens": 512_000.0, "usable_tokens": 490_000.0, "answer_pages": 900.0,
            "points": [(10.0, 0.1), (100.0, 0.4), (1000.0, 0.5), (5000.0, 0.52)]}  # fmt: skip
    row = {"prefixes": 40, "pages": 400, "gpu_pages": 400, "gpu_bytes": 40 << 20}
    held = {"total": row, "namespaces": {"tenant-a": row}, "tiers": {"gpu": 40 << 20},
            "caps": {"prefixes": 50, "gpu_bytes": None, "host_bytes": None, "disk_bytes": None,
                     "namespaces": {"tenant-a": {"max_bytes": 20 << 20}}}}  # fmt: skip
    return {"page_tokens": 64, "page_bytes": 100_000, "held": held, "total": sums, "others": sums,
            "namespaces": {"tenant-a": sums}}  # fmt: skip


class Seed:
    """What was told, by id, so that requests can name it."""

    def __init__(self, deck: Deck) -> None:
        self.deck = deck
        self.at = utc_now() - dt.timedelta(seconds=90)
        self.book = Spans(ENGINE, BOOT)
        self.told: dict[str, str] = {}
        with deck.store.write() as session:
            registry.seed(session, self.at)
            rules.seed(session, self.at)
        self._tell_engine()
        self._tell_people()

    def _tell_engine(self) -> None:
        for visit in (self.register(), self.traces(), self.metrics(), self.curve(), self.heartbeat()):
            answer = visit.send(self.deck)
            assert answer.status_code == 200, f"{visit.name}: {answer.text}"

    def _tell_people(self) -> None:
        made = {visit.name: visit for visit in self.people()}
        for name in TOLD_FIRST:
            answer = made[name].send(self.deck)
            assert answer.is_success, f"{name}: {answer.text}"
            body = answer.json()
            self.told |= {name: str(body.get("id") or body.get("batch_id") or body.get("revision") or "")}
        self._raise_alert()

    def _raise_alert(self) -> None:
        with self.deck.store.write() as session:
            alert = Alert(
                rule="engine_silent", engine_id=ENGINE, state="firing", severity="critical", summary="no word for 70 s",
                runbook="", value=70.0, threshold=60.0, since=self.at, fired_at=self.at,
            )  # fmt: skip
            session.add(alert)
            session.flush()
            self.told["alert"] = str(alert.id)
            session.add(
                Notification(
                    id=str(uuid.uuid4()), receiver="on-call", alert_id=alert.id, state="firing", body={},
                    status="pending", attempts=0, next_at=self.at + dt.timedelta(days=1), created_at=self.at,
                )
            )  # fmt: skip

    def register(self, engine: str = ENGINE) -> Visit:
        body = {"boot_id": BOOT, "model": "toy", "fingerprint": "f", "page_tokens": 64, "group": "chat",
                "labels": {"rack": "b7"}, "observed": {"mode": "normal"}}  # fmt: skip
        return self._engine("register", body, engine)

    def heartbeat(self, engine: str = ENGINE) -> Visit:
        body = {"boot_id": BOOT, "observed_revision": 0, "observed": {"mode": "normal"}, "stats": {"requests": 3}}
        return self._engine("heartbeat", body, engine)

    def curve(self, engine: str = ENGINE) -> Visit:
        return self._engine("curve", {"boot_id": BOOT, "curve": curve_document()}, engine)

    def snapshot(self, engine: str = ENGINE) -> Visit:
        entry = {"prefix.id": prefix_id(1), "namespace": "tenant-a", "life": 1_772_366_400_000_000_000, "version": 9,
                 "state.from": "FULL", "state.to": "FULL", "cause": "commit", "tokens": 128, "pages": 2,
                 "bytes.gpu": 100}  # fmt: skip
        return self._engine("snapshot", {"boot_id": BOOT, "prefixes": [entry]}, engine)

    def traces(self, engine: str = ENGINE) -> Visit:
        book = Spans(engine, BOOT)
        spans = [book.transition(n, prefix=prefix_id(n2), at=self.at) for n2 in (1, 2, 3) for n in (1, 2)]
        spans += [book.validate(at=self.at), book.validate("fail", "window_stale", at=self.at)]
        spans += [book.acquire(at=self.at), book.transition(3, "QUARANTINED", prefix=prefix_id(3), at=self.at)]
        return Visit(name="receive_traces", method="POST", path="/v1/traces", role=Role.ENGINE,
                     body=traces(spans).SerializeToString())  # fmt: skip

    def metrics(self, engine: str = ENGINE) -> Visit:
        found = (
            counter("kvcache.recoveries", 7, self.at, self.at, outcome="ok", tier="disk"),
            gauge("kvcache.fragmentation", 0.2, self.at, **{"class": "page"}),
        )
        return Visit(name="receive_metrics", method="POST", path="/v1/metrics", role=Role.ENGINE,
                     body=points(*found, engine=engine, boot=BOOT).SerializeToString())  # fmt: skip

    def _engine(self, name: str, body: Mapping[str, Any], engine: str) -> Visit:
        return Visit(name=name, method="POST", path=f"/v1/engines/{engine}/{name}", role=Role.ENGINE, body=body)

    def engines(self, engine: str = ENGINE) -> list[Visit]:
        """What an engine sends, in an order in which all of it is taken."""
        done = {"status": "running", "progress": {"done": 0}}
        return [
            self.register(engine),
            self.heartbeat(engine),
            self.curve(engine),
            Visit(name="poll", method="GET", path=f"/v1/engines/{engine}/poll", role=Role.ENGINE, query={"wait_s": 0}),
            Visit(name="outcome", method="POST", role=Role.ENGINE, body=done,
                  path=f"/v1/engines/{engine}/commands/{self.told.get('submit_command', 'none')}/outcome"),
            self.traces(engine),
            self.metrics(engine),
            self.snapshot(engine),
            Visit(name="goodbye", method="POST", path=f"/v1/engines/{engine}/goodbye", role=Role.ENGINE,
                  body={"boot_id": BOOT}),
        ]  # fmt: skip

    def people(self) -> Iterator[Visit]:
        """What operators send, in an order in which all of it is taken."""
        key = uuid.uuid4().hex
        policy, rule, receiver = f"p-{key[:8]}", f"r_{key[:8]}", f"c-{key[:8]}"
        reason = {"reason": "the test says so"}
        selector = {"namespace": "tenant-a"}
        arguments = {"prefix_ids": [prefix_id(1)]}
        told, alert = self.told, self.told.get("alert", "1")

        def post(name: str, path: str, audited: int, role: Role = Role.OPERATOR, /, **body: Any) -> Visit:
            return Visit(name=name, method="POST", path=path, role=role, body=body, audited=audited)

        yield post("submit_command", "/v1/commands", 1, engine=ENGINE, kind="pin", arguments=arguments,
                   idempotency_key=key, **reason)  # fmt: skip
        yield post("preview_command", "/v1/commands/preview", 0, engine=ENGINE, kind="evict", selector=selector)
        yield post("place_engine", f"/v1/engines/{ENGINE}/place", 1, labels={"rack": key[:8]}, **reason)
        yield post("label_prefixes", "/v1/prefixes/labels", 1, prefix_ids=[prefix_id(1)], labels={"p": key[:8]},
                   **reason)  # fmt: skip
        yield post("submit_batch", "/v1/batches", 1, kind="unpin", selected={ENGINE: {prefix_id(2): 99}},
                   idempotency_key=key, **reason)  # fmt: skip
        yield post("preview_batch", "/v1/batches/preview", 0, kind="evict", selector=selector)
        caps = {"cap_prefixes": int(key[:5], 16) + 10}
        yield post("try_desired", "/v1/desired/try", 0, changes=caps)
        yield post("revise_desired", "/v1/desired", 1, changes=caps, **reason)
        yield post("create_policy", "/v1/policies", 1, name=policy, kind="warmup", cron="30 6 * * mon-fri", **reason)
        yield post("change_policy", f"/v1/policies/{policy}", 1, paused=True, **reason)
        yield post("run_policy", f"/v1/policies/{policy}/run", 1, dry_run=False, **reason)
        yield post("remove_policy", f"/v1/policies/{policy}/remove", 1, **reason)
        yield post("create_alert_rule", "/v1/alert-rules", 1, name=rule, kind="silence",
                   title="No word", above=90.0, resolve_at=30.0, **reason)  # fmt: skip
        yield post("change_alert_rule", f"/v1/alert-rules/{rule}", 1, above=120.0, **reason)
        yield post("remove_alert_rule", f"/v1/alert-rules/{rule}/remove", 1, **reason)
        until = (utc_now() + dt.timedelta(hours=1)).isoformat()
        yield post("create_silence", "/v1/silences", 1, matchers={"rule": rule}, until=until, **reason)
        yield post("create_receiver", "/v1/receivers", 1, Role.ADMIN, name=receiver,
                   url=f"https://alerts.example/{WEBHOOK_PATH}", secret=WEBHOOK_SECRET, **reason)  # fmt: skip
        yield post("change_receiver", f"/v1/receivers/{receiver}", 1, Role.ADMIN, secret=WEBHOOK_SECRET + "2", **reason)
        yield post("remove_receiver", f"/v1/receivers/{receiver}/remove", 1, Role.ADMIN, **reason)
        outside = {"status": "firing", "labels": {"alertname": "n", "kvdeck_policy": "warm-up"}, "startsAt": until,
                   "fingerprint": key[:16]}  # fmt: skip
        yield post("receive_alertmanager", "/v1/alertmanager", 1, version="4", status="firing", alerts=[outside])
        if not told:
            return
        yield post("rollback_desired", "/v1/desired/rollback", 1, revision=int(told["revise_desired"]), **reason)
        yield post("acknowledge_alert", f"/v1/alerts/{alert}/acknowledge", 1, **reason)
        yield post("remove_silence", f"/v1/silences/{told['create_silence']}/remove", 1, **reason)
        yield post("cancel_batch", f"/v1/batches/{told['submit_batch']}/cancel", 1, **reason)
        yield post("cancel_command", f"/v1/commands/{told['submit_command']}/cancel", 1, **reason)
        with self.deck.store.write() as session:
            link = issue_token(session, "ann", Role.OPERATOR, ttl=dt.timedelta(hours=1), one_time=True)
        yield Visit(name="open_session", method="POST", path="/v1/session", role=None, body={"token": link}, audited=1)

    def forget(self) -> Visit:
        """Taken once the engine said goodbye: the last of all."""
        return Visit(name="forget_engine", method="POST", path=f"/v1/engines/{ENGINE}/forget", role=Role.OPERATOR,
                     body={"reason": "gone for good"}, audited=1)  # fmt: skip

    def reads(self) -> Iterator[Visit]:
        """Every call that only looks."""
        told = self.told

        def get(name: str, path: str, role: Role | None = Role.VIEWER, /, **query: Any) -> Visit:
            return Visit(name=name, method="GET", path=path, role=role, query=query)

        yield get("healthz", "/healthz", None)
        yield get("metrics", "/metrics", None)
        yield get("me", "/v1/me")
        for name, path in {
            "overview": "/v1/overview", "engines": "/v1/engines", "prefixes": "/v1/prefixes",
            "prefix": f"/v1/prefixes/{ENGINE}/{prefix_id(1)}", "failures": "/v1/validations/failures",
            "validations": "/v1/validations", "damaged": "/v1/damaged", "marks": "/v1/marks", "desired": "/v1/desired",
            "commands": "/v1/commands", "command": f"/v1/commands/{told['submit_command']}", "audit_rows": "/v1/audit",
            "batch": f"/v1/batches/{told['submit_batch']}", "in_force": f"/v1/desired/engines/{ENGINE}",
            "policies": "/v1/policies", "policy_kinds": "/v1/policies/kinds", "policy_runs": "/v1/policies/runs",
            "policy": "/v1/policies/warm-up", "alerts": "/v1/alerts", "alert": f"/v1/alerts/{told['alert']}",
            "alert_rules": "/v1/alert-rules", "rule_kinds": "/v1/alert-rules/kinds",
            "alert_rule": "/v1/alert-rules/engine_silent", "list_silences": "/v1/silences",
            "list_receivers": "/v1/receivers", "notifications": "/v1/notifications",
            "inbound_alerts": "/v1/alertmanager", "losses": "/v1/losses", "losses_by_minute": "/v1/losses/minutes",
            "namespaces": "/v1/namespaces", "requests": "/v1/requests", "doctor": "/v1/doctor",
            "outcomes": "/v1/whatif/outcomes",
        }.items():  # fmt: skip
            yield get(name, path)
        yield get("policy_why", "/v1/policies/degrade/why")
        yield get("series", "/v1/series", name="usable_and_lcp")
        yield get("whatif", "/v1/whatif", engine=ENGINE, cap_bytes=20 << 20)
