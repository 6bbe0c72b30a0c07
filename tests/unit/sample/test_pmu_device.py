# SPDX-License-Identifier: MIT
"""Formats and event terms of PMU devices in sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmd.base.errors import MissingError
from hmd.sample.memory_events import Field, device_names, parse_field, parse_terms, read_device

MACHINES = Path(__file__).parents[2] / "fixtures/sysfs"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("config:0-7", Field("config", ((0, 7),))),
        ("config:0-7,21\n", Field("config", ((0, 7), (21, 21)))),
        ("config1:0-15", Field("config1", ((0, 15),))),
        ("config2:0", Field("config2", ((0, 0),))),
        ("config:0-7,32-35", Field("config", ((0, 7), (32, 35)))),
    ],
)
def test_format_is_parsed_into_bit_ranges(text: str, field: Field) -> None:
    assert parse_field(text) == field


@pytest.mark.parametrize("text", ["", "config", "config:", "config:8-3", "config:0-64", "conf:1"])
def test_format_that_is_malformed_is_none(text: str) -> None:
    assert parse_field(text) is None


def test_split_field_takes_low_bits_first() -> None:
    field = parse_field("config:0-7,32-35")
    assert field is not None
    assert field.encode(0x5AB) == 0x5 << 32 | 0xAB


@given(st.integers(0, 2**12 - 1))
def test_field_bits_read_back_are_unchanged(value: int) -> None:
    field = Field("config", ((0, 3), (21, 21), (40, 46)))
    word = field.encode(value)
    assert word & ~(0xF | 1 << 21 | 0x7F << 40) == 0
    assert word & 0xF | (word >> 21 & 1) << 4 | (word >> 40 & 0x7F) << 5 == value


def test_field_value_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="more bits"):
        Field("config", ((0, 7),)).encode(0x100)


def test_event_terms_are_parsed() -> None:
    assert parse_terms("event=0xcd,umask=0x1,ldlat=3\n") == {"event": 0xCD, "umask": 1, "ldlat": 3}
    assert parse_terms("cnt_ctl") == {"cnt_ctl": 1}
    assert parse_terms("event=0x3c,umask=0x0,any=1")["any"] == 1


def test_event_term_without_value_is_refused() -> None:
    with pytest.raises(MissingError, match=r"ldlat=\?"):
        parse_terms("event=0xcd,ldlat=?")


def test_device_of_cascade_lake_is_read() -> None:
    device = read_device("cpu", MACHINES / "cascade-lake/sys")
    assert device is not None
    assert (device.type, device.max_precise, device.cpus) == (4, 3, None)
    assert device.encode(parse_terms("event=0xa3,umask=0x10,cmask=16")).config == 0x100010A3
    assert "topdown-total-slots" in device.events
    assert "topdown-total-slots.scale" not in device.events


def test_event_term_without_format_is_refused() -> None:
    device = read_device("ibs_op", MACHINES / "zen3/sys")
    assert device is not None
    with pytest.raises(MissingError, match="no format for l3missonly"):
        device.encode({"l3missonly": 1})


def test_devices_of_this_host_are_all_read() -> None:
    sysfs = Path("/sys")
    names = device_names(sysfs)
    if (sysfs / "bus/event_source").is_dir():
        assert "software" in names, "every kernel with perf has it"
    for name in names:
        device = read_device(name, sysfs)
        assert device is not None
        assert device.type >= 0


def test_device_that_is_absent_is_none() -> None:
    assert read_device("cpu", MACHINES / "vm-without-pmu/sys") is None
