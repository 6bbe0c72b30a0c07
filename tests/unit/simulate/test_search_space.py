# SPDX-License-Identifier: MIT
"""Ranges of tunables: documented ranges, given ranges, and values drawn from them."""

from __future__ import annotations

import pytest

from hmd.base.errors import HmdError
from hmd.config import loads
from hmd.config.decide import fragment
from hmd.policy import registry
from hmd.policy.settings import FILE
from hmd.simulate.tuning import Range, chosen, documented

TICK_S = 0.01


def one(policy: str, text: str) -> Range:
    [found] = chosen(registry.info(policy), [text], TICK_S)
    return found


@pytest.mark.parametrize("name", registry.names())
def test_documented_ranges_within_limits_of_policy(name: str) -> None:
    about = registry.info(name)
    found = documented(about, TICK_S)
    assert {each.setting.name for each in found} == {
        each.name
        for each in about.settings
        if not each.name.startswith("headroom") and each.unit.name != FILE.name
    }
    for each in found:
        assert each.low < each.high
        assert each.low > 0 or not each.log
        for end in (each.low, each.high):
            assert each.setting.minimum <= end <= each.setting.maximum
        default = each.setting.default
        assert not isinstance(default, str)
        assert each.auto if default is None else each.low <= default <= each.high


@pytest.mark.parametrize("name", registry.names())
@pytest.mark.parametrize("share", [0.0, 0.31415926, 1.0])
def test_range_drawn_value_equals_value_in_configuration(name: str, share: float) -> None:
    """YAML holds exactly the digits of the simulated value."""
    values = {}
    for each in documented(registry.info(name), TICK_S):
        drawn = each.low + share * (each.high - each.low)
        number = round(drawn) if each.setting.is_whole else drawn
        value = each.value({each.setting.name: number})
        assert value == pytest.approx(drawn, rel=0.04)
        values[each.setting.name] = value
    read = loads(fragment(name, values)).decide
    assert read.policy == name
    assert all(getattr(read.policy_settings(), name) == value for name, value in values.items())


def test_range_automatic_tunable_auto_allowed() -> None:
    idle = one("age", "idle")
    assert (idle.low, idle.high) == pytest.approx((0.02, 2.0))
    assert idle.auto
    assert idle.span == "20ms to 2s or auto"
    for value in (None, 0.25):
        drawn = idle.drawn(value)
        assert drawn is not None
        assert drawn.keys() == idle.distributions().keys()
        assert idle.value(drawn) == value
    assert idle.drawn(3.0) is None
    assert "idle: auto" in fragment("age", {"idle": None})


def test_range_given_unit_of_tunable_and_no_auto() -> None:
    idle = one("age", "idle=50ms:1s")
    assert (idle.low, idle.high, idle.log, idle.auto) == (0.05, 1.0, True, False)
    worth = one("histogram", "worth=1%:20%")
    assert (worth.low, worth.high, worth.log) == (0.01, 0.2, False)
    room = one("histogram", "headroom_min=64KiB:1MiB")
    assert room.value({"headroom_min": 100_000}) == 100_000
    assert one("histogram", "samples_min=0:4").log is False


def test_fragment_small_and_large_numbers_without_exponent() -> None:
    wide = one("benefit", "move_ns=1:4000000")
    assert wide.value({"move_ns": 2_345_678.9}) == 2_350_000
    assert "move_ns: 2350000\n" in fragment("benefit", {"move_ns": 2_350_000.0})
    assert "confidence: 0.000012\n" in fragment("benefit", {"confidence": 0.000012})
    assert loads(fragment("benefit", {"confidence": 0.000012})).decide.policy == "benefit"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("speed", "no knob 'speed', but headroom, "),
        ("headroom", "no range of its own: headroom=LOW:HIGH"),
        ("hysteresis=2", "write LOW:HIGH"),
        ("hysteresis=3:2", "the first must be less"),
        ("hysteresis=0.5:2", "hysteresis: expected at least 1, not 0.5"),
        ("hysteresis=one:two", "'one' is not a valid value"),
        ("worth=0.1:0.2", "'0.1' is not a valid value"),
    ],
)
def test_range_invalid_text_refused(text: str, message: str) -> None:
    with pytest.raises(HmdError, match=message):
        one("histogram", text)
    with pytest.raises(HmdError, match="auto is no end"):
        one("age", "idle=auto:1s")
