"""What operators do to engines and to names: groups and labels of engines, labels of prefixes, forgetting an engine."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from controlplane.api.security import Operator, SettingsOf, StoreOf
from controlplane.api.write_routes import ReasonBody, Traceparent
from controlplane.clock import utc_now
from controlplane.steering import hosts, labels
from controlplane.steering.deed import Deed
from controlplane.steering.wakeups import WAKEUPS
from controlplane.store import queries

router = APIRouter(tags=["engines"])

Labels = Annotated[dict[str, str | None], Field(max_length=hosts.MOST_LABELS)]


class PlaceBody(ReasonBody):
    """Where an engine belongs, over what it says of itself. `group` "": in none; a label of null is taken away."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"group": "canary", "labels": {"rack": "b7", "spare": None}, "reason": "moved to rack b7"}]
        }
    )
    group: str | None = Field(default=None, max_length=64)
    labels: Labels = Field(default_factory=dict)


class LabelBody(ReasonBody):
    """Labels for prefixes, whether an engine holds them now or not. A label of null is taken away."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "prefix_ids": ["3f2a9c0d5b7e41f6a8d20c94e1b35f70"],
                    "labels": {"product": "assistant"},
                    "reason": "the assistant's system prompt",
                }
            ]
        }
    )
    prefix_ids: Annotated[list[str], Field(min_length=1, max_length=labels.MOST_AT_ONCE)]
    labels: Labels


@router.post("/v1/engines/{engine_id}/place")
def place_engine(
    engine_id: str,
    body: PlaceBody,
    store: StoreOf,
    settings: SettingsOf,
    who: Operator,
    traceparent: Traceparent = None,
) -> queries.EngineView:
    """Set an engine's group and labels."""
    deed = Deed(principal=who, reason=body.reason, traceparent=traceparent)
    with store.write() as session:
        hosts.place(session, deed, engine_id, group=body.group, labels=body.labels)
        placed = queries.get_engine(
            session,
            engine_id,
            utc_now(),
            stale_seconds=settings.engine_stale_seconds,
            unreachable_seconds=settings.engine_unreachable_seconds,
        )
    WAKEUPS.notify(engine_id)
    return placed


class Forgotten(BaseModel):
    """An engine that is no longer listed. Its history is kept."""

    id: str
    forgotten: bool = True


@router.post("/v1/engines/{engine_id}/forget")
def forget_engine(
    engine_id: str, body: ReasonBody, store: StoreOf, who: Operator, traceparent: Traceparent = None
) -> Forgotten:
    """Take an engine that left, or is silent for a minute, out of the lists."""
    with store.write() as session:
        hosts.forget(session, Deed(principal=who, reason=body.reason, traceparent=traceparent), engine_id)
    return Forgotten(id=engine_id)


@router.post("/v1/prefixes/labels")
def label_prefixes(
    body: LabelBody, store: StoreOf, who: Operator, traceparent: Traceparent = None
) -> dict[str, dict[str, str]]:
    """Set labels on prefixes; answers all labels that each has now."""
    deed = Deed(principal=who, reason=body.reason, traceparent=traceparent)
    with store.write() as session:
        return labels.label(session, deed, body.prefix_ids, body.labels)
