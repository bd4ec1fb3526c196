"""The hit charts say what the frames say: each test compares drawn values, not just that something was drawn."""

import datetime as dt

import pandas as pd
import pytest

from dashboard.charts import hits
from dashboard.charts.base import MARK_COLUMNS, MAX_MARKS, add_marks, by_minute, time_figure

START = dt.datetime(2026, 1, 2, 3, 0, tzinfo=dt.UTC)
NO_MARKS = pd.DataFrame(columns=list(MARK_COLUMNS))


def minute(offset: int) -> dt.datetime:
    return START + dt.timedelta(minutes=offset)


def requests(*rows: tuple[int, str, str, int, int, int]) -> pd.DataFrame:
    columns = ["minute", "state", "reason", "prompt_tokens", "lcp_tokens", "usable_tokens"]
    frame = pd.DataFrame([(minute(row[0]), *row[1:]) for row in rows], columns=columns)
    return frame.assign(requests=1)


def test_the_rate_of_a_kind_is_its_tokens_over_all_tokens_asked_for():
    queries = pd.DataFrame({"minute": [minute(0), minute(1)], "tokens": [1000.0, 2000.0]})
    served = pd.DataFrame(
        {
            "minute": [minute(0), minute(1), minute(1)],
            "kind": ["swa_window", "swa_window", "disk_prefix"],
            "tokens": [250.0, 1000.0, 100.0],
        }
    )
    figure = hits.hit_rate_by_kind(queries, served, NO_MARKS)
    drawn = {trace.name: list(trace.y) for trace in figure.data}
    assert drawn == {"SWA window": [0.25, 0.5], "disk prefix": [0.0, 0.05]}


def test_kinds_differ_by_dash_as_well_as_by_colour():
    queries = pd.DataFrame({"minute": [minute(0)], "tokens": [100.0]})
    served = pd.DataFrame({"minute": [minute(0)] * 5, "kind": list(hits.KINDS)[:5], "tokens": [1.0] * 5})
    figure = hits.hit_rate_by_kind(queries, served, NO_MARKS)
    assert len({trace.line.dash for trace in figure.data}) == 5
    assert len({trace.line.color for trace in figure.data}) == 5


def test_states_stack_to_the_usable_rate():
    frame = requests(
        (0, "FULL", "none", 600, 400, 400),
        (0, "PARTIAL_OFFLOAD", "tail_absent", 400, 300, 100),
        (0, "none", "none", 0, 0, 0),
    )
    figure = hits.hit_rate_by_state(frame, NO_MARKS)
    assert [trace.name for trace in figure.data] == ["● FULL", "◐ PARTIAL_OFFLOAD"]
    assert sum(trace.y[0] for trace in figure.data) == pytest.approx(0.5)
    assert {trace.stackgroup for trace in figure.data} == {"state"}


def test_lcp_and_usable_are_drawn_apart_with_the_gap_filled():
    figure = hits.lcp_against_usable(requests((0, "FULL", "none", 1000, 400, 300)), NO_MARKS)
    usable, lcp = figure.data
    assert (usable.y[0], lcp.y[0]) == (0.3, 0.4)
    assert lcp.fill == "tonexty"


def test_a_minute_without_traffic_is_a_gap_and_not_a_line_across():
    values = by_minute(pd.Series([1.0, 3.0], index=[minute(0), minute(2)]))
    assert len(values) == 3
    assert pd.isna(values.iloc[1])
    figure = hits.lcp_against_usable(requests((0, "FULL", "none", 10, 5, 5), (2, "FULL", "none", 10, 5, 5)), NO_MARKS)
    assert figure.data[0].y[1] is None
    assert figure.data[0].connectgaps is False


def test_with_wider_slots_the_next_slot_is_no_gap():
    values = by_minute(pd.Series([1.0, 3.0], index=[minute(0), minute(15)]), 15)
    assert list(values) == [1.0, 3.0]


def test_no_requests_draw_no_rates():
    figure = hits.lcp_against_usable(requests(), NO_MARKS)
    assert all(len(trace.y) == 0 for trace in figure.data)


def marks(*rows: tuple[int, str, str]) -> pd.DataFrame:
    return pd.DataFrame([(minute(at), kind, text) for at, kind, text in rows], columns=list(MARK_COLUMNS))


def test_a_mark_has_a_line_and_a_symbol_with_its_text():
    figure = add_marks(time_figure(y_title="y"), marks((3, "desired", "cap_prefixes 3,000 → 4,000")))
    assert figure.layout.shapes[0].x0 == minute(3)
    assert "rgba" in figure.layout.shapes[0].line.color  # the default, black, is invisible on dark
    assert list(figure.data[0].text) == ["cap_prefixes 3,000 → 4,000"]
    assert figure.data[0].yaxis == "y9"


def test_marks_of_different_kinds_differ_by_symbol():
    figure = add_marks(time_figure(y_title="y"), marks((1, "desired", "a"), (2, "evict", "b"), (3, "quarantine", "c")))
    assert len({trace.marker.symbol for trace in figure.data}) == 3


def test_many_marks_become_few_and_still_tell_how_many_they_stand_for():
    frame = marks(*[(number, "evict", f"evict {number}") for number in range(400)])
    figure = add_marks(time_figure(y_title="y"), frame)
    assert len(figure.layout.shapes) <= MAX_MARKS
    assert "and 7 more" in figure.data[0].text[0]


def test_marks_of_one_kind_in_one_minute_are_one_mark():
    rows = [(minute(5) + dt.timedelta(seconds=s), "quarantine", f"prefix {s}") for s in range(12)]
    frame = pd.DataFrame(
        [*rows, (minute(5), "evict", "one"), (minute(6), "quarantine", "later")], columns=list(MARK_COLUMNS)
    )
    figure = add_marks(time_figure(y_title="y"), frame)
    assert len(figure.layout.shapes) == 3
    assert sorted(len(trace.x) for trace in figure.data) == [1, 2]
    assert any("and 9 more" in text for trace in figure.data for text in trace.text)
