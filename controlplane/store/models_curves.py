"""The tables of what-if: curves as engines sampled them, and what they foretold of caps that were then applied."""

from __future__ import annotations

import datetime as dt
from typing import Any

from sqlalchemy import Float, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.store.base import Base, RowId


class CurveSample(Base):
    """The curves of one engine at one moment: in total and by namespace, with what was held and the caps in force."""

    __tablename__ = "curves"
    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    engine_id: Mapped[str] = mapped_column(String(64))
    boot_id: Mapped[str] = mapped_column(String(64))
    at: Mapped[dt.datetime]
    samples: Mapped[float] = mapped_column(Float)  # of the curve in total: what it stands on
    document: Mapped[dict[str, Any]]  # wire.md, section 3
    __table_args__ = (Index("ix_curves_engine", "engine_id", "at"),)


class CapPrediction(Base):
    """What the curve said of caps when they came into force, and what then happened."""

    __tablename__ = "cap_predictions"
    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    engine_id: Mapped[str] = mapped_column(String(64))
    revision: Mapped[int]
    namespace: Mapped[str] = mapped_column(String(128))  # "": all
    at: Mapped[dt.datetime]
    caps: Mapped[dict[str, Any]]
    caps_before: Mapped[dict[str, Any]]
    samples: Mapped[float] = mapped_column(Float)
    before_ratio: Mapped[float | None] = mapped_column(Float)  # the usable hit rate measured under the caps before
    predicted_ratio: Mapped[float | None] = mapped_column(Float)  # None: too few samples to say
    state: Mapped[str] = mapped_column(String(16))  # waiting, measured, superseded, too_few, no_curve
    measured_ratio: Mapped[float | None] = mapped_column(Float)
    measured_requests: Mapped[int] = mapped_column(default=0)
    measured_from: Mapped[dt.datetime]
    measured_until: Mapped[dt.datetime]
    __table_args__ = (UniqueConstraint("engine_id", "at", "namespace"),)
