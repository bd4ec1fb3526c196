"""Curves that engines post, checked and kept."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError
from sqlalchemy.orm import Session

from controlplane.errors import BadRequest
from controlplane.ingest.engines import require_engine_row
from controlplane.store.models import CurveSample

MOST_POINTS = 1024
MOST_NAMESPACES = 256

Count = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0, le=1 << 62)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=128)]


class _Curve(BaseModel):
    samples: Count
    watched_pages: Whole
    rate: Annotated[float, Field(gt=0, le=1)]
    references: Count
    requests: Count
    prompt_tokens: Count
    lcp_tokens: Count
    usable_tokens: Count
    answer_pages: Count
    points: Annotated[list[tuple[Count, Share]], Field(max_length=MOST_POINTS)]


class _Row(BaseModel):
    prefixes: Whole
    pages: Whole
    gpu_pages: Whole
    gpu_bytes: Whole


class _Share(BaseModel):
    guaranteed_bytes: Whole | None = None
    max_bytes: Whole | None = None
    max_prefixes: Whole | None = None


class _Caps(BaseModel):
    prefixes: Whole | None
    gpu_bytes: Whole | None
    host_bytes: Whole | None
    disk_bytes: Whole | None
    namespaces: Annotated[dict[Name, _Share], Field(max_length=MOST_NAMESPACES)]


class _Held(BaseModel):
    total: _Row
    namespaces: Annotated[dict[Name, _Row], Field(max_length=MOST_NAMESPACES)]
    tiers: Annotated[dict[Name, Whole], Field(max_length=8)]
    caps: _Caps


class _Document(BaseModel):
    page_tokens: Annotated[int, Field(ge=1, le=1 << 31)]
    page_bytes: Whole
    held: _Held
    total: _Curve
    others: _Curve
    namespaces: Annotated[dict[Name, _Curve], Field(max_length=MOST_NAMESPACES)]


def keep_curve(
    session: Session, engine_id: str, document: Mapping[str, Any], *, boot_id: str, now: dt.datetime
) -> CurveSample | None:
    """Keeps what an engine posted; None for an engine that does not sample. Raises NotFound and Conflict when it must
    register first, BadRequest naming the field that cannot be."""
    engine = require_engine_row(session, engine_id, boot_id)
    engine.curve_wanted = False
    if not document:
        return None
    try:
        checked = _Document.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadRequest(
            "curve_invalid",
            f"The curve's {where}: {first['msg']}.",
            "Nothing was kept. Send what docs/reference/wire.md, section 3, says.",
        ) from error
    row = CurveSample(
        engine_id=engine_id,
        boot_id=boot_id,
        at=now,
        samples=checked.total.samples,
        document=checked.model_dump(exclude_unset=True),
    )
    session.add(row)
    session.flush()
    return row
