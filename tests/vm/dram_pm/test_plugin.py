# SPDX-License-Identifier: MIT
"""The plugin: modelled clock, misses per node, and pacing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hmd.emulate.assets import PLUGIN_SOURCES, compile_static
from hmd.emulate.vm.boot import Machine
from hmd.linux.emulator_memory import PluginVcpuCounters

ACCESSES = 200_000
ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parents[1] / "programs"

pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True, slots=True)
class Run:
    """Counters of both vCPUs before and after a chase through one node's memory."""

    before: tuple[PluginVcpuCounters, ...]
    after: tuple[PluginVcpuCounters, ...]

    def misses(self, node: int) -> int:
        return sum(
            after.nodes[node].load_misses - before.nodes[node].load_misses
            for before, after in zip(self.before, self.after, strict=True)
        )


def counters(machine: Machine) -> tuple[PluginVcpuCounters, ...]:
    return tuple(machine.shared.counters(vcpu) for vcpu in range(machine.shared.vcpus))


@pytest.fixture(scope="module")
def device(machine: Machine) -> str:
    script = "for d in /sys/bus/pci/devices/*; do grep -q 0x1110 $d/device && echo $d; done"
    return machine.run(["sh", "-c", script], check=True).stdout.strip() + "/resource2"


@pytest.fixture(scope="module")
def chases(machine: Machine, device: str) -> Iterator[list[Run]]:
    includes = [f"-I{folder}" for folder in PLUGIN_SOURCES]
    program = compile_static(ROOT / "bench/workloads/membench.c", includes)
    runs = []
    machine.start_model()
    try:
        for node in (0, 1):
            before = counters(machine)
            chase = ["chase", str(node), str(ACCESSES)]
            machine.run([str(program), device, "0-0", *chase], check=True)
            runs.append(Run(before, counters(machine)))
    finally:
        machine.stop_model()
    yield runs


def test_plugin_misses_counted_on_serving_node(chases: list[Run]) -> None:
    for node, run in enumerate(chases):
        assert run.misses(node) >= ACCESSES
        # The rest of the system lives on node 0 and misses a little, too.
        assert run.misses(1 - node) < 0.1 * ACCESSES


def test_plugin_stall_per_miss_equals_node_latency(chases: list[Run], machine: Machine) -> None:
    def stalled_ns(run: Run, node: int) -> float:
        ps = sum(
            after.nodes[node].stall_ps - before.nodes[node].stall_ps
            for before, after in zip(run.before, run.after, strict=True)
        )
        return ps / 1000 / run.misses(node)

    for node, run in enumerate(chases):
        asked = machine.preset.nodes[node].read_latency_ns
        assert stalled_ns(run, node) == pytest.approx(asked, rel=0.1)


@pytest.fixture(scope="module")
def spin(machine: Machine) -> Run:
    """Counters around 80 million instructions that access no memory."""
    program = compile_static(Path(__file__).parents[1] / "programs" / "spin.c")
    machine.start_model()
    try:
        before = counters(machine)
        machine.run([str(program), "10000000"], check=True)
        return Run(before, counters(machine))
    finally:
        machine.stop_model()


def test_plugin_loop_without_memory_access_instructions_counted(spin: Run) -> None:
    counted = sum(
        a.instructions - b.instructions for b, a in zip(spin.before, spin.after, strict=True)
    )
    assert 70_000_000 < counted < 200_000_000


def test_plugin_pacing_busy_time_within_host_time(
    chases: list[Run], spin: Run, machine: Machine
) -> None:
    """However busy the host: dilated busy time never exceeds the host's, but for the credit."""
    for run in (*chases, spin):
        for before, after in zip(run.before, run.after, strict=True):
            host_ns = after.host_ns - before.host_ns
            busy_ns = (after.busy_ps - before.busy_ps) / 1000
            assert busy_ns * machine.shared.dilation <= 1.02 * host_ns + 100_000


def test_plugin_model_off_modelled_clock_constant(chases: list[Run], machine: Machine) -> None:
    machine.run(["true"], check=True)  # each vCPU that runs sees that it is off
    before = machine.shared.clock_ps
    machine.run(["sh", "-c", "seq 20000 | sort -n | tail -1"], check=True)
    assert machine.shared.clock_ps == before
    machine.start_model(timeout=1)  # no second flush: the code is instrumented
    machine.run(["sh", "-c", "seq 2000 | sort -n | tail -1"], check=True)
    machine.stop_model()
    assert machine.shared.clock_ps > before


def test_plugin_does_not_charge_timer_interrupts(machine: Machine) -> None:
    # 2.003 to 2.004 instructions per turn, with the program's start, softirqs and other work of the
    # kernel; 2.010 where timer interrupts are charged.
    turns = 1_000_000_000
    program = str(compile_static(PROGRAMS / "count_down.c"))
    machine.start_model()
    try:
        machine.run(["taskset", "-c", "1", program, "1"], check=True)
        before = counters(machine)[1]
        machine.run(["taskset", "-c", "1", program, str(turns)], check=True)
        after = counters(machine)[1]
    finally:
        machine.stop_model()
    assert 2 * turns <= after.instructions - before.instructions < 2.007 * turns
