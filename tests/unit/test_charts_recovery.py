"""Recovery, latency, memory and prefix charts, by the values they draw."""

import datetime as dt

import pandas as pd
import pytest

from dashboard.charts import memory, prefix, recovery
from dashboard.charts.base import MARK_COLUMNS
from dashboard.charts.histograms import merge

START = dt.datetime(2026, 1, 2, 3, 0, tzinfo=dt.UTC)
NO_MARKS = pd.DataFrame(columns=list(MARK_COLUMNS))


def at(minutes: float) -> dt.datetime:
    return START + dt.timedelta(minutes=minutes)


def recoveries(*rows: tuple[int, str, float]) -> pd.DataFrame:
    frame = pd.DataFrame([(at(row[0]), *row[1:]) for row in rows], columns=["minute", "outcome", "count"])
    return frame.assign(tier="disk")


def test_late_counts_as_failed():
    frame = recoveries((0, "ok", 6), (0, "failed", 1), (0, "late", 1))
    assert recovery.failure_rate(frame) == 0.25
    assert list(recovery.recovery_failure_rate(frame, 0.2, NO_MARKS).data[0].y) == [0.25]


def test_nothing_recovered_is_no_rate_rather_than_zero():
    assert recovery.failure_rate(recoveries((0, "ok", 0))) is None
    figure = recovery.recovery_failure_rate(recoveries((0, "ok", 0), (1, "ok", 4)), None, NO_MARKS)
    assert list(figure.data[0].y) == [0.0]


def test_the_threshold_is_a_named_line_inside_the_picture():
    figure = recovery.recovery_failure_rate(recoveries((0, "ok", 100)), 0.2, NO_MARKS)
    assert figure.layout.shapes[0].y0 == 0.2
    assert figure.layout.annotations[0].text == "degrades above 20%"
    assert figure.layout.yaxis.range[1] > 0.2


def test_histograms_with_other_bounds_are_not_added_up():
    one, other = {"bounds": [1.0], "counts": [1, 2]}, {"bounds": [5.0], "counts": [9, 9]}
    assert merge([None, one, one, other]) == ([1.0], [2.0, 4.0])


def test_latency_is_in_milliseconds_by_tier_and_direction():
    io = pd.DataFrame(
        {
            "minute": [at(0), at(0)],
            "tier": ["disk", "disk"],
            "direction": ["read", "write"],
            "buckets": [{"bounds": [0.01, 0.1], "counts": [10, 0, 0]}, {"bounds": [0.01, 0.1], "counts": [0, 10, 0]}],
        }
    )
    figure = recovery.tier_io_latency(io, NO_MARKS)
    drawn = {(trace.name, trace.xaxis): trace.y[0] for trace in figure.data}
    assert drawn[("disk p50", "x")] == pytest.approx(5.0)
    assert drawn[("disk p99", "x")] == pytest.approx(9.9)
    assert drawn[("disk p50", "x2")] == pytest.approx(55.0)


def test_fragmentation_draws_each_class_with_all_last():
    points = pd.DataFrame({"minute": [at(0)] * 3, "page_class": ["all", "window", "history"], "ratio": [0.2, 0.3, 0.1]})
    figure = memory.fragmentation(points, NO_MARKS)
    assert [(trace.name, trace.y[0]) for trace in figure.data] == [
        ("history", 0.1),
        ("window", 0.3),
        ("all classes", 0.2),
    ]


def test_tier_fill_is_shares_of_each_tier_with_bytes_in_the_text():
    tiers = {
        "gpu": {"total_bytes": 1024, "live_bytes": 512, "pinned_bytes": 256, "free_bytes": 256},
        "disk": {"total_bytes": 0, "live_bytes": 0, "pinned_bytes": 0, "free_bytes": 0},
    }
    figure = memory.tier_fill(tiers)
    assert {trace.name: trace.x[0] for trace in figure.data} == {"pinned": 0.25, "live": 0.5, "free": 0.25}
    assert figure.data[1].text[0] == "512 B"
    assert list(figure.data[0].y) == ["GPU"]  # a tier that is switched off is no bar


def test_mode_is_drawn_as_steps_with_names():
    points = pd.DataFrame({"minute": [at(0), at(1)], "engine": ["a", "a"], "mode": [0.0, 1.0]})
    figure = memory.mode_over_time(points, NO_MARKS)
    assert list(figure.data[0].y) == [0.0, 1.0]
    assert list(figure.data[0].customdata) == ["normal", "no_disk"]
    assert figure.data[0].line.shape == "hv"
    assert list(figure.layout.yaxis.ticktext)[1] == "no_disk"


def test_verdicts_are_shares_of_each_validation():
    rollups = pd.DataFrame({"validation": ["tail_intact", "tail_intact"], "verdict": ["pass", "fail"], "count": [3, 1]})
    drawn = {trace.name: trace.x[0] for trace in memory.validation_verdicts(rollups).data}
    assert drawn == {"pass": 0.75, "repairable": 0.0, "fail": 0.25, "not applicable": 0.0}


def versions(*rows: tuple[int, int, str, float]) -> pd.DataFrame:
    frame = pd.DataFrame(
        [(life, version, state, at(minutes)) for life, version, state, minutes in rows],
        columns=["life", "version", "state_to", "at"],
    )
    return frame.assign(cause="policy", reason="idle", gpu_bytes=1024, host_bytes=0, disk_bytes=0)


def test_a_band_ends_where_the_next_version_starts_and_the_last_ends_now():
    bands = prefix.state_bands(versions((1, 1, "FULL", 0), (1, 2, "COMPRESSED", 5)), at(9))
    assert list(bands["start"]) == [at(0), at(5)]
    assert list(bands["end"]) == [at(5), at(9)]


def test_eviction_ends_the_picture_of_a_life_and_the_next_life_starts_anew():
    bands = prefix.state_bands(versions((1, 1, "FULL", 0), (1, 2, "EVICTED", 2), (7, 1, "FULL", 6)), at(8))
    assert list(bands["end"]) == [at(2), at(2), at(8)]


def test_the_timeline_has_a_band_a_state_and_a_mark_a_version():
    figure = prefix.version_timeline(versions((1, 1, "FULL", 0), (1, 2, "COMPRESSED", 5)), at(9))
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert [(bar.name, bar.x[0]) for bar in bars] == [("● FULL", 300_000), ("◆ COMPRESSED", 240_000)]
    marks = next(trace for trace in figure.data if trace.name == "version")
    assert "v2 → COMPRESSED" in marks.text[1]
    held = next(trace for trace in figure.data if trace.name == "GPU bytes")
    assert list(held.y) == [1024.0, 1024.0, 1024.0]


def test_byte_axes_have_round_binary_ticks():
    points = pd.DataFrame({"minute": [at(0)], "tier": ["gpu"], "used_bytes": [11 * 2**30]})
    figure = memory.tier_bytes_over_time(points, NO_MARKS)
    assert list(figure.layout.yaxis.ticktext) == ["0 B", "4 GiB", "8 GiB", "12 GiB"]
