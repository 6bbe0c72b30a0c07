# SPDX-License-Identifier: MIT
import pytest

from bench.microbenchmarks import (
    filler_turns,
    loaded_factor,
    loaded_latency,
    random_bandwidth,
    stream_turn_ns,
    write_bandwidth,
)
from hmd.emulate.preset import load, preset_names, with_cpus, with_nodes

PRESET = load("dram-pm")
DRAM, OPTANE = PRESET.nodes


def test_loaded_factor_equals_points_of_preset() -> None:
    assert loaded_factor(DRAM, 0) == 1
    for point in DRAM.loaded:
        assert loaded_factor(DRAM, point.utilisation) == pytest.approx(point.factor)
    assert loaded_factor(DRAM, 0.375) == pytest.approx((1.13 + 1.20) / 2)
    assert loaded_factor(DRAM, 5) == pytest.approx(2 * 1.47)


def test_random_bandwidth_few_cpus_limited_by_fill_buffers() -> None:
    asked = random_bandwidth(PRESET, DRAM)
    assert asked.limit == "line fill buffers"
    latency = loaded_latency(DRAM, asked.value / DRAM.read_bandwidth_gbps).value
    assert asked.value == pytest.approx(2 * 12 * 64 / latency)


def test_random_bandwidth_many_cpus_limited_by_media_granules() -> None:
    many = with_cpus(PRESET, 16)
    asked = random_bandwidth(many, many.nodes[1])
    assert asked.limit == "256-byte media"
    assert asked.value == pytest.approx(39.4 / 4)


def test_write_bandwidth_includes_read_of_line() -> None:
    slow_reader = with_nodes(PRESET, ["read-bandwidth=5,write-bandwidth=9"])
    assert write_bandwidth(slow_reader.nodes[0]).value == 5
    assert write_bandwidth(OPTANE).value == 13.9


@pytest.mark.parametrize("name", preset_names())
def test_filler_turns_fall_with_load_and_stay_positive(name: str) -> None:
    preset = load(name)
    for node in preset.nodes:
        times = [stream_turn_ns(preset, node, share) for share in (0.25, 0.5, 0.75, 0.9)]
        turns = [filler_turns(preset, time) for time in times]
        assert turns == sorted(turns, reverse=True)
        assert turns[-1] > 0
