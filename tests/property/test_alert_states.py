"""Alerts follow their table of states, whatever the values do and whenever they are looked at."""

from __future__ import annotations

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from controlplane.steering.alerts.state import FIRING, PENDING, RESOLVED, TRANSITIONS, Limits, step

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
VALUES = st.one_of(st.none(), st.floats(min_value=-10, max_value=10, allow_nan=False))
SERIES = st.lists(st.tuples(st.integers(min_value=0, max_value=120), VALUES), max_size=60)
LIMITS = st.tuples(st.integers(-5, 5), st.integers(0, 5), st.integers(0, 300)).map(
    lambda t: Limits(above=t[0], resolve_at=t[0] - t[1], for_seconds=t[2])
)


@given(limits=LIMITS, series=SERIES)
def test_every_step_is_an_edge_and_each_edge_has_its_reason(
    limits: Limits, series: list[tuple[int, float | None]]
) -> None:
    state, since, now = None, None, START
    above_since: dt.datetime | None = None  # of the values that were known: the model of "stays above"
    for seconds, value in series:
        now += dt.timedelta(seconds=seconds)
        if value is not None:
            above_since = (above_since or now) if value > limits.above else None
        after = step(state, since, value, limits, now)
        assert after == state or after in TRANSITIONS[state]
        if value is None:
            assert after == state, "not knowing changes nothing"
        if state is None and after == PENDING:
            since = now
        if after == FIRING and state != FIRING:
            assert above_since is not None
            assert (now - above_since).total_seconds() >= limits.for_seconds, "it stayed above for so long"
        if after == RESOLVED:
            assert value is not None
            assert value <= limits.resolve_at
        if state == FIRING and value is not None and value > limits.resolve_at:
            assert after == FIRING, "between the limits it goes on firing"
        state = None if after == RESOLVED else after  # a new alert may begin


def test_what_is_resolved_stays_so() -> None:
    assert TRANSITIONS[RESOLVED] == frozenset()
    limits = Limits(above=1, resolve_at=0, for_seconds=0)
    assert step(RESOLVED, START, 100, limits, START) == RESOLVED
