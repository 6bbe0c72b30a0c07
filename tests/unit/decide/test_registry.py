"""Policies by name."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from hmd.decide import registry
from hmd.decide.policies.histogram import Histogram, HistogramSettings
from hmd.decide.tunables import knobs_of
from hmd.errors import ConfigError


def test_policies_are_made_by_name_with_defaults() -> None:
    assert {"histogram", "none"} <= set(registry.names())
    for name in registry.names():
        assert registry.make(name).name == name
    assert registry.DEFAULT in registry.names()


def test_settings_reach_the_policy() -> None:
    policy = registry.make("histogram", {"hysteresis": 3, "headroom_bytes": 8 << 20})
    assert isinstance(policy, Histogram)
    assert policy.settings == HistogramSettings(hysteresis=3.0, headroom_bytes=8 << 20)


@pytest.mark.parametrize(
    ("name", "settings", "line"),
    [
        ("lru", {}, "no policy 'lru': choose one of .*histogram"),
        ("histogram", {"hystersis": 2}, "no setting 'hystersis': it has confidence, headroom"),
        ("none", {"hysteresis": 2}, "no setting 'hysteresis': it has none"),
        ("histogram", {"hysteresis": 0.5}, "hysteresis must be a number of at least 1"),
        ("histogram", {"worth_fraction": 2}, "a number of at least 0 and at most 1, not 2"),
        ("histogram", {"confidence": None}, "confidence must be a number"),
        ("histogram", {"hysteresis": "much"}, "hysteresis must be a number"),
        ("histogram", {"hysteresis": True}, "hysteresis must be a number"),
        ("histogram", {"confidence": -1}, "confidence must be a number of at least 0"),
        ("histogram", {"confidence": float("nan")}, "confidence must be a number"),
        ("histogram", {"headroom_bytes": 1.5}, "headroom_bytes must be a whole number"),
    ],
)
def test_mistakes_are_told_in_one_line(name: str, settings: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError, match=line) as error:
        registry.make(name, settings)
    assert "\n" not in str(error.value)


def test_settings_types_are_told() -> None:
    assert registry.settings_type("histogram") is HistogramSettings
    with pytest.raises(ConfigError):
        registry.settings_type("lru")


@pytest.mark.parametrize("name", registry.names())
def test_every_setting_says_what_it_does_and_its_default_is_allowed(name: str) -> None:
    about = registry.about(name)
    assert about.does.endswith(".")
    assert about.use.endswith(".")
    assert about.make(about.settings()).name == name
    for knob in about.knobs:
        assert knob.effect.endswith(".")
        assert knob.wrong(knob.default) is None
    assert len({knob.key for knob in about.knobs}) == len(about.knobs)


def test_a_setting_without_a_word_about_it_is_refused() -> None:
    @dataclass
    class Bare:
        size: int = 3

    with pytest.raises(TypeError, match=r"Bare\.size is not documented"):
        knobs_of(Bare)


def test_all_kernels_can_be_loaded_ahead() -> None:
    registry.warm()
    room = Path(registry.__file__).parent
    files = [file for file in room.glob("*.py") if "\n@kernel\n" in file.read_text()]
    assert {f"hmd.decide.{file.stem}" for file in files} == set(registry.kernel_modules())


def test_reading_a_configuration_does_not_wait_for_numba() -> None:
    script = "import sys; from hmd.config import loads; loads(''); print('numba' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
