"""Alerts over HTTP: what fires, the rules, and the door for alerts from outside."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from controlplane.api.asked import SubjectAsked
from controlplane.api.security import Operator, StoreOf, Viewer
from controlplane.api.write_routes import Reason, ReasonBody, Traceparent
from controlplane.steering.alerts import acknowledge, expressions, inbound, rules
from controlplane.steering.deed import Deed
from controlplane.steering.parameters import defaults_of, knobs_of
from controlplane.store import queries, queries_alerts
from controlplane.store.queries_steering import AlertView
from controlplane.store.query_types import view

router = APIRouter(tags=["alerts"])

Name = Annotated[str, Path(max_length=64)]
Limit = Annotated[int, Query(ge=1, le=1000)]
RowNumber = Annotated[int, Path(ge=1, le=2**62)]
Severity = Literal["info", "warning", "critical"]


class AcknowledgeBody(BaseModel):
    """Somebody looks after it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "the disk is being replaced"}]})
    reason: str = Field(default="acknowledged", min_length=1, max_length=2000)


class RuleTunables(BaseModel):
    """What can be set and changed of a rule."""

    model_config = ConfigDict(extra="forbid")
    title: str | None = Field(default=None, max_length=128)
    parameters: dict[str, Any] | None = Field(default=None, description="The kind's own, and `unit`.")
    above: float | None = Field(default=None, description="Fires above this.")
    resolve_at: float | None = Field(default=None, description="Resolves at this or below; never over `above`.")
    for_seconds: int | None = Field(default=None, description="It must stay above for so long before it fires.")
    severity: Severity | None = None
    runbook: str | None = Field(default=None, max_length=256, description="A link; without it the docs' own section.")
    scope: dict[str, str | None] | None = Field(default=None, description="`engine` or `group`, and `namespace`.")
    enabled: bool | None = None


class NewRuleBody(RuleTunables):
    """A rule to add."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "name": "restores_slow",
                    "kind": "ratio",
                    "title": "Restores are late",
                    "parameters": {
                        "part": "kvcache.recoveries",
                        "part_where": {"outcome": "late", "tier": "disk"},
                        "whole": "kvcache.recoveries",
                        "window_seconds": 300,
                        "minimum": 10,
                        "unit": "of the restores were late",
                    },
                    "above": 0.1,
                    "resolve_at": 0.02,
                    "for_seconds": 60,
                    "severity": "warning",
                    "scope": {"group": "chat"},
                    "reason": "the disks of this group are old",
                }
            ]
        },
    )
    name: str = Field(max_length=64)
    kind: str = Field(max_length=32)
    title: str = Field(max_length=128)
    above: float
    resolve_at: float
    for_seconds: int = 0
    severity: Severity = "warning"
    reason: Reason


class ChangeRuleBody(RuleTunables):
    """A change of a rule: what is left out stays."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"above": 0.3, "resolve_at": 0.1, "reason": "too eager"},
                {"enabled": False, "reason": "we have no disk tier"},
            ]
        },
    )
    reason: Reason


class OutsideAlertBody(BaseModel):
    """One alert of an Alertmanager payload."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str] = Field(max_length=64)
    annotations: dict[str, str] = Field(default={}, max_length=64)
    startsAt: dt.datetime
    fingerprint: str = Field(default="", max_length=64)


class AlertmanagerBody(BaseModel):
    """What Alertmanager posts to a webhook, version 4. What is not named here is not looked at."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "version": "4",
                    "groupKey": '{}:{alertname="NodeRestarted"}',
                    "status": "firing",
                    "receiver": "kvdeck",
                    "groupLabels": {"alertname": "NodeRestarted"},
                    "commonLabels": {"alertname": "NodeRestarted", "kvdeck_policy": "warm-up"},
                    "commonAnnotations": {},
                    "externalURL": "http://alertmanager.example",
                    "alerts": [
                        {
                            "status": "firing",
                            "labels": {
                                "alertname": "NodeRestarted",
                                "kvdeck_policy": "warm-up",
                                "kvdeck_engine": "engine-1",
                            },
                            "annotations": {"summary": "the node came back"},
                            "startsAt": "2026-01-31T03:12:00Z",
                            "endsAt": "0001-01-01T00:00:00Z",
                            "fingerprint": "c6eb94a1b3e4f2d0",
                        }
                    ],
                }
            ]
        }
    )
    version: Literal["4"]
    status: Literal["firing", "resolved"]
    alerts: list[OutsideAlertBody] = Field(min_length=1, max_length=1000)


def deed_of(who: Any, reason: str, traceparent: str | None = None) -> Deed:
    """Who does it and why, as the write door takes it."""
    return Deed(principal=who, reason=reason, traceparent=traceparent)


@router.get("/v1/alerts")
def alerts(
    _caller: Viewer,
    store: StoreOf,
    engine: SubjectAsked = None,
    state: Annotated[list[str] | None, Query()] = None,
    limit: Limit = 100,
) -> list[queries.AlertView]:
    """Alerts, newest first."""
    with store.read() as session:
        return queries.list_alerts(session, engine_id=engine, states=state or (), limit=limit)


@router.get("/v1/alerts/{alert_id}")
def alert(alert_id: RowNumber, _caller: Viewer, store: StoreOf) -> queries_alerts.AlertDetail:
    """One alert, its rule, and who was told."""
    with store.read() as session:
        return queries_alerts.get_alert(session, alert_id)


@router.post("/v1/alerts/{alert_id}/acknowledge")
def acknowledge_alert(
    alert_id: RowNumber, body: AcknowledgeBody, store: StoreOf, who: Operator, traceparent: Traceparent = None
) -> AlertView:
    """Say that somebody looks after an alert."""
    with store.write() as session:
        return view(AlertView, acknowledge(session, deed_of(who, body.reason, traceparent), alert_id))


@router.get("/v1/alert-rules")
def alert_rules(_caller: Viewer, store: StoreOf) -> list[queries_alerts.AlertRuleView]:
    """The rules, by name."""
    with store.read() as session:
        return queries_alerts.list_alert_rules(session)


@router.get("/v1/alert-rules/kinds")
def rule_kinds(_caller: Viewer) -> list[dict[str, Any]]:
    """The kinds of expressions a rule can have, and their parameters."""
    return [
        {
            "kind": kind,
            "is": " ".join((expression.__doc__ or "").split()),
            "parameters": [
                {"name": name, "default": defaults_of(expression)[name], "allowed": k.allowed, "meaning": k.meaning}
                for name, k in knobs_of(expression).items()
            ],
        }
        for kind, expression in expressions.KINDS.items()
    ]


@router.get("/v1/alert-rules/{name}")
def alert_rule(name: Name, _caller: Viewer, store: StoreOf) -> queries_alerts.AlertRuleView:
    """One rule."""
    with store.read() as session:
        return view(queries_alerts.AlertRuleView, rules.find(session, name))


@router.post("/v1/alert-rules", status_code=201)
def create_alert_rule(
    body: NewRuleBody, store: StoreOf, who: Operator, traceparent: Traceparent = None
) -> queries_alerts.AlertRuleView:
    """Add a rule."""
    wanted = body.model_dump(exclude={"name", "reason"}, exclude_none=True)
    with store.write() as session:
        row = rules.create(session, deed_of(who, body.reason, traceparent), body.name, wanted)
        return view(queries_alerts.AlertRuleView, row)


@router.post("/v1/alert-rules/{name}")
def change_alert_rule(
    name: Name, body: ChangeRuleBody, store: StoreOf, who: Operator, traceparent: Traceparent = None
) -> queries_alerts.AlertRuleView:
    """Tune, scope, enable or disable a rule."""
    changes = body.model_dump(exclude={"reason"}, exclude_none=True)
    with store.write() as session:
        row = rules.change(session, deed_of(who, body.reason, traceparent), name, changes)
        return view(queries_alerts.AlertRuleView, row)


@router.post("/v1/alert-rules/{name}/remove")
def remove_alert_rule(
    name: Name, body: ReasonBody, store: StoreOf, who: Operator, traceparent: Traceparent = None
) -> dict[str, str]:
    """Remove a rule that somebody created; its alerts are resolved by the next evaluation."""
    with store.write() as session:
        rules.remove(session, deed_of(who, body.reason, traceparent), name)
    return {"removed": name}


@router.get("/v1/alertmanager")
def inbound_alerts(_caller: Viewer, store: StoreOf, limit: Limit = 100) -> list[queries_alerts.InboundView]:
    """Alerts that asked for a policy, ours and from outside, and what came of them."""
    with store.read() as session:
        return queries_alerts.list_inbound(session, limit=limit)


@router.post("/v1/alertmanager", status_code=202)
def receive_alertmanager(body: AlertmanagerBody, store: StoreOf, who: Operator) -> inbound.Accepted:
    """Take Alertmanager's webhook. An alert with the label `kvdeck_policy` starts that policy, once per alert."""
    outside = [
        inbound.OutsideAlert(
            status=one.status,
            labels=one.labels,
            annotations=one.annotations,
            starts_at=one.startsAt,
            fingerprint=one.fingerprint,
        )
        for one in body.alerts
    ]
    with store.write() as session:
        return inbound.accept(session, deed_of(who, "an alert from outside"), outside)
