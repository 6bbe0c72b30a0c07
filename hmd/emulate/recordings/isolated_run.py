"""Recorded runs: a command alone on tickless CPUs of the emulated machine.

Takes a command and a memory policy; returns the busy time and instructions of the command's CPUs by
the modelled clock, and the recording of its misses if the machine has room for one. A command of
several threads has a CPU per thread, which share cache and bandwidth, and whose clocks stay
together. The command runs once before the timing model starts, so that its files are in the page
cache in every run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from hmd.emulate.assets import WORKLOADS
from hmd.emulate.c_compiler import compile_static
from hmd.emulate.preset import Preset
from hmd.emulate.preset_overrides import with_cpus
from hmd.emulate.recordings.miss_stream import MissRecording
from hmd.emulate.recordings.plugin_miss_log import read_recording
from hmd.emulate.recordings.server_load import serve
from hmd.emulate.virtual_machine.boot import Machine
from hmd.emulate.virtual_machine.guest_command import Command
from hmd.errors import HmdError

PROGRAM_CPU = 1
SERVICE_CPU = 0
FAST_NODE = 0
SLOW_NODE = 1

RECORDED_ON = "dram-pm"
"""The preset whose caches filter a recording: presets that replay it must have the same caches."""

RECORDING_BYTES = 4 << 30
_PLACED = WORKLOADS / "placed.c"
_WEIGHTS = "/sys/kernel/mm/mempolicy/weighted_interleave"
_STEP_NS = 2_000.0  # short compared with the time between two barriers
_TIMEOUT_S = 900


class MemoryPolicy(StrEnum):
    """Memory policies of set_mempolicy(2)."""

    BIND = "bind"
    INTERLEAVE = "interleave"
    WEIGHTED = "weighted"


@dataclass(frozen=True, slots=True)
class Placement:
    """A policy over nodes; ``weights`` are the weighted policy's pages per turn of each node."""

    policy: MemoryPolicy
    nodes: tuple[int, ...]
    weights: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return the policy, its nodes and weights in one line."""
        where = "+".join(str(node) for node in self.nodes)
        return f"{self.policy} {where}" + "".join(f" {weight}" for weight in self.weights)


ALL_FAST = Placement(MemoryPolicy.BIND, (FAST_NODE,))
ALL_SLOW = Placement(MemoryPolicy.BIND, (SLOW_NODE,))


@dataclass(frozen=True, slots=True)
class GuestRun:
    """One run: busy seconds and instructions; ``host_s`` is the time to emulate it.

    Of several CPUs: the seconds during which at least one was busy, and all their instructions.
    """

    busy_s: float
    instructions: int
    host_s: float
    recording: MissRecording | None


def widest_core(preset: Preset) -> Preset:
    """Return a preset with the largest reorder window and the most line fill buffers.

    A recording by it holds the dependences that any other core may meet.
    """
    core = preset.core.model_copy(update={"reorder_window": 1024, "line_fill_buffers": 64})
    return preset.model_copy(update={"core": core})


@contextmanager
def guest(preset: Preset, command: Command, *, record: bool = True) -> Iterator[Machine]:
    """Boot a machine, run the command once without the timing model, then start the model.

    For a command of several threads, the machine has a CPU for each and one for services.
    """
    threads = command.threads
    with Machine(
        with_cpus(preset, threads + 1) if threads > 1 else preset,
        dilation=0,
        recording_bytes=RECORDING_BYTES if record else 0,
        append=_without_ticks(program_cpus(command)),
        step_ns=_STEP_NS if threads > 1 else 0,
    ) as machine:
        # A layout places pages of 4 KiB.
        _set(machine, "/sys/kernel/mm/transparent_hugepage/enabled", "never")
        _execute(machine, command, ALL_SLOW)
        machine.shared.running = True
        machine.run(["true"])  # an event: without ticks both CPUs may be idle
        machine.start_model()
        yield machine


def run_in(machine: Machine, command: Command, placement: Placement) -> GuestRun:
    """Run a command; raises HmdError where its exit status or its output is not as expected."""
    for node, weight in zip(placement.nodes, placement.weights, strict=False):
        _set(machine, f"{_WEIGHTS}/node{node}", str(weight))
    cpus = program_cpus(command)
    before, began = [machine.shared.counters(cpu) for cpu in cpus], time.monotonic()
    with machine.record_misses(*cpus) as path:
        _execute(machine, command, placement)
        took = time.monotonic() - began
        after = [machine.shared.counters(cpu) for cpu in cpus]
        count = machine.shared.recorded
    recording = read_recording(path, count)
    busy_s = (after[0].busy_ps - before[0].busy_ps) * 1e-12
    executed = [b.instructions - a.instructions for a, b in zip(before, after, strict=True)]
    return GuestRun(
        busy_s=busy_s if len(cpus) == 1 else recording.awake_s,
        instructions=sum(executed),
        host_s=took,
        recording=recording,
    )


def program_cpus(command: Command) -> range:
    """Return the CPUs that a command runs on; CPU 0 is for services."""
    return range(PROGRAM_CPU, PROGRAM_CPU + command.threads)


def _without_ticks(cpus: range) -> tuple[str, ...]:
    # The guest's clock is the host's: timer ticks come fifty times too often for modelled time.
    listed = f"{cpus[0]}-{cpus[-1]}"
    return (f"nohz_full={listed}", f"isolcpus={listed}", f"rcu_nocbs={listed}")


def _execute(machine: Machine, command: Command, placement: Placement) -> None:
    mask = sum(1 << node for node in placement.nodes)
    placed, cpus = str(compile_static(_PLACED)), program_cpus(command)
    output, errors = bytearray(), bytearray()
    job = machine.start(
        [placed, f"{cpus[0]}-{cpus[-1]}", placement.policy, str(mask), *command.argv],
        cwd="/tmp",
        env=dict(command.env),
        stdout=output.extend,
        stderr=errors.extend,
    )
    if command.load:
        service = [placed, str(SERVICE_CPU), MemoryPolicy.BIND, str(1 << SLOW_NODE)]
        output.extend(serve(machine, command, service, _TIMEOUT_S))
    code = job.wait(_TIMEOUT_S)
    # Many programs report their work on stderr.
    found = (output + errors).decode(errors="replace")
    if code != command.exit_status or command.expect not in found:
        last = (errors.decode(errors="replace").strip() or "no message").splitlines()[-1]
        raise HmdError(f"{command.argv[0]} exited with {code} and did not do its work: {last}")


def _set(machine: Machine, path: str, text: str) -> None:
    machine.run(["sh", "-c", f"echo {text} > {path}"], check=True)
