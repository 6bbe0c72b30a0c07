# SPDX-License-Identifier: MIT
"""The model as a whole: kernel switch, idle, parameters, invariants, memory, threads."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.access_model import AccessCosts, AccessFlag, AccessModel, AccessStream
from hmd.base.errors import HmdError
from hmd.emulate._timing import lib
from hmd.emulate.timing_params import ModelPart, TimingParams
from tests.unit.timing.conftest import Columns, Machine

GIB = 1 << 30


def test_kernel_page_copy_costs_bandwidth_on_both_nodes(machine: Machine, columns: Columns) -> None:
    model = machine()
    pages, lines = 200, 64
    source = GIB + 64 * np.arange(pages * lines)
    target = 64 * np.arange(pages * lines)
    address = np.stack([source, target], axis=1).reshape(-1)
    flags = [AccessFlag.KERNEL, AccessFlag.KERNEL | AccessFlag.STORE] * (pages * lines)
    model.replay(columns(address, step=1, flags=flags))
    fast, slow = model.counters(0).nodes
    assert fast.kernel_lines == slow.kernel_lines == pages * lines
    assert fast.load_misses == slow.store_misses == fast.prefetched_lines == 0
    assert slow.read_bytes == pages * 4096
    assert fast.write_bytes >= pages * 4096 - (256 << 10)
    assert model.clock_ps >= pages * 4096 / 16 * 1000 * 0.98


def test_kernel_accesses_without_their_model_cost_nothing(
    machine: Machine, columns: Columns, scattered: Any
) -> None:
    address = scattered(1000)
    user = columns(address[:500])
    mixed = columns(np.stack([address[:500], address[500:]], axis=1).reshape(-1), step=2)
    mixed = replace(mixed, flags=np.tile([0, 2], 500).astype(np.uint8))
    mixed = replace(mixed, instructions=np.repeat(user.instructions, 2))
    without = machine(parts=ModelPart.ALL & ~ModelPart.KERNEL)
    without.replay(mixed)
    alone = machine()
    alone.replay(user)
    assert without.counters(0) == alone.counters(0)


def test_halted_cpu_resumes_at_the_machine_clock(
    machine: Machine, columns: Columns, scattered: Any
) -> None:
    model = machine(parts=ModelPart(0))
    model.replay(columns([0], vcpu=1, step=1))
    model.idle(1, 1)
    halted_ps = model.vcpu_clock_ps(1, 1)
    model.replay(columns(scattered(100), vcpu=0, step=1))
    assert model.vcpu_clock_ps(1, 1) == halted_ps
    model.resume(1, 1)
    # CPU 0 too had begun at the machine's clock.
    assert model.clock_ps == halted_ps + 100 * 100_000 + 99 * 100
    assert model.vcpu_clock_ps(1, 1) == model.clock_ps
    counters = model.counters(1)
    assert counters.busy_ps == halted_ps < counters.clock_ps


def test_halt_by_flag_and_by_record_are_equal(machine: Machine, columns: Columns) -> None:
    model = machine(parts=ModelPart(0))
    stream = columns([0, 0, 4096], step=1, flags=[0, AccessFlag.HALT, 0])
    model.replay(columns([0] * 5000, vcpu=1, step=1))
    outcomes = AccessCosts.empty(3)
    model.replay(stream, into=outcomes)
    assert model.counters(0).loads == 2
    assert outcomes.stall_ps.tolist() == [100_000, 0, 100_000]
    assert model.counters(0).busy_ps == 3 * 100 + 2 * 100_000


def test_idle_cpu_waits_for_outstanding_misses(machine: Machine, columns: Columns) -> None:
    model = machine(parts=ModelPart.MLP)
    model.replay(columns([0]))
    assert model.clock_ps == 400
    model.idle(0, 4)
    assert model.clock_ps == 400 + 100_000


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"vcpus": 0}, "vcpus must be 1 to 16"),
        ({"vcpus": 17}, "vcpus must be 1 to 16"),
        ({"nodes": ()}, "nodes must be 1 to 8"),
        ({"parts": int(ModelPart.ALL) + 1}, "parts has a bit"),
        ({"instruction_ps": 0}, "instruction_ps must be"),
        ({"instruction_ps": -1}, "out of range"),
        ({"mshrs": 0}, "mshrs must be 1 to 64"),
        ({"mshrs": 65}, "mshrs must be 1 to 64"),
        ({"rob_instructions": 1025}, "rob_instructions must be 1 to 1024"),
        ({"chase_span_bytes": 65537}, "chase_span_bytes must be at most 65536"),
        ({"prefetch_streams": 33}, "prefetch_streams must be 1 to 32"),
        ({"llcs": 0}, "llcs must be 1 to vcpus"),
        ({"llcs": 3}, "llcs must be 1 to vcpus"),
        ({"llc_ways": 0}, "llc_ways must be 1 to 64"),
        ({"llc_ways": 65}, "llc_ways must be 1 to 64"),
        ({"llc_bytes": 0}, "llc_bytes must be a multiple"),
        ({"llc_bytes": 1000}, "llc_bytes must be a multiple"),
        ({"llc_bytes": 1 << 33}, "out of range"),
        ({"first_llc_bytes": 1000}, "first_llc_bytes must be a multiple"),
    ],
)
def test_parameter_out_of_range_is_refused_by_name(
    params: TimingParams, fields: Any, why: str
) -> None:
    with pytest.raises(HmdError, match=why):
        AccessModel(replace(params, **fields))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"phys_start": GIB}, "phys_start must be below phys_end"),
        ({"phys_end": 1 << 37}, "phys_end must be below 128 GiB"),
        ({"phys_end": GIB + 4096}, "two nodes overlap"),
        ({"read_latency_ps": 0}, "read_latency_ps and write_latency_ps"),
        ({"write_latency_ps": 0}, "read_latency_ps and write_latency_ps"),
        ({"read_bytes_per_ns": 0.0}, "read_bytes_per_ns must be"),
        ({"read_bytes_per_ns": float("nan")}, "read_bytes_per_ns must be"),
        ({"write_bytes_per_ns": -1.0}, "write_bytes_per_ns must be"),
        ({"granularity_bytes": 32}, "access_granularity must be"),
        ({"granularity_bytes": 192}, "access_granularity must be"),
        ({"loaded": ((0.5, 1.0),) * 2}, "curve_utilisation must be"),
        ({"loaded": ((0.5, 2.0), (0.6, 1.5))}, "curve_factor must be"),
        ({"loaded": ((0.5, 0.9),)}, "curve_factor must be"),
        ({"loaded": tuple((i / 10, 1.0) for i in range(1, 10))}, "curve_points must be at most 8"),
    ],
)
def test_node_out_of_range_is_refused_by_field(params: TimingParams, fields: Any, why: str) -> None:
    node = replace(params.nodes[0], **fields)
    with pytest.raises(HmdError, match=why):
        AccessModel(replace(params, nodes=(node, params.nodes[1])))


def test_model_part_flags_match_the_library() -> None:
    assert {part.name: part.value for part in ModelPart} == {
        name: getattr(lib, f"TIMING_{name}") for name in ModelPart.__members__ if name != "ALL"
    }
    assert sum(part.value for part in ModelPart) == ModelPart.ALL


ACCESS = st.tuples(
    st.integers(0, 1),  # cpu
    st.integers(0, 300),  # instructions since the last
    st.one_of(st.integers(0, 4096), st.integers(0, 2 * GIB - 256)),  # address
    st.sampled_from([1, 4, 8, 16, 64]),
    st.integers(0, 7),
    st.one_of(st.just(0), st.integers(1 << 40, (1 << 40) + 2 * GIB)),
)


def stream_of(accesses: Any) -> Any:
    count = [0, 0]
    rows = []
    for cpu, step, address, size, flags, value in accesses:
        count[cpu] += step
        rows.append((cpu, count[cpu], (1 << 40) + address, address, size, flags, value))
    columns = zip(*rows, strict=True) if rows else [()] * 7
    names = AccessStream.__slots__
    wide = {"instructions", "vaddr", "paddr", "value"}
    arrays: dict[str, Any] = {
        name: np.array(column, np.uint64 if name in wide else np.uint8)
        for name, column in zip(names, columns, strict=True)
    }
    return AccessStream(**arrays)


def test_instruction_count_going_back_keeps_the_clock(machine: Machine, columns: Columns) -> None:
    stream = columns(GIB + 64 * np.arange(20_000, dtype=np.uint64), step=1)
    shaken = replace(
        stream,
        instructions=np.maximum(stream.instructions, 3)
        - np.arange(20_000, dtype=np.uint64) % 2 * 2,
    )
    steady, model = machine(), machine()
    steady.replay(stream)
    model.replay(shaken)
    assert model.clock_ps == pytest.approx(steady.clock_ps, rel=1e-3)


@settings(max_examples=150, deadline=None)
@given(accesses=st.lists(ACCESS, max_size=300), parts=st.integers(0, int(ModelPart.ALL)))
def test_model_counters_and_clocks_are_consistent(
    params: TimingParams, accesses: Any, parts: Any
) -> None:
    stream = stream_of(accesses)
    with AccessModel(replace(params, parts=ModelPart(parts))) as model:
        clocks = [0, 0]
        stalls = [0, 0]
        for row in range(len(stream)):
            part = slice(row, row + 1)
            outcome = AccessCosts.empty(1)
            one = {name: getattr(stream, name)[part] for name in AccessStream.__slots__}
            machine_ps = model.replay(AccessStream(**one), into=outcome)
            cpu = int(stream.vcpu[row])
            counters = model.counters(cpu)
            assert counters.clock_ps >= clocks[cpu]
            assert counters.busy_ps <= counters.clock_ps <= machine_ps
            clocks[cpu] = counters.clock_ps
            stalls[cpu] += int(outcome.stall_ps[0])
            assert outcome.node[0] == 0xFF or outcome.level[0] >= 2
        for cpu in (0, 1):
            counters = model.counters(cpu)
            check_counters(counters, params, ModelPart(parts))
            waited = counters.busy_ps - counters.instructions * params.instruction_ps
            halts = np.any((stream.vcpu == cpu) & (stream.flags & AccessFlag.HALT > 0))
            assert stalls[cpu] <= waited if halts else stalls[cpu] == waited


def check_counters(counters: Any, params: TimingParams, parts: Any) -> None:
    fast, slow = counters.nodes
    for node in counters.nodes:
        lines = node.load_misses + node.store_misses + node.prefetched_lines + node.kernel_lines
        if node is fast:
            assert node.read_bytes == 64 * lines
        else:
            # Fewer, even none, where the other CPU has just moved the granule.
            assert node.read_bytes % 256 == 0 and node.read_bytes <= 256 * lines
    assert fast.write_bytes % 64 == 0 and slow.write_bytes % 256 == 0
    if ModelPart.KERNEL not in parts:
        assert fast.kernel_lines == slow.kernel_lines == 0
    if ModelPart.PREFETCH not in parts:
        assert fast.prefetched_lines == slow.prefetched_lines == 0
    if ModelPart.CACHE not in parts:
        assert counters.llc_hits == 0
    stalled = fast.stall_ps + slow.stall_ps
    hits = counters.busy_ps - counters.instructions * params.instruction_ps - stalled
    assert 0 <= hits <= counters.llc_hits * params.llc_hit_ps


def test_replay_of_the_same_stream_is_deterministic(
    machine: Machine, columns: Columns, scattered: Any
) -> None:
    address = np.concatenate([scattered(5000), 64 * np.arange(5000), scattered(5000, GIB)])
    stream = columns(address, flags=np.arange(15_000) % 3 % 2)
    results = []
    for _ in range(2):
        model, outcomes = machine(), AccessCosts.empty(15_000)
        model.replay(stream, into=outcomes)
        results.append([model.counters(0), *(each.tolist() for each in outcomes.columns(15_000))])
    assert results[0] == results[1]


def test_single_accesses_cost_the_same_as_columns(
    machine: Machine, columns: Columns, scattered: Any
) -> None:
    stream = columns(np.concatenate([scattered(300), 64 * np.arange(300)]))
    single, whole = machine(), machine()
    whole.replay(stream)
    for row in range(len(stream)):
        single.access(
            0, int(stream.instructions[row]), int(stream.vaddr[row]), int(stream.paddr[row])
        )
    assert single.counters(0) == whole.counters(0)


def test_two_threads_count_every_access(machine: Machine, columns: Columns, scattered: Any) -> None:
    model = machine()
    streams = [
        columns(scattered(200_000, seed=cpu), vcpu=cpu, flags=np.arange(200_000) % 2)
        for cpu in (0, 1)
    ]
    threads = [threading.Thread(target=model.replay, args=(each,)) for each in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for cpu in (0, 1):
        counters = model.counters(cpu)
        node = counters.nodes[0]
        assert counters.loads == counters.stores == 100_000
        lines = node.load_misses + node.store_misses + node.prefetched_lines
        assert lines + counters.llc_hits <= 200_000
        assert node.read_bytes == 64 * lines


def test_closed_models_are_freed(params: TimingParams) -> None:
    def make(count: Any) -> None:
        for _ in range(count):
            with AccessModel(replace(params, llc_bytes=16 << 20)):
                pass

    make(20)
    before = psutil.Process().memory_info().rss
    make(200)  # 200 MiB and more, were they kept
    assert psutil.Process().memory_info().rss - before < 20 << 20


def test_closed_model_or_wrong_cpu_is_refused(machine: Machine, columns: Columns) -> None:
    model = machine()
    with pytest.raises(ValueError, match="the machine has 2"):
        model.access(2, 1, 0, 0)
    with pytest.raises(ValueError, match="the stream has CPU 2"):
        model.replay(columns([0], vcpu=2))
    with pytest.raises(ValueError, match="size must be contiguous uint8"):
        model.replay(replace(columns([0]), size=np.zeros(1, np.uint64)))
    model.close()
    model.close()
    with pytest.raises(ValueError, match="closed"):
        model.access(0, 1, 0, 0)
