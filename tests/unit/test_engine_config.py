"""What an engine cannot be set up with is refused by name, before anything is allocated."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from engine import EngineConfig
from engine.errors import ConfigError

WHOLE = [each.name for each in fields(EngineConfig) if str(each.type) in ("int", "int | None")]
REAL = [each.name for each in fields(EngineConfig) if str(each.type) in ("float", "float | None")]
FLAGS = [each.name for each in fields(EngineConfig) if each.type == "bool"]
WORDS = [each.name for each in fields(EngineConfig) if each.type == "str"]


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", ["8G", 1.5, True, [1], b"1"])
def test_a_size_is_a_whole_number_and_not_a_text_for_one(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name} is .*; it must be a whole number"):
        EngineConfig(**{name: value})


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("value", ["fast", float("nan"), True, {}])
def test_a_rate_is_a_number(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name} is .*; it must be a number"):
        EngineConfig(**{name: value})


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_true_or_false(name: str) -> None:
    for value in ("no", 0, None):
        with pytest.raises(ConfigError, match=f"{name} is .*; it must be True or False"):
            EngineConfig(**{name: value})


@pytest.mark.parametrize("name", WORDS)
def test_a_name_is_a_text(name: str) -> None:
    for value in (3, None, b"x"):
        with pytest.raises(ConfigError, match=f"{name} is .*; it must be a text"):
            EngineConfig(**{name: value})


def test_what_may_be_left_open_may_be_none_and_numbers_of_numpy_are_numbers() -> None:
    config = EngineConfig(cap_prefixes=None, max_kl=None, gpu_bytes=np.int64(1 << 20), lease_s=np.float32(2))
    assert config.gpu_bytes == 1 << 20
    assert len(WHOLE) > 10
    assert len(REAL) > 5
