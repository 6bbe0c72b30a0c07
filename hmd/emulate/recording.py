"""Recorded runs: a command alone on a tickless CPU of the emulated machine.

Takes a command and a memory policy; returns the busy time and instructions of the command's CPU by
the modelled clock, and the recording of its misses if the machine has room for one. The command
runs once before the timing model starts, so that its files are in the page cache in every run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from hmd.emulate.assets import WORKLOADS, compile_static
from hmd.emulate.boot import Machine
from hmd.emulate.guest_command import Command
from hmd.emulate.miss_stream import MissRecording, read_recording
from hmd.emulate.preset import Preset
from hmd.emulate.server_load import serve
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
# The guest's clock is the host's: timer ticks come fifty times too often for modelled time.
_NO_TICKS = (f"nohz_full={PROGRAM_CPU}", f"isolcpus={PROGRAM_CPU}", f"rcu_nocbs={PROGRAM_CPU}")
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
    """One run: busy seconds and instructions of its CPU; ``host_s`` is the time to emulate it."""

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
    """Boot a machine, run the command once without the timing model, then start the model."""
    room = RECORDING_BYTES if record else 0
    with Machine(preset, dilation=0, recording_bytes=room, append=_NO_TICKS) as machine:
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
    before, began = machine.shared.counters(PROGRAM_CPU), time.monotonic()
    with machine.record_misses(PROGRAM_CPU) as path:
        _execute(machine, command, placement)
        took = time.monotonic() - began
        after, count = machine.shared.counters(PROGRAM_CPU), machine.shared.recorded
    return GuestRun(
        busy_s=(after.busy_ps - before.busy_ps) * 1e-12,
        instructions=after.instructions - before.instructions,
        host_s=took,
        recording=read_recording(path, count),
    )


def _execute(machine: Machine, command: Command, placement: Placement) -> None:
    mask = sum(1 << node for node in placement.nodes)
    placed = str(compile_static(_PLACED))
    output, errors = bytearray(), bytearray()
    job = machine.start(
        [placed, str(PROGRAM_CPU), placement.policy, str(mask), *command.argv],
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
