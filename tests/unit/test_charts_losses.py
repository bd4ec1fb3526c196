"""What was lost, by the values the charts draw."""

import datetime as dt

import pandas as pd
import pytest

from controlplane.insight.whymiss import MEANINGS, LossRow, WhyMiss
from dashboard.charts import losses
from dashboard.charts.base import MARK_COLUMNS
from dashboard.theme import GREEN
from engine.schedule.losses import Loss

START = dt.datetime(2026, 1, 2, 3, 0, tzinfo=dt.UTC)
NO_MARKS = pd.DataFrame(columns=list(MARK_COLUMNS))


def lost(*rows: tuple[int, str, int]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["minute", "cause", "tokens"])
    frame["minute"] = [START + dt.timedelta(minutes=int(offset)) for offset in frame["minute"]]
    return frame


def asked(*rows: tuple[int, int, int]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["minute", "prompt_tokens", "usable_tokens"])
    frame["minute"] = [START + dt.timedelta(minutes=int(offset)) for offset in frame["minute"]]
    return frame


def why(**tokens: int) -> WhyMiss:
    rows = [
        LossRow(cause=cause, tokens=count, requests=3, share=count / 1000, meaning="m " * 60, advice="`kvdeck cap`")
        for cause, count in tokens.items()
    ]
    used = 1000 - sum(tokens.values())
    return WhyMiss(requests=9, prompt_tokens=1000, lcp_tokens=used + 50, usable_tokens=used, replay_tokens=0, rows=rows)


def test_with_usable_tokens_all_causes_stack_to_everything_asked_for():
    figure = losses.losses_over_time(
        lost((0, "new_content", 300), (0, "damaged", 100), (1, "new_content", 50)), asked((0, 1000, 600), (1, 100, 50)),
        NO_MARKS,
    )  # fmt: skip
    assert [trace.name for trace in figure.data] == ["usable (the hit)", "new content", "damaged"]
    for minute in (0, 1):
        assert sum(trace.y[minute] for trace in figure.data) == pytest.approx(1.0)


def test_the_gap_alone_leaves_out_what_was_never_found():
    frame = lost((0, "new_content", 300), (0, "restore_slow", 100))
    figure = losses.losses_over_time(frame, asked((0, 1000, 600)), NO_MARKS, found_only=True)
    assert [(trace.name, trace.y[0]) for trace in figure.data] == [("restore slow", 0.1)]


def test_a_cause_looks_the_same_beside_whatever_it_is_shown_and_is_never_the_green_of_a_hit():
    frame = lost((0, "new_content", 300), (0, "evicted_cap", 250), (0, "restore_slow", 100), (0, "damaged", 5))
    everything = losses.losses_over_time(frame, asked((0, 1000, 345)), NO_MARKS).data
    gap = losses.losses_over_time(frame, asked((0, 1000, 345)), NO_MARKS, found_only=True).data
    looks = {trace.name: (trace.line.color, trace.line.dash, trace.fillpattern.shape) for trace in everything}
    assert {trace.name: (trace.line.color, trace.line.dash, trace.fillpattern.shape) for trace in gap}.items() <= (
        looks.items()
    )
    every = [losses.cause_look(str(cause)) for cause in Loss]
    assert len({(look.color, pattern) for look, pattern in every}) == len(every)
    assert GREEN not in {look.color for look, _ in every}


def test_rare_causes_are_one_area_so_that_no_token_is_missing():
    frame = lost(*[(0, f"cause_{number}", number) for number in range(1, 13)])
    figure = losses.losses_over_time(frame, asked((0, 78, 0)), NO_MARKS)
    assert figure.data[-1].name == losses.OTHERS
    assert len(figure.data) == 1 + losses.MOST_CAUSES + 1
    assert sum(trace.y[0] for trace in figure.data) == pytest.approx(1.0)


def test_areas_differ_by_pattern_as_well_as_by_colour():
    often = ("new_content", "evicted_cap", "checkpoint_missing", "restore_slow", "damaged", "evicted_pressure")
    frame = lost(*[(0, cause, 10) for cause in often])
    figure = losses.losses_over_time(frame, asked((0, 100, 40)), NO_MARKS)
    assert len({trace.fillpattern.shape for trace in figure.data}) == 7


def test_bars_tell_the_gap_from_what_was_not_found_by_stripes_and_by_name():
    figure = losses.causes_of_the_gap(why(new_content=400, restore_slow=50))
    striped, plain = figure.data
    assert (list(striped.y), striped.marker.pattern.shape) == (["restore slow"], "/")
    assert (list(plain.y), plain.marker.pattern.shape) == (["new content"], "")
    assert list(plain.text) == ["40.0%"]
    assert figure.layout.yaxis.categoryarray == ("restore slow", "new content")
    assert "<br>" in striped.customdata[0][2]


def test_the_funnel_goes_from_asked_for_over_found_to_usable():
    figure = losses.funnel(why(new_content=400))
    assert list(figure.data[0].x) == [1000, 650, 600]


def test_every_cause_of_the_gap_is_a_cause_the_read_model_explains():
    assert set(MEANINGS) > losses.FOUND_NOT_USABLE


def test_validations_that_did_not_pass_stack_by_reason():
    frame = pd.DataFrame(
        [(START, "fail", "absent", 3), (START, "repairable", "absent", 2), (START, "fail", "absent", 4)],
        columns=["minute", "verdict", "reason", "count"],
    )
    figure = losses.not_passed_over_time(frame, NO_MARKS)
    assert {trace.name: trace.y[0] for trace in figure.data} == {"fail: absent": 7.0, "repairable: absent": 2.0}
