"""The what-if charts, by the values they draw."""

import datetime as dt

import pytest

from controlplane.insight.curves import Curve, grid, recommend
from controlplane.insight.live import CurvePoint, PredictionView, Proposed, WhatIfView
from dashboard.charts import caps

NOW = dt.datetime(2026, 1, 2, 3, 0, tzinfo=dt.UTC)
CURVE = Curve(
    samples=5000.0, references=100_000.0, requests=1000.0, prompt_tokens=6_400_000.0, lcp_tokens=3_200_000.0,
    usable_tokens=3_200_000.0, watched_pages=1800, rate=0.1, page_tokens=64, page_bytes=1000.0, answer_pages=1000.0,
    bytes_a_page=1200.0, pages_a_prefix=5.0, points=((10.0, 0.1), (100.0, 0.4), (1000.0, 0.7), (10_000.0, 0.8)),
)  # fmt: skip


def found(**more) -> WhatIfView:
    values = {
        "engine": "one", "namespace": "", "at": NOW, "samples": 5000, "watched_pages": 1800, "rate": 0.1,
        "requests": 1000, "namespaces": [], "refused": "",
        "curve": [CurvePoint(**CURVE.point(pages)) for pages in grid(CURVE)],
        "now": CurvePoint(**CURVE.point(100)), "measured_ratio": 0.37,
        "proposed": Proposed(**CURVE.point(1000), evicts_prefixes=0, evicts_bytes=0),
        "recommendation": recommend(CURVE), "cautions": [],
    }  # fmt: skip
    return WhatIfView(**{**values, **more})


def named(figure):
    return {trace.name: trace for trace in figure.data}


@pytest.mark.parametrize("axis", ["bytes", "prefixes"])
def test_now_proposed_and_recommended_lie_on_the_curve(axis):
    traces = named(caps.hit_curve(found(), axis))
    line = traces["expected"]
    assert list(line.x) == sorted(line.x)
    assert list(line.y) == sorted(line.y)
    for name, pages in (("now", 100), ("proposed", 1000), ("recommended", 10_000)):
        point = CURVE.point(pages)
        assert list(traces[name].x) == [point[axis]]
        assert list(traces[name].y) == [point["hit_ratio"]]
    assert list(traces["measured"].y) == [0.37]
    assert list(traces["measured"].x) == list(traces["now"].x)


def test_the_axis_is_logarithmic_with_sizes_people_read():
    figure = caps.hit_curve(found(), "bytes")
    assert figure.layout.xaxis.type == "log"
    assert any("KiB" in text or "MiB" in text for text in figure.layout.xaxis.ticktext)
    assert figure.layout.yaxis.tickformat == ".0%"


def test_what_is_not_there_is_not_marked():
    traces = named(caps.hit_curve(found(now=None, proposed=None, recommendation=None), "prefixes"))
    assert set(traces) == {"expected"}


def prediction(revision: int, **more) -> PredictionView:
    values = {
        "engine_id": "one", "revision": revision, "namespace": "", "at": NOW, "caps": {}, "caps_before": {},
        "samples": 5000.0, "before_ratio": 0.3, "predicted_ratio": 0.5, "state": "measured", "measured_ratio": 0.47,
        "measured_requests": 300, "measured_from": NOW, "measured_until": NOW, "error_points": -3.0,
    }  # fmt: skip
    return PredictionView(**{**values, **more})


def test_a_trial_joins_what_was_foretold_with_what_was_measured_and_leaves_out_what_has_not_ended():
    rows = [prediction(9, measured_ratio=None, state="waiting"), prediction(8, namespace="a"), prediction(7)]
    traces = named(caps.foretold_and_measured(rows))
    assert list(traces["foretold"].y) == ["revision 8, a", "revision 7"]
    assert list(traces["foretold"].x) == [0.5, 0.5]
    assert list(traces["measured"].x) == [0.47, 0.47]


def test_a_curve_recommends_the_smallest_cap_near_its_ceiling_and_names_the_knee():
    advice = recommend(CURVE, within_points=11)
    assert advice.near_ceiling["pages"] == 1000
    assert advice.ceiling_ratio == pytest.approx(0.8)
    assert 900 < advice.knee["pages"] < 1300
    assert recommend(CURVE, within_points=1).near_ceiling["pages"] == 10_000


def test_caps_and_pages_turn_into_each_other():
    for pages in (10.0, 300.0, 5000.0):
        assert CURVE.pages_at(prefixes=CURVE.prefixes_at(pages)) == pytest.approx(pages, rel=0.01)
        assert CURVE.pages_at(n_bytes=CURVE.bytes_at(pages)) == pytest.approx(pages, rel=0.01)
    assert CURVE.pages_at() is None
    both = CURVE.pages_at(prefixes=CURVE.prefixes_at(50), n_bytes=CURVE.bytes_at(5000))
    assert both == pytest.approx(50, rel=0.01)
