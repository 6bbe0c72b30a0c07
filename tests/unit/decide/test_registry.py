"""Policies by name."""

from __future__ import annotations

import pytest

from hmd.decide import registry
from hmd.decide.histogram import Histogram, Settings
from hmd.errors import ConfigError


def test_policies_are_made_by_name_with_defaults() -> None:
    assert registry.names() == ("histogram", "none")
    for name in registry.names():
        assert registry.make(name).name == name
    assert registry.DEFAULT in registry.names()


def test_settings_reach_the_policy() -> None:
    policy = registry.make("histogram", {"hysteresis": 3, "headroom_bytes": 8 << 20})
    assert isinstance(policy, Histogram)
    assert policy.settings == Settings(hysteresis=3.0, headroom_bytes=8 << 20)


@pytest.mark.parametrize(
    ("name", "settings", "line"),
    [
        ("lru", {}, "no policy 'lru': choose one of histogram, none"),
        ("histogram", {"hystersis": 2}, "no setting 'hystersis': it has confidence, headroom"),
        ("none", {"hysteresis": 2}, "no setting 'hysteresis': it has none"),
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
    assert registry.settings_type("histogram") is Settings
    with pytest.raises(ConfigError):
        registry.settings_type("lru")


def test_all_kernels_can_be_loaded_ahead() -> None:
    registry.warm()
