# SPDX-License-Identifier: MIT
"""Bandwidth: streams reach the peak and no more; load raises latency by the node's curve."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.access_model import AccessCosts, AccessFlag
from hmd.emulate.timing_params import ModelPart, TimingParams
from tests.unit.timing.conftest import Columns, Machine

GIB = 1 << 30
CURVE = ((0.25, 1.1), (0.5, 1.3), (0.75, 1.8), (0.9, 3.0))
LINES = 50_000


def lines(count: Any, start: int = 0) -> Any:
    return start + 64 * np.arange(count, dtype=np.uint64)


@pytest.mark.parametrize(("start", "bytes_per_ns"), [(0, 64.0), (GIB, 16.0)])
def test_load_stream_reaches_the_read_bandwidth(
    machine: Machine, columns: Columns, start: Any, bytes_per_ns: float
) -> None:
    model = machine()
    clock_ps = model.replay(columns(lines(LINES, start), step=1))
    assert LINES * 64 * 1000 / clock_ps == pytest.approx(bytes_per_ns, rel=0.02)


@pytest.mark.parametrize(("start", "bytes_per_ns"), [(0, 32.0), (GIB, 4.0)])
def test_store_stream_is_limited_by_write_backs(
    machine: Machine, columns: Columns, start: Any, bytes_per_ns: float
) -> None:
    model = machine()
    filled = 8192  # lines, twice the cache: from here on each store pushes out a dirty line
    model.replay(columns(lines(filled, start), step=1, flags=AccessFlag.STORE))
    before = model.counters(0)
    address = lines(LINES, start + filled * 64)
    model.replay(columns(address, step=1, start=filled, flags=AccessFlag.STORE))
    after = model.counters(0)
    written = after.nodes[start // GIB].write_bytes - before.nodes[start // GIB].write_bytes
    rate = written * 1000 / (after.clock_ps - before.clock_ps)
    assert rate == pytest.approx(bytes_per_ns, rel=0.02)
    assert written == pytest.approx(LINES * 64, rel=0.01)
    assert after.nodes[start // GIB].read_bytes == (filled + LINES) * 64


@pytest.mark.parametrize("streams", [2, 3, 4])
def test_streams_share_media_buffer_at_any_distance(
    machine: Machine, columns: Columns, streams: int
) -> None:
    page, per_stream = 64, 6400  # lines
    for distance in range(1, 40):  # pages between two streams, more than each of them has
        model = machine()
        starts = [GIB + i * (100 + distance) * page * 64 for i in range(streams)]
        turns = np.stack([lines(per_stream, start) for start in starts], axis=1).ravel()
        model.replay(columns(turns, step=4))
        assert model.counters(0).nodes[1].read_bytes == len(turns) * 64, distance


def test_random_loads_are_limited_by_bandwidth(
    machine: Machine, columns: Columns, scattered: Any
) -> None:
    model = machine(mshrs=64, rob_instructions=1024)
    model.replay(columns(scattered(LINES, GIB), step=1))
    model.idle(0, LINES)
    # 64 misses of 300 ns could bring 54 bytes a nanosecond of media; the node gives 16.
    assert LINES * 256 * 1000 / model.clock_ps == pytest.approx(16.0, rel=0.02)


def test_stream_below_the_peak_does_not_stall(machine: Machine, columns: Columns) -> None:
    model = machine(parts=ModelPart.ALL)
    outcomes = AccessCosts.empty(LINES)
    model.replay(columns(lines(LINES), step=11), into=outcomes)  # 58 of 64 bytes a nanosecond
    assert int(outcomes.stall_ps[100:].sum()) == 0


def test_stream_without_bandwidth_model_costs_nothing(machine: Machine, columns: Columns) -> None:
    model = machine(parts=ModelPart.ALL & ~ModelPart.BANDWIDTH)
    model.replay(columns(lines(LINES, GIB), step=1))
    assert model.clock_ps < LINES * 100 + 300_000


def test_covered_miss_stalls_for_its_latency(machine: Machine, columns: Columns) -> None:
    outcomes = AccessCosts.empty(LINES)
    machine().replay(columns(lines(LINES, GIB), step=1), into=outcomes)
    assert np.array_equal(outcomes.latency_ps[1000:], outcomes.stall_ps[1000:])
    assert outcomes.latency_ps[1000:].mean() == pytest.approx(64 / 16 * 1000 - 100, rel=0.02)


def in_step(model: Any, streams: Any, until_ps: Any) -> Any:
    """Replay each CPU's stream in small parts, always of the CPU that is behind."""
    done = [0] * len(streams)
    clock = [0] * len(streams)
    while min(clock) < until_ps:
        cpu = clock.index(min(clock))
        part = slice(done[cpu], done[cpu] + 8)
        stream = streams[cpu]
        model.replay(
            replace(stream, **{name: getattr(stream, name)[part] for name in stream.__slots__})
        )
        done[cpu] += 8
        clock[cpu] = model.counters(cpu).clock_ps
    return clock


def test_two_streams_share_the_peak_bandwidth(machine: Machine, columns: Columns) -> None:
    model = machine()
    streams = [columns(lines(LINES, GIB + cpu * GIB // 2), step=1, vcpu=cpu) for cpu in (0, 1)]
    in_step(model, streams, 20_000_000)  # until each has seen the other
    before = [model.counters(cpu) for cpu in (0, 1)]
    in_step(model, [_rest_of(stream, model, cpu) for cpu, stream in enumerate(streams)], 60_000_000)
    rates = [
        (model.counters(cpu).nodes[1].read_bytes - before[cpu].nodes[1].read_bytes)
        / (model.counters(cpu).clock_ps - before[cpu].clock_ps)
        for cpu in (0, 1)
    ]
    assert sum(rates) * 1000 == pytest.approx(16.0, rel=0.02)
    assert rates[0] == pytest.approx(rates[1], rel=0.02)


def test_halted_cpu_leaves_its_bandwidth_to_others(machine: Machine, columns: Columns) -> None:
    model = machine()
    streams = [columns(lines(LINES, GIB + cpu * GIB // 2), step=1, vcpu=cpu) for cpu in (0, 1)]
    in_step(model, streams, 10_000_000)
    model.idle(1, model.counters(1).instructions)
    before, start = model.counters(0), model.counters(0).instructions
    model.replay(columns(lines(LINES, GIB + GIB // 4), step=1, start=start))
    elapsed_ps = model.counters(0).clock_ps - before.clock_ps
    assert LINES * 64 * 1000 / elapsed_ps == pytest.approx(16.0, rel=0.03)


def test_reads_and_writes_have_separate_bandwidth(machine: Machine, columns: Columns) -> None:
    loads = columns(lines(LINES), step=1)
    alone, beside = machine(), machine()
    alone.replay(loads)
    # Dirty lines of node 0 are pushed out by loads: 64 bytes written for each 64 read.
    dirty = lines(4096, start=GIB // 2)
    beside.replay(columns(dirty, step=1, flags=AccessFlag.STORE))
    start, before_ps = beside.counters(0).instructions, beside.clock_ps
    beside.replay(columns(lines(4096), step=20, start=start))
    counters = beside.counters(0).nodes[0]
    assert counters.write_bytes == 4096 * 64
    assert beside.clock_ps - before_ps < 4096 * 20 * 100 + 200_000


@pytest.mark.parametrize("utilisation", [0.25, 0.5, 0.75, 0.9])
def test_chase_under_load_costs_the_loaded_latency(
    machine: Machine,
    params: TimingParams,
    columns: Columns,
    scattered: Any,
    chain: Any,
    utilisation: float,
) -> None:
    node = replace(params.nodes[0], loaded=CURVE)
    model = machine(nodes=(node,), instruction_ps=10)
    step_ps = 64 / (utilisation * 64.0) * 1000
    generator = columns(lines(200_000), step=round(step_ps / 10), vcpu=0)
    address = scattered(2000, start=GIB // 2) % GIB
    chaser = columns(address, step=50, vcpu=1, value=chain(address))
    in_step(model, [generator, chaser], 20_000_000)
    settled = model.counters(1)
    in_step(model, [_rest_of(generator, model, 0), _rest_of(chaser, model, 1)], 60_000_000)
    now = model.counters(1)
    hops = now.nodes[0].load_misses - settled.nodes[0].load_misses
    hop_ps = (now.clock_ps - settled.clock_ps) / hops
    load = utilisation + 64 / hop_ps * 1000 / 64
    factor = np.interp(load, [0, *(u for u, _ in CURVE)], [1, *(f for _, f in CURVE)])
    if load > 0.9:
        factor *= 1 + 8 * (load - 0.9)  # the curve's tail
    assert hop_ps / 100_000 == pytest.approx(factor, rel=0.05)


def _rest_of(stream: Any, model: Any, cpu: Any) -> Any:
    """Return the rest of a stream that the model has not replayed."""
    done = np.searchsorted(stream.instructions, model.counters(cpu).instructions, side="right")
    return replace(
        stream, **{name: getattr(stream, name)[int(done) :] for name in stream.__slots__}
    )


def test_loaded_latency_beyond_the_curve_is_bounded(
    machine: Machine, params: TimingParams, columns: Columns, scattered: Any
) -> None:
    node = replace(params.nodes[0], loaded=((0.5, 1.5),), read_bytes_per_ns=2.0)
    model = machine(nodes=(node,), parts=ModelPart.ALL & ~ModelPart.MLP)
    outcomes = AccessCosts.empty(20_000)
    stream = columns(lines(20_000), step=1)
    model.replay(stream)
    probe = columns(scattered(1, start=GIB // 2) % GIB, start=20_000)
    outcomes = AccessCosts.empty(1)
    model.replay(probe, into=outcomes)
    queue_ps = 64 / 2.0 * 1000  # one line more than the queue holds
    assert 0 <= int(outcomes.latency_ps[0]) - 100_000 * 1.5 * 2 <= queue_ps


def test_random_lines_of_optane_transfer_whole_granules(
    machine: Machine, columns: Columns, scattered: Any
) -> None:
    model = machine()
    model.replay(columns(scattered(1000, GIB), step=100))
    assert model.counters(0).nodes[1].read_bytes == 1000 * 256
    streaming = machine()
    streaming.replay(columns(lines(1000, GIB), step=100))
    assert streaming.counters(0).nodes[1].read_bytes == 1000 * 64


def test_lines_of_a_buffered_granule_are_not_read_again(machine: Machine, columns: Columns) -> None:
    model = machine()
    model.replay(columns([GIB + 0x10000, GIB + 0x100C0, GIB + 0x10100, GIB + 0x10040]))
    assert model.counters(0).nodes[1].read_bytes == 2 * 256
