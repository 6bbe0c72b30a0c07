# SPDX-License-Identifier: MIT
"""Memory-level parallelism: overlapping and dependent misses. Times are exact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.access_model import AccessCosts, AccessFlag, CacheLevel
from hmd.emulate.timing_params import ModelPart
from tests.unit.timing.conftest import FAST, SLOW, Columns, Machine

L = 100_000  # read latency of node 0, ps
VIRTUAL = 1 << 40


def finish(model: Any, stream: Any, vcpu: int = 0) -> Any:
    """Replay, wait for outstanding misses, and return the clock."""
    model.replay(stream)
    model.idle(vcpu, int(stream.instructions[-1]))
    return model.counters(vcpu).clock_ps


@pytest.mark.parametrize(("start", "latency"), [(0, 100_000), (1 << 30, 300_000)])
def test_pointer_chase_costs_idle_latency_per_hop(
    machine: Machine, columns: Columns, scattered: Any, chain: Any, start: Any, latency: int
) -> None:
    address = scattered(1000, start)
    clock = finish(machine(parts=ModelPart.MLP), columns(address, value=chain(address)))
    assert clock == 4 * 100 + 1000 * latency


@pytest.mark.parametrize(("vcpu", "latency"), [(0, L), (1, L + 61_000)])
def test_cpus_of_other_sockets_wait_longer(
    machine: Machine, columns: Columns, scattered: Any, chain: Any, vcpu: int, latency: int
) -> None:
    address = scattered(1000)
    nodes = (replace(FAST, far_vcpus=2, far_ps=61_000), SLOW)
    model = machine(parts=ModelPart.MLP, nodes=nodes)
    clock = finish(model, columns(address, value=chain(address), vcpu=vcpu), vcpu)
    assert clock == 4 * 100 + 1000 * latency


def test_chase_within_the_object_span_is_dependent(
    machine: Machine, columns: Columns, scattered: Any, chain: Any
) -> None:
    address = scattered(100)
    near = columns(address, value=chain(address) - np.uint64(255))
    far = columns(address, value=chain(address) - np.uint64(256))
    assert finish(machine(parts=ModelPart.MLP), near) == 4 * 100 + 100 * L
    assert finish(machine(parts=ModelPart.MLP), far) < 20 * L


def test_independent_loads_overlap_up_to_fill_buffers(
    machine: Machine, columns: Columns, scattered: Any
) -> None:
    model = machine(parts=ModelPart.MLP, rob_instructions=1024)
    clock = finish(model, columns(scattered(1000), step=1))
    # The tenth buffer of each round is filled 10 instructions after the start, 100 rounds.
    assert clock == 10 * 100 + 100 * L


def test_reorder_window_limits_overlap(machine: Machine, columns: Columns, scattered: Any) -> None:
    model = machine(parts=ModelPart.MLP, rob_instructions=100)
    clock = finish(model, columns(scattered(1000), step=50))
    # A load enters when the one before the last is complete: two at a time.
    assert clock == 2 * 50 * 100 + 500 * L


def test_full_reorder_window_stalls_on_l1_hits(machine: Machine, columns: Columns) -> None:
    model = machine(parts=ModelPart.MLP)
    model.replay(columns([0] * 100_000, step=1))
    # The second load is in the window with the first; the clock waits at instruction 201.
    assert model.vcpu_clock_ps(0, 100_000) == 100_000 * 100 + (100 + L) - 201 * 100


def test_two_pointer_chases_overlap(
    machine: Machine, columns: Columns, scattered: Any, chain: Any
) -> None:
    one, other = scattered(500), scattered(500, start=1 << 29, seed=2) % (1 << 30)
    address = np.stack([one, other], axis=1).reshape(-1)
    value = np.stack([chain(one), chain(other)], axis=1).reshape(-1)
    clock = finish(machine(parts=ModelPart.MLP), columns(address, value=value))
    assert clock == 8 * 100 + 500 * L


def test_pointer_in_an_outstanding_line_waits_for_it(machine: Machine) -> None:
    model = machine(parts=ModelPart.MLP)
    model.access(0, 1, VIRTUAL, 0x10000, value=0)
    hit = model.access(0, 2, VIRTUAL + 8, 0x10008, value=VIRTUAL + 0x50000)
    model.access(0, 3, VIRTUAL + 0x50000, 0x50000)
    model.idle(0, 3)
    assert (hit.level, hit.latency_ps) == (CacheLevel.L1, L - 100)
    assert model.clock_ps == 100 + 2 * L


def test_dependence_through_a_cache_hit_is_kept(machine: Machine) -> None:
    model = machine(parts=ModelPart.MLP)
    model.access(0, 1, VIRTUAL + 0x90040, 0x90040)
    model.idle(0, 1)
    start = model.clock_ps
    model.access(0, 2, VIRTUAL + 0x10000, 0x10000, value=VIRTUAL + 0x90040)
    model.access(0, 3, VIRTUAL + 0x90040, 0x90040, value=VIRTUAL + 0x50000)
    model.access(0, 4, VIRTUAL + 0x50000, 0x50000)
    model.idle(0, 4)
    assert model.clock_ps == start + 100 + 2 * L


def test_stores_take_fill_buffers_without_stalling(
    machine: Machine, columns: Columns, scattered: Any
) -> None:
    few = columns(scattered(100), step=200, flags=AccessFlag.STORE)
    model = machine(parts=ModelPart.MLP)
    assert finish(model, few) == 100 * 200 * 100  # one in 20 ns: 6 at a time, 10 buffers
    many = columns(scattered(1000), step=1, flags=AccessFlag.STORE)
    model = machine(parts=ModelPart.MLP)
    model.replay(many)
    # The last ten start when the ten before are complete.
    assert model.clock_ps == 10 * 100 + 99 * 120_000


def test_misses_without_overlap_stall_for_their_latency(
    machine: Machine, columns: Columns, scattered: Any
) -> None:
    model = machine(parts=ModelPart(0))
    model.replay(columns(scattered(100), step=1))
    model.replay(columns(scattered(100, start=1 << 30), step=1, start=100))
    model.replay(columns(scattered(100, seed=2), step=1, start=200, flags=AccessFlag.STORE))
    assert model.clock_ps == 300 * 100 + 100 * (100_000 + 300_000 + 120_000)


def test_chased_load_latency_starts_at_its_known_address(
    machine: Machine, columns: Columns, scattered: Any, chain: Any
) -> None:
    address = scattered(50)
    outcomes = AccessCosts.empty(50)
    machine(parts=ModelPart.MLP).replay(columns(address, value=chain(address)), into=outcomes)
    assert set(outcomes.latency_ps.tolist()) == {L}
    assert set(outcomes.level.tolist()) == {CacheLevel.MEMORY}
