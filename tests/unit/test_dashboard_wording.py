"""Numbers as people read them."""

import datetime as dt

import pytest

from dashboard import wording

NOW = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (16 << 30, "16.0 GiB"), (None, "–"), (float("nan"), "–")],
)
def test_bytes_are_in_binary_units(value, text):
    assert wording.bytes_text(value) == text


def test_an_unknown_ratio_is_a_dash_and_never_zero():
    assert wording.percent_text(None) == "–"
    assert wording.percent_text(0.0) == "0.0%"
    assert wording.percent_text(0.1234) == "12.3%"


@pytest.mark.parametrize(
    ("seconds", "text"), [(2e-6, "2 µs"), (0.0123, "12.3 ms"), (42, "42 s"), (600, "10 min"), (7300, "2.0 h")]
)
def test_durations_are_in_the_unit_that_suits_them(seconds, text):
    assert wording.seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(7, "7"), (999, "999"), (1000, "1k"), (1_500_000, "1.5M"), (10**9, "1G"), (10**12, "1T")]
)
def test_ticks_are_short(value, text):
    assert wording.short_count_text(value) == text


def test_ages_are_in_one_unit():
    assert wording.age_text(NOW - dt.timedelta(seconds=12), NOW) == "12 s ago"
    assert wording.age_text(NOW - dt.timedelta(minutes=5), NOW) == "5 min ago"
    assert wording.age_text(None, NOW) == "never"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("12 GiB", 12 << 30),
        ("512MiB", 512 << 20),
        ("1.5k", 1536),
        ("4,096", 4096),
        ("", None),
        ("0", 0),
        ("2 GB", 2 << 30),
    ],
)
def test_sizes_are_read_as_they_are_written(text, size):
    assert wording.parse_bytes(text) == size


@pytest.mark.parametrize("text", ["much", "12 parsecs", "-1 GiB", "GiB"])
def test_a_size_that_is_none_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"not a size|12 GiB"):
        wording.parse_bytes(text)


def test_every_size_survives_being_written_and_read():
    for size in (1 << 20, 3 << 30, 512 << 30):
        assert wording.parse_bytes(wording.bytes_text(size)) == size
