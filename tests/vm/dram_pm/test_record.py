# SPDX-License-Identifier: MIT
"""hmd record in the guest: a program placed whole on each tier, its misses sampled by the PMU."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmd.base.units import PAGE_BYTES
from hmd.emulate.assets import compile_static
from hmd.emulate.demo.programs import INCLUDES, SOURCE
from hmd.emulate.vm.boot import Machine
from hmd.linux.emulator_memory import PluginVcpuCounters
from hmd.sample.access_batch import Kind
from hmd.trace.functions import heat_by_function
from hmd.trace.reader import read_trace
from hmd.trace.trace import Trace
from tests.fakes.two_functions import MISSES, STAYS, compiled

CHECKOUT = Path(__file__).parents[3]
MIB = 1 << 20
FOOTPRINT = 8 * MIB
CPU = 1
REORDER_WINDOW = 224

pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True, slots=True)
class Run:
    """A recorded run, its program's output, and counters of its CPU before and after."""

    trace: Trace
    lines: list[dict[str, Any]]
    before: PluginVcpuCounters
    after: PluginVcpuCounters


def _restrict_to(machine: Machine, cpus: str) -> None:
    """Restrict all processes of the guest, and their children, to these CPUs."""
    each = f"for p in /proc/[0-9]*; do taskset -a -p -c {cpus} ${{p#/proc/}}; done >/dev/null 2>&1"
    machine.run(["sh", "-c", f"{each}; true"], cwd=CHECKOUT, timeout=100)


@pytest.fixture(scope="module")
def quiet_cpu(machine: Machine) -> Iterator[int]:
    """A CPU without other processes, so that its counters are those of the program."""
    _restrict_to(machine, "0")
    yield CPU
    _restrict_to(machine, f"0-{CPU}")


@pytest.fixture(scope="module", params=["fast", "slow"])
def run(
    request: pytest.FixtureRequest, machine: Machine, machine_share: Path, quiet_cpu: int
) -> Run:
    """The program's run on a tier, on a CPU of its own; ``about["tier"]`` says which."""
    path = machine_share / f"{request.param}.hmdt"
    words = ["record", "--json", "--tier", request.param, "--period", "101", "-o", str(path), "--"]
    program = [str(compile_static(SOURCE, INCLUDES)), "--hot=4M", f"--footprint={FOOTPRINT}"]
    recorder = ["taskset", "-c", "0", sys.executable, "-m", "hmd", *words]
    machine.start_model()
    try:
        before = machine.shared.counters(quiet_cpu)
        done = machine.run(
            [*recorder, "taskset", "-c", str(quiet_cpu), *program, "--seconds=8"],
            cwd=CHECKOUT,
            timeout=400,
        )
        after = machine.shared.counters(quiet_cpu)
    finally:
        machine.stop_model()
    assert done.returncode == 0, done.stderr
    assert '"integrity_ok": true' in done.stdout
    trace = read_trace(path)
    assert json.loads(done.stderr)["samples"] == len(trace.samples)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return Run(trace, [line for line in lines if "modelled_ps" in line], before, after)


@pytest.fixture(scope="module")
def trace(run: Run) -> Trace:
    return run.trace


def buffer_of(trace: Trace) -> tuple[int, int]:
    """Return where the program's memory is: the largest mapping without a name."""
    last = trace.mappings[-1]
    nameless = np.array([path == "" for path in last.path])
    largest = int(np.argmax((last.end - last.start) * nameless))
    return int(last.start[largest]), int(last.end[largest])


def test_record_all_pages_on_chosen_tier(trace: Trace) -> None:
    node = 0 if trace.about["tier"] == "fast" else 1
    start, end = buffer_of(trace)
    found = [change.by_page() for change in trace.placement]
    page = np.concatenate([p for p, _ in found])
    where = np.concatenate([n for _, n in found])
    inside = (page >= start) & (page < end) & (where >= 0)
    assert len(np.unique(page[inside])) >= FOOTPRINT // PAGE_BYTES
    assert set(where[inside].tolist()) == {node}


def test_record_samples_in_program_memory_with_tier_latency(trace: Trace) -> None:
    start, end = buffer_of(trace)
    address = trace.samples.address
    inside = (address >= start) & (address < end)
    assert len(address) > 200
    # The rest is its start: the kernel's loader, its stack.
    assert inside.mean() > 0.9, np.unique(address[~inside] >> np.uint64(21), return_counts=True)
    latency = float(np.median(trace.samples.latency_ns[inside & (trace.samples.latency_ns > 0)]))
    slow = trace.about["tier"] == "slow"
    assert (latency > 450) == slow, latency


def test_record_sample_times_modelled_and_within_run(run: Run) -> None:
    trace = run.trace
    assert trace.clock == "modelled"
    assert trace.ending is not None
    assert trace.ending.exit_code == 0
    assert trace.ending.elapsed_ns is not None
    assert 8e9 < trace.ending.elapsed_ns < 400e9
    time_ns = trace.samples.time_ns.astype(np.int64)
    assert np.all(np.diff(time_ns) >= 0)
    assert trace.begin_ns <= time_ns[0]
    assert time_ns[-1] <= trace.begin_ns + trace.runtime_ns
    assert np.ptp(time_ns) > 0.5 * trace.runtime_ns


def test_record_runtime_equals_modelled_time_of_program_cpu(run: Run, machine: Machine) -> None:
    """Compared with the program's first and last reading of that clock and its CPU's busy time."""
    trace = run.trace
    printed_ns = [line["modelled_ps"] / 1000 for line in run.lines]
    end_ns = trace.begin_ns + trace.runtime_ns
    assert trace.begin_ns < printed_ns[0] < printed_ns[-1] <= end_ns
    # Before the first line it starts and fills its memory, after the last it checks it: so many
    # million accesses take modelled milliseconds, whatever the host is busy with.
    assert printed_ns[0] - trace.begin_ns < 40e6
    assert end_ns - printed_ns[-1] < 40e6
    # It begins on the recorder's CPU, whose clock goes on with the recorder's own work; from where
    # taskset has moved it, its CPU does nothing else.
    busy_ns = (run.after.busy_ps - run.before.busy_ps) / 1000
    assert end_ns - printed_ns[0] < busy_ns
    assert trace.ending is not None and trace.ending.elapsed_ns is not None
    assert trace.ending.elapsed_ns > 0.95 * machine.shared.dilation * trace.runtime_ns


def test_record_names_what_its_samples_took_of_the_program(run: Run, quiet_cpu: int) -> None:
    trace = run.trace
    here = int((trace.samples.cpu == quiet_cpu).sum())
    took_ns = (run.after.sampling_ps - run.before.sampling_ps) / 1000
    # Samples from before the program's start took time as well, and are left out.
    assert 0.7 * took_ns < here * trace.about["record_ns"] < 1.01 * took_ns


def test_record_traffic_of_nodes_contains_that_of_the_program(run: Run) -> None:
    node = 0 if run.trace.about["tier"] == "fast" else 1
    traffic = run.trace.traffic
    assert traffic is not None
    own = traffic.node == node
    for name in ("read_bytes", "write_bytes"):
        moved = getattr(traffic, name)[own].astype(np.int64)
        assert np.all(np.diff(moved) >= 0)
        before, after = (getattr(each.nodes[node], name) for each in (run.before, run.after))
        assert moved[-1] > 0.9 * (after - before)


def test_record_of_one_thread_has_no_times_of_threads(trace: Trace) -> None:
    assert trace.threads is None


def test_record_waits_are_those_of_the_program_cpu(run: Run) -> None:
    progress = run.trace.progress
    assert progress is not None
    waited_ns = progress.stalled_ns.astype(np.int64)
    assert np.all(np.diff(waited_ns) >= 0)
    counted_ps = [sum(node.stall_ps for node in each.nodes) for each in (run.before, run.after)]
    # After the program's exit, and before its start, its CPU waits for little.
    assert waited_ns[-1] * 1000 == pytest.approx(counted_ps[1] - counted_ps[0], rel=0.15)
    assert waited_ns[-1] < run.trace.runtime_ns


def test_record_instructions_equal_program_cpu_counter(run: Run) -> None:
    trace = run.trace
    assert trace.about["instructions"] == "emulated"
    progress, samples = trace.progress, trace.samples
    assert progress is not None
    assert np.all(np.diff(progress.instructions.astype(np.int64)) >= 0)
    assert int(progress.instructions[-1]) < run.after.instructions - run.before.instructions
    # Samples count the same, from another start.
    on_cpu = samples.cpu == CPU
    # Until taskset has moved it, it runs on the recorder's.
    assert on_cpu[np.argmax(on_cpu) :].mean() > 0.99
    time_ns, counted = samples.time_ns[on_cpu], samples.instructions[on_cpu].astype(np.int64)
    assert np.all(np.diff(counted) >= 0)
    # At the first and the last reading among samples, which are far denser than readings: on a busy
    # host those are late, and what lies between two of them is not evenly spread.
    at = (time_ns[0] <= progress.time_ns) & (progress.time_ns <= time_ns[-1])
    from_samples = np.interp(progress.time_ns[at], time_ns, counted)
    read = progress.instructions[at].astype(np.int64)
    assert read[-1] - read[0] > int(progress.instructions[-1]) / 4
    assert read[-1] - read[0] == pytest.approx(from_samples[-1] - from_samples[0], rel=0.1)


def test_record_loads_in_one_reorder_window_both_sampled(run: Run) -> None:
    """Random updates miss several times in a reorder window, and pairs of such misses are seen."""
    trace, samples = run.trace, run.trace.samples
    assert (trace.about["pairs"], trace.about["pair_period"]) == (True, 109)
    assert trace.about["reorder_window"] is None
    start, end = buffer_of(trace)
    rows = np.flatnonzero((samples.address >= start) & (samples.address < end))
    rows = rows[(samples.kind[rows] == Kind.LOAD) & (samples.cpu[rows] == CPU)]
    rows = rows[samples.period[rows] < 32 * 101]  # misses, not lines that were prefetched
    assert set(samples.period[rows].tolist()) == {52}
    rows = rows[np.argsort(samples.instructions[rows], kind="stable")]
    apart = np.diff(samples.instructions[rows].astype(np.int64))
    other = samples.address[rows][1:] != samples.address[rows][:-1]
    near = (apart < REORDER_WINDOW) & other
    # Of one counter alone none would be.
    assert 0.05 < near.mean() < 0.5, (len(rows), near.sum())


def test_record_sample_periods_sum_to_counted_misses(run: Run) -> None:
    samples, floor_ns = run.trace.samples, 50
    nodes = list(zip(run.before.nodes, run.after.nodes, strict=True))

    def counted(*names: str) -> int:
        return sum(getattr(b, name) - getattr(a, name) for a, b in nodes for name in names)

    load, waited = samples.kind == Kind.LOAD, samples.latency_ns >= floor_ns
    # What a starved recorder found overwritten is known to be lost.
    lost = 1 + run.trace.losses.lost / len(samples)
    missed = int(samples.period[load & waited].sum()) * lost
    assert missed == pytest.approx(counted("load_misses"), rel=0.1), run.trace.losses


def test_record_tells_which_function_misses(machine: Machine, machine_share: Path) -> None:
    program, path = compiled(machine_share, "-static"), machine_share / "functions.hmdt"
    words = ["record", "--tier", "slow", "--period", "31", "-o", str(path), "--"]
    machine.start_model()
    try:
        done = machine.run(
            [sys.executable, "-m", "hmd", *words, str(program), "64", "4"],
            cwd=CHECKOUT,
            timeout=400,
        )
    finally:
        machine.stop_model()
    assert done.returncode == 0, done.stderr
    found, unnamed = heat_by_function(read_trace(path))
    hottest = found[0]
    assert (hottest["function"], hottest["mapping"]) == (MISSES, str(program))
    # The kernel clears the pages that the first round touches.
    assert hottest["share"] > 0.5, found[:5]
    assert sum(each["share"] for each in found if each["function"] == STAYS) < 0.01
    assert hottest["slow_share"] > 0.99
    assert hottest["mean_latency_ns"] > 300
    assert not unnamed


def test_record_tiers_equal_preset(trace: Trace, machine: Machine) -> None:
    for tier, node in zip(trace.about["tiers"], machine.preset.nodes, strict=True):
        assert tier["read_latency_ns"] == pytest.approx(node.read_latency_ns, abs=1)
        assert tier["write_latency_ns"] == pytest.approx(node.write_latency_ns, abs=1)
        assert tier["read_bandwidth_mbps"] == pytest.approx(
            node.read_bandwidth_gbps * 1000, rel=0.1
        )
