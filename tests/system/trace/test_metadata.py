# SPDX-License-Identifier: MIT
"""Trace metadata of the machine: tiers and their latency and bandwidth by firmware."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hmd.linux.topology import Node, Topology
from hmd.sample.sampler import SampleSettings
from hmd.trace.recorder import Sources
from hmd.trace.session import describe
from tests.fakes.plugin_memory import EmulatedMemory

GIB = 1 << 30
MACHINES = Path(__file__).parents[2] / "fixtures/sysfs"


def node(number: int, tier: int, **figures: int) -> Node:
    return Node(number, (), GIB, (), tier, **figures)


@pytest.fixture
def about(emulated_memory: EmulatedMemory) -> Callable[..., dict[str, Any]]:
    def about(*nodes: Node, pairs: bool = False) -> dict[str, Any]:
        settings = SampleSettings(sampler="emulated", period=101, pairs=pairs)
        with Sources(settings, sysfs=emulated_memory.sysfs) as sources:
            emulated_memory.clock(machine_ps=5_000_000, vcpu=0, vcpu_ps=0)
            return describe(["x"], Topology(nodes, "HMAT figures"), sources, "slow")

    return about


def test_metadata_tiers_have_mean_latency_and_total_bandwidth(
    about: Callable[..., dict[str, Any]],
) -> None:
    fast = {"read_latency_ns": 80, "write_latency_ns": 90}
    wide = {"read_bandwidth_mbps": 100_000, "write_bandwidth_mbps": 50_000}
    found = about(
        node(0, 0, **fast, **wide),
        node(1, 0, **{**fast, "read_latency_ns": 84}, **wide),
        node(2, 1, read_latency_ns=300),
    )
    assert found["tiers"] == [
        {
            "nodes": [0, 1],
            "total_bytes": 2 * GIB,
            "read_latency_ns": 82,
            "write_latency_ns": 90,
            "read_bandwidth_mbps": 200_000,
            "write_bandwidth_mbps": 100_000,
        },
        {
            "nodes": [2],
            "total_bytes": GIB,
            "read_latency_ns": 300,
            "write_latency_ns": None,
            "read_bandwidth_mbps": None,
            "write_bandwidth_mbps": None,
        },
    ]
    assert found["tier_source"] == "HMAT figures"


def test_metadata_of_emulated_machine_has_modelled_clock_and_counts(
    about: Callable[..., dict[str, Any]],
) -> None:
    found = about(node(0, 0))
    assert (found["clock"], found["begin_ns"]) == ("modelled", 5000)
    assert found["instructions"] == "emulated"
    assert found["period"] == 101


def test_metadata_reports_sample_pairs(about: Callable[..., dict[str, Any]]) -> None:
    found = about(node(0, 0), pairs=True)
    assert (found["period"], found["pairs"], found["pair_period"]) == (101, True, 109)
    found = about(node(0, 0))
    assert (found["pairs"], found["pair_period"]) == (False, None)


def test_metadata_reorder_window_is_reported_for_real_cpus_only(
    about: Callable[..., dict[str, Any]],
) -> None:
    assert about(node(0, 0))["reorder_window"] is None, "the guest sees QEMU's CPU"
    with Sources(SampleSettings(sampler="faults")) as sources:
        topology = Topology((node(0, 0),), "one node")
        found = describe([], topology, sources, None, MACHINES / "cascade-lake/proc")
    assert (found["reorder_window"], found["fill_buffers"]) == (224, 12)
    assert (found["pairs"], found["pair_period"]) == (False, None)
