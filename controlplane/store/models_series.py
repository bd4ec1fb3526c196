"""The tables of numbers over time: rollups by minute, metric points, and failures."""

from __future__ import annotations

import datetime as dt
from typing import Any

from sqlalchemy import Float, Index, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.store.base import Base, RowId

REQUEST_CHART_SUMS = ("requests", "prompt_tokens", "lcp_tokens", "usable_tokens")


class ValidationRollup(Base):
    """Validations by minute: the passing ones live only here."""

    __tablename__ = "validation_rollups"
    engine_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    minute: Mapped[dt.datetime] = mapped_column(primary_key=True)
    validation: Mapped[str] = mapped_column(String(32), primary_key=True)
    verdict: Mapped[str] = mapped_column(String(16), primary_key=True)
    reason: Mapped[str] = mapped_column(String(64), primary_key=True)
    count: Mapped[int]
    __table_args__ = (Index("ix_validation_rollups_minute", "minute"),)


class ValidationHour(Base):
    """The minutes of ValidationRollup by hour."""

    __tablename__ = "validation_hours"
    engine_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    hour: Mapped[dt.datetime] = mapped_column(primary_key=True)
    validation: Mapped[str] = mapped_column(String(32), primary_key=True)
    verdict: Mapped[str] = mapped_column(String(16), primary_key=True)
    reason: Mapped[str] = mapped_column(String(64), primary_key=True)
    count: Mapped[int]
    __table_args__ = (Index("ix_validation_hours_hour", "hour"),)


class ValidationFailure(Base):
    """Every failed validation, one row each. The span id makes re-delivery harmless."""

    __tablename__ = "validation_failures"
    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    engine_id: Mapped[str] = mapped_column(String(64))
    prefix_id: Mapped[str] = mapped_column(String(32))
    validation: Mapped[str] = mapped_column(String(32))
    object_kind: Mapped[str] = mapped_column(String(32))
    reason: Mapped[str] = mapped_column(String(64))
    boundary: Mapped[int]
    at: Mapped[dt.datetime]
    trace_id: Mapped[str] = mapped_column(String(32))
    span_id: Mapped[str] = mapped_column(String(16))
    __table_args__ = (
        UniqueConstraint("engine_id", "trace_id", "span_id"),
        Index("ix_validation_failures_at", "engine_id", "at"),
        Index("ix_validation_failures_latest", "at"),
        Index("ix_validation_failures_prefix", "engine_id", "prefix_id"),
    )


class RequestRollup(Base):
    """Requests by minute and outcome: token sums, so that any ratio can be made later."""

    __tablename__ = "request_rollups"
    engine_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    minute: Mapped[dt.datetime] = mapped_column(primary_key=True)
    namespace: Mapped[str] = mapped_column(String(128), primary_key=True)
    outcome: Mapped[str] = mapped_column(String(16), primary_key=True)  # hit, partial, miss, bypass
    reason: Mapped[str] = mapped_column(String(64), primary_key=True)  # why lcp was not usable ("none" if it was)
    state: Mapped[str] = mapped_column(String(24), primary_key=True)  # serving state of the boundary's prefix
    tier: Mapped[str] = mapped_column(String(8), primary_key=True)  # slowest tier the hit came from
    requests: Mapped[int]
    prompt_tokens: Mapped[int]
    lcp_tokens: Mapped[int]
    usable_tokens: Mapped[int]
    replay_tokens: Mapped[int]
    __table_args__ = (
        # A day of a fleet is a hundred thousand rows: charts read them from the index alone.
        Index("ix_request_rollups_charts", "minute", "engine_id", "namespace", "state", *REQUEST_CHART_SUMS),
    )


class RequestHour(Base):
    """The minutes of RequestRollup by hour, added to with them: what long ranges are summed from."""

    __tablename__ = "request_hours"
    engine_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    hour: Mapped[dt.datetime] = mapped_column(primary_key=True)
    namespace: Mapped[str] = mapped_column(String(128), primary_key=True)
    outcome: Mapped[str] = mapped_column(String(16), primary_key=True)
    reason: Mapped[str] = mapped_column(String(64), primary_key=True)
    state: Mapped[str] = mapped_column(String(24), primary_key=True)
    tier: Mapped[str] = mapped_column(String(8), primary_key=True)
    requests: Mapped[int]
    prompt_tokens: Mapped[int]
    lcp_tokens: Mapped[int]
    usable_tokens: Mapped[int]
    replay_tokens: Mapped[int]
    __table_args__ = (Index("ix_request_hours_hour", "hour"),)


class LossRollup(Base):
    """Tokens of prompts that were no hit, by minute and cause. Of one minute: causes + usable = prompt tokens."""

    __tablename__ = "loss_rollups"
    engine_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    minute: Mapped[dt.datetime] = mapped_column(primary_key=True)
    namespace: Mapped[str] = mapped_column(String(128), primary_key=True)
    cause: Mapped[str] = mapped_column(String(32), primary_key=True)
    requests: Mapped[int]
    tokens: Mapped[int]
    __table_args__ = (
        Index("ix_loss_rollups_charts", "minute", "engine_id", "namespace", "cause", "requests", "tokens"),
    )


class LossHour(Base):
    """The minutes of LossRollup by hour."""

    __tablename__ = "loss_hours"
    engine_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    hour: Mapped[dt.datetime] = mapped_column(primary_key=True)
    namespace: Mapped[str] = mapped_column(String(128), primary_key=True)
    cause: Mapped[str] = mapped_column(String(32), primary_key=True)
    requests: Mapped[int]
    tokens: Mapped[int]
    __table_args__ = (Index("ix_loss_hours_hour", "hour"),)


class RequestRecord(Base):
    """One request as its span told it; kept for `keep_requests_hours`."""

    __tablename__ = "requests"
    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    engine_id: Mapped[str] = mapped_column(String(64))
    trace_id: Mapped[str] = mapped_column(String(32), index=True)
    span_id: Mapped[str] = mapped_column(String(16))
    at: Mapped[dt.datetime] = mapped_column(index=True)
    namespace: Mapped[str] = mapped_column(String(128))
    outcome: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(String(64))
    mode: Mapped[str] = mapped_column(String(16))
    prefix_id: Mapped[str | None] = mapped_column(String(32))  # it was served from
    lost_prefix_id: Mapped[str | None] = mapped_column(String(32))  # it would have been served from, had it not left
    prompt_tokens: Mapped[int]
    lcp_tokens: Mapped[int]
    usable_tokens: Mapped[int]
    replay_tokens: Mapped[int]
    lost: Mapped[dict[str, Any]]  # cause -> tokens
    __table_args__ = (Index("ix_requests_lost_prefix_id", "lost_prefix_id", "at"),)


class MetricPoint(Base):
    """One observed value of one series. Counters are kept cumulative, as the engine sends them."""

    __tablename__ = "metric_points"
    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    engine_id: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(String(64))
    attributes: Mapped[str] = mapped_column(String(256))  # canonical "k=v,k=v", sorted: the series key
    at: Mapped[dt.datetime]
    boot_id: Mapped[str] = mapped_column(String(64))  # a counter starts again with the boot
    value: Mapped[float] = mapped_column(Float)  # sum of a counter or histogram, value of a gauge
    count: Mapped[int | None]  # histograms only
    buckets: Mapped[dict[str, Any] | None]  # histograms only: {"bounds": [...], "counts": [...]}
    __table_args__ = (
        Index("ix_metric_points_series", "engine_id", "name", "at"),
        Index("ix_metric_points_at", "at"),
    )


class MetricRollup(Base):
    """A series by minute. `last` of a counter is cumulative; `delta` its growth inside the minute, resets handled."""

    __tablename__ = "metric_rollups"
    engine_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    attributes: Mapped[str] = mapped_column(String(256), primary_key=True)
    minute: Mapped[dt.datetime] = mapped_column(primary_key=True)
    last: Mapped[float] = mapped_column(Float)
    delta: Mapped[float] = mapped_column(Float)
    maximum: Mapped[float] = mapped_column(Float)
    count_delta: Mapped[int]
    bucket_deltas: Mapped[dict[str, Any] | None]
    boot_id: Mapped[str] = mapped_column(String(64))
    __table_args__ = (Index("ix_metric_rollups_name", "name", "minute"),)


class MetricHour(Base):
    """The growth of the minutes of MetricRollup by hour. Gauges do not add up, and are not here."""

    __tablename__ = "metric_hours"
    engine_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    attributes: Mapped[str] = mapped_column(String(256), primary_key=True)
    hour: Mapped[dt.datetime] = mapped_column(primary_key=True)
    delta: Mapped[float] = mapped_column(Float)
    __table_args__ = (Index("ix_metric_hours_name", "name", "hour"),)


class MetricSeries(Base):
    """A series as last heard: what the next point is compared with, and the gauges as they are now."""

    __tablename__ = "metric_series"
    engine_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    attributes: Mapped[str] = mapped_column(String(256), primary_key=True)
    at: Mapped[dt.datetime]
    boot_id: Mapped[str] = mapped_column(String(64))
    value: Mapped[float] = mapped_column(Float)
    count: Mapped[int | None]
    buckets: Mapped[dict[str, Any] | None]


class IngestedBatch(Base):
    """The span ids of one batch, kept for an hour: what makes a second delivery of a span count nothing."""

    __tablename__ = "ingested_batches"
    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    engine_id: Mapped[str] = mapped_column(String(64))
    first_at: Mapped[dt.datetime]  # earliest and latest start of the spans inside: only batches that overlap
    last_at: Mapped[dt.datetime]  # in time can hold the same span
    received_at: Mapped[dt.datetime] = mapped_column(index=True)
    span_ids: Mapped[bytes] = mapped_column(LargeBinary)  # 8 bytes each
    __table_args__ = (Index("ix_ingested_batches_last", "engine_id", "last_at"),)
