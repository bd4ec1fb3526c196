"""Engines as table rows: health and sync as two answers to two questions, then what each does and holds."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from dashboard.components import tables
from dashboard.readings import EngineNow
from dashboard.theme import ENGINE_HEALTH, SYNC
from dashboard.wording import age_text

COLUMNS: dict[str, Any] = {
    "Engine": st.column_config.TextColumn("Engine", pinned=True),
    "Health": st.column_config.TextColumn("Health", help="Does it speak? By its last heartbeat."),
    "Sync": st.column_config.TextColumn("Sync", help="Does it run what was asked? Observed and desired revision."),
    "Hit rate": st.column_config.ProgressColumn(
        "Hit rate", format="percent", min_value=0.0, max_value=1.0, help="Of the last minutes."
    ),
    "GPU": st.column_config.ProgressColumn("GPU", format="percent", min_value=0.0, max_value=1.0, help="Live share."),
    "Host": st.column_config.ProgressColumn("Host", format="percent", min_value=0.0, max_value=1.0),
    "Disk": st.column_config.ProgressColumn("Disk", format="percent", min_value=0.0, max_value=1.0),
    "Labels": st.column_config.ListColumn("Labels"),
    **tables.number_columns("Requests", "Leases", "Gaps", "Prefixes", "Wrong bytes"),
}
TIERS = (("gpu", "GPU"), ("host", "Host"), ("disk", "Disk"))


def rows(engines: Sequence[EngineNow], now: dt.datetime) -> pd.DataFrame:
    """One row an engine."""
    return pd.DataFrame([_row(engine, now) for engine in engines])


def _row(engine: EngineNow, now: dt.datetime) -> dict[str, Any]:
    view, stats = engine.view, engine.view.stats
    health, sync = ENGINE_HEALTH[engine.health], SYNC[view.sync]
    return {
        "Engine": view.id,
        "Group": view.group or "–",
        "Health": f"{health.symbol} {health.label}",
        "Last word": age_text(view.last_seen_at, now),
        "Sync": f"{sync.symbol} {sync.label} ({view.observed_revision} of {view.desired_revision})",
        "Mode": str(view.observed.get("mode") or "–"),
        "Hit rate": tenths_of_percent(engine.hit_ratio),
        **{label: tenths_of_percent(tier_share(engine, tier)) for tier, label in TIERS},
        "Prefixes": sum((stats.get("prefixes") or {}).values()),
        "Requests": stats.get("requests"),
        "Leases": stats.get("leases"),
        "Gaps": view.open_gaps,
        "Wrong bytes": stats.get("wrong_bytes"),
        "Error": str(view.observed.get("error") or ""),
        "Model": view.model,
        "Labels": [f"{name}={value}" for name, value in sorted(view.labels.items())],
    }


def tenths_of_percent(ratio: float | None) -> float | None:
    """As the numbers at the top of a page say it: a column of percent shows all digits it is given."""
    return None if ratio is None else round(ratio, 3)


def tier_share(engine: EngineNow, tier: str) -> float | None:
    """Live over total bytes of one of an engine's tiers; None where it has no such tier."""
    figures = (engine.view.stats.get("tiers") or {}).get(tier) or {}
    total = float(figures.get("total_bytes") or 0)
    return float(figures.get("live_bytes") or 0) / total if total else None
