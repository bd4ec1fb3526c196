"""What-if on the Caps page: the curve, a cap to try on it, the advice, and whether earlier advice held."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from controlplane.errors import NotFound
from controlplane.insight.live import CurvePoint, PredictionView, WhatIfView
from dashboard import data, session
from dashboard.charts import caps
from dashboard.components import notices
from dashboard.components.charting import chart
from dashboard.wording import bytes_text, moment_text, parse_bytes, percent_text

STATES = {
    "waiting": "◔ settling or being measured",
    "measured": "✔ measured",
    "superseded": "◌ caps changed again first",
    "too_few": "◌ too few requests came",
    "no_curve": "◌ too few samples to foretell",
}


def draw() -> None:
    """The curve of the engine chosen above, or of the first."""
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    names = [engine.view.id for engine in data.engines(person.role)]
    engine = chosen.engine if chosen.engine in names else next(iter(names), None)
    if engine is None:
        return
    with st.container(border=True):
        st.markdown(f"**What if** the cap of {engine} were another one")
        axis, prefixes, n_bytes = _asked()
        try:
            found = data.whatif(person.role, engine, chosen.namespace or "", prefixes, n_bytes)
        except NotFound as error:
            notices.empty("No curve yet", f"{error.message} {error.hint}")
            return
        _curve(found, axis)
        _outcomes(data.predictions(person.role, engine))


def _asked() -> tuple[str, int | None, int | None]:
    """Which axis, and the cap somebody thinks about."""
    left, right = st.columns([1, 2])
    axis = left.radio("Show caps in", list(caps.AXES), horizontal=True, key="kv_whatif_axis")
    hint = "12 GiB" if axis == "bytes" else "5,000"
    text = right.text_input("Try a cap", placeholder=f"as in {hint}", key=f"kv_whatif_{axis}").strip()
    if not text:
        return axis, None, None
    try:
        if axis == "bytes":
            return axis, None, parse_bytes(text)
        return axis, max(1, int(text.replace(",", ""))), None
    except ValueError as error:
        st.error(f"{text!r} is no cap in {axis}: {error}", icon=":material/block:")
        return axis, None, None


def _curve(found: WhatIfView, axis: str) -> None:
    scope = f"Namespace {found.namespace}" if found.namespace else "All namespaces"
    chart(
        f"{scope}: usable hit rate by cap",
        lambda: caps.hit_curve(found, axis),
        key=f"whatif_{axis}",
        note="Sampled by the engine from what was asked; older requests weigh less.",
        missing=f"No curve yet: {found.refused}." if found.refused else None,
    )
    st.caption(
        f"{found.samples:,} samples of {found.watched_pages:,} pages, one page in {1 / found.rate:,.0f}, "
        f"{found.requests:,} requests, sampled {moment_text(found.at)}"
    )
    if found.refused:
        return
    for place, (name, value, help_text) in zip(st.columns(3), _figures(found, axis), strict=True):
        place.metric(name, value, help=help_text)
    if found.recommendation is not None:
        st.caption(f"Recommended: {found.recommendation.why}.")
    for caution in found.cautions:
        st.caption(f"▲ {caution}")


def _figures(found: WhatIfView, axis: str) -> list[tuple[str, str, str]]:
    now, proposed, advice = found.now, found.proposed, found.recommendation
    measured = f"Measured under it: {percent_text(found.measured_ratio)}."
    shown = [("Now", _at(now, axis) if now else "no cap of its own", measured)]
    if proposed is None:
        shown.append(("Proposed", "-", "Type a cap above."))
    else:
        leaves = f"Would evict {proposed.evicts_prefixes:,} prefixes, {bytes_text(proposed.evicts_bytes)}."
        shown.append(("Proposed", _at(proposed, axis), leaves))
    best = None if advice is None else CurvePoint(**advice.near_ceiling)
    shown.append(("Recommended", _at(best, axis) if best else "-", advice.why if advice else "Nothing to advise."))
    return shown


def _at(point: CurvePoint, axis: str) -> str:
    value = point.bytes if axis == "bytes" else point.prefixes
    size = "-" if value is None else (bytes_text(value) if axis == "bytes" else f"{value:,}")
    return f"{percent_text(point.hit_ratio)} at {size}"


def _outcomes(rows: list[PredictionView]) -> None:
    if not rows:
        st.caption("When a cap is applied, what this curve foretold and what came of it is shown here.")
        return
    if any(row.state == "measured" for row in rows):
        chart("Foretold and measured", lambda: caps.foretold_and_measured(rows), key="whatif_trials")
    table = [
        {
            "Revision": row.revision,
            "At": moment_text(row.at),
            "Of": row.namespace or "all",
            "Before": percent_text(row.before_ratio),
            "Foretold": percent_text(row.predicted_ratio),
            "Measured": percent_text(row.measured_ratio),
            "Points apart": "–" if row.error_points is None else f"{row.error_points:+.1f}",
            "Samples": f"{row.samples:,.0f}",
            "State": STATES.get(row.state, row.state),
        }
        for row in rows
    ]
    st.dataframe(pd.DataFrame(table), hide_index=True, key="whatif_outcomes")
