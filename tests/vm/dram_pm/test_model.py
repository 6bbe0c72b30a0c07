# SPDX-License-Identifier: MIT
"""The timing model in the guest: serving node, latency and counters."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import microbenchmarks
from bench.microbenchmarks import MODELLED_BOUND, Bench, sample_figure, shootdown_figure
from hmd.emulate.demo.measure import PROGRAM_CPU, Meter, Reading
from hmd.emulate.vm.boot import Machine

CHECKOUT = Path(__file__).parents[3]
LINES = (16 << 20) // 64

READ_ALL = """
import mmap
area = mmap.mmap(-1, 16 << 20)
area.madvise(mmap.MADV_HUGEPAGE)
for start in range(0, len(area), 1 << 20):
    area[start : start + (1 << 20)] = bytes(1 << 20)
for _ in range(4):
    for start in range(0, len(area), 1 << 20):
        bytes(area[start : start + (1 << 20)])
"""


@pytest.fixture
def modelled(machine: Machine) -> Iterator[Machine]:
    """The machine with its timing model running."""
    machine.start_model()
    yield machine
    machine.stop_model()


def lines_served(machine: Machine, node: int) -> int:
    """Return the cache lines that a node has served, by the plugin's counters."""
    counters = [machine.shared.counters(cpu).nodes[node] for cpu in range(machine.shared.vcpus)]
    return sum(c.load_misses + c.store_misses + c.prefetched_lines for c in counters)


@pytest.mark.parametrize("node", [0, 1])
def test_model_bound_memory_counted_on_its_node(modelled: Machine, node: int) -> None:
    other = 1 - node
    before = lines_served(modelled, node), lines_served(modelled, other)
    program = ["numactl", "-m", str(node), "/usr/bin/python3", "-c", READ_ALL]
    modelled.run(program, timeout=200, check=True)
    served = lines_served(modelled, node) - before[0]
    assert served > 4 * LINES
    # What the interpreter shares with others (its file pages) may lie anywhere.
    assert lines_served(modelled, other) - before[1] < 0.1 * served


@pytest.mark.parametrize("node", [0, 1])
def test_model_dependent_loads_take_node_latency(modelled: Machine, node: int) -> None:
    asked = modelled.preset.nodes[node].read_latency_ns
    measured = Bench(modelled, modelled.preset, "0-1").run("chase", node, asked).modelled_ns[0]
    assert measured == pytest.approx(asked, rel=MODELLED_BOUND)


def test_meter_time_asleep_is_not_busy_time(modelled: Machine) -> None:
    def passed(*argv: str) -> Reading:
        before = meter.read()
        modelled.run(["taskset", "-c", str(PROGRAM_CPU), *argv], timeout=200, check=True)
        return meter.read().since(before)

    meter = Meter(modelled)
    other = ["taskset", "-c", "0", "sh", "-c", "while :; do :; done"]
    spinning = modelled.start(other, stdout=print, stderr=print)
    try:
        count = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done"
        passed("sh", "-c", count)  # its files are in the page cache from now on
        awake, asleep = passed("sh", "-c", count), passed("sleep", "15")
    finally:
        spinning.send_signal(signal.SIGKILL)
        spinning.wait(60)
    assert asleep.asleep_s > 2 * awake.asleep_s
    assert asleep.asleep_s > 2 * asleep.busy_s
    assert awake.asleep_s < awake.busy_s


def test_model_stopped_modelled_time_constant(machine: Machine) -> None:
    machine.start_model()
    machine.run(["true"], timeout=60)
    machine.stop_model()
    machine.run(["true"], timeout=60)  # each CPU has seen it by now, or has been idle
    clock = machine.shared.clock_ps
    assert clock > 0
    machine.run(["/usr/bin/python3", "-c", "sum(range(100000))"], timeout=60)
    assert machine.shared.clock_ps == clock


def test_guest_counters_equal_host_counters(modelled: Machine) -> None:
    argv = [sys.executable, "-m", "hmd", "emulate", "--counters", "--json"]
    before = modelled.shared.clock_ps * 1e-12
    done = modelled.run(argv, cwd=CHECKOUT, timeout=200, check=True)
    document = json.loads(done.stdout)
    assert before <= document["modelled_s"] <= modelled.shared.clock_ps * 1e-12
    assert len(document["nodes"]) == 2
    assert len(document["cpus"]) == 2
    assert document["nodes"][0]["read_bytes"] > 0


@pytest.fixture
def bench(modelled: Machine) -> Bench:
    """The microbenchmarks on both CPUs."""
    return Bench(modelled, modelled.preset, "0-1")


def test_model_small_pages_delay_dependent_loads_by_walks(bench: Bench) -> None:
    preset = bench.preset
    # On the fast node: walks take as long there, and a load scatters by less than they take.
    asked = microbenchmarks.walked_latency(preset, preset.nodes[0]).value
    # The guest's other software evicts lines, which only adds to a run: the least of some counts.
    huge = min(bench.run("chase", 0, asked).modelled_ns[0] for _ in range(3))
    small = min(bench.run("walk", 0, asked).modelled_ns[0] for _ in range(3))
    delay_ns = asked - preset.nodes[0].read_latency_ns
    assert 0.9 * delay_ns < small - huge < 1.6 * delay_ns


def test_model_sample_takes_time_of_sampled_cpu(bench: Bench, modelled: Machine) -> None:
    asked = bench.preset.nodes[0].read_latency_ns
    before = [modelled.shared.counters(cpu).sampling_ps for cpu in (0, 1)]
    figure = sample_figure(bench, bench.run("chase", 0, asked))
    after = [modelled.shared.counters(cpu).sampling_ps for cpu in (0, 1)]
    assert figure.within_bounds, figure
    # It runs on the first CPU; the other one only has the guest's services.
    assert after[0] - before[0] > 10 * (after[1] - before[1])


def test_model_shootdown_is_recognised_and_charged(bench: Bench) -> None:
    figure = shootdown_figure(bench)
    assert figure.within_bounds, figure
