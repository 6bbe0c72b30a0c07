"""The machine that programs are compared in: booted, quiet, with a fast node of any size.

The program has CPU 1 and a last-level cache for itself, with its timer's ticks (NUMA balancing
looks at a task's memory from them), and all else that can be moved runs on CPU 0, which has a cache
of its own as on another socket or core complex, and out of the fast node: the modelled cache is as
small as the programs are, and what services do between two ticks is not. Pages are
4 KiB: transparent huge pages are off for every system alike, since 2 MiB of these programs are
what gigabytes are of those that they stand for. Files that programs read are in the page cache,
on the slow node, before anything is measured.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hmd.emulate.assets import WORKLOADS, compile_static
from hmd.emulate.boot import Machine
from hmd.emulate.demo.fast_node import FastNode, open_fast_node
from hmd.emulate.demo.meter import Meter
from hmd.emulate.demo.variants import FAST_NODE, PROGRAM_CPU, SERVICE_CPU, SLOW_NODE, service
from hmd.emulate.guest_command import Command
from hmd.emulate.preset import Preset, load
from hmd.errors import HmdError

PRESET = "dram-pm"
DILATION = 50.0
"""Guest time over modelled time, at least: emulating a program that mostly hits caches takes more
than that, and then the guest's clock runs ahead."""

FAST_NODE_BYTES = 256 << 20
"""Of the booted fast node, before it is cut: more than any program takes, and little enough that
what the kernel keeps back in proportion to it is small beside a cut node."""

MEASURE = 3
"""The way of measuring, by number: whoever changes what a case gives raises it, in this file, the
trial, the demotion or the fast node, and no result from before serves any more."""

CACHES = 2
"""Last-level caches: the program's and the services'."""

FLUSH_US = 10_000
"""By the guest's clock, how often the program's CPU forgets its translations: QEMU's TLB would keep
all of them, so that accessed bits, by which DAMON and the kernel's demotion tell hot pages, were
set once and never again (docs/explanation/emulated-machine.md)."""

GROUP = "/programs"
"""The cgroup that programs run in, by which services find them."""

PLACED = WORKLOADS / "placed.c"
FLUSH_TLB = Path(__file__).parents[1] / "workloads/flush_tlb.c"
_TIMEOUT_S = 900
_BOOT = (f"isolcpus={PROGRAM_CPU}", f"rcu_nocbs={PROGRAM_CPU}")
_MOVE_KERNEL_THREADS = f"""
for each in /proc/[0-9]*; do
    [ -s $each/cmdline ] || taskset -p {1 << SERVICE_CPU:x} ${{each#/proc/}}
done >/dev/null 2>&1
true"""
_IN_GROUP = f'echo $$ > /sys/fs/cgroup{GROUP}/cgroup.procs && exec "$@"'


@dataclass(frozen=True, slots=True)
class Start:
    """Where a program's pages start: a mode of set_mempolicy(2) and its nodes.

    ``default`` is no policy: a page goes to the fast node until that is full.
    """

    mode: str = "default"
    nodes: tuple[int, ...] = ()


FIRST_TOUCH = Start()
ON_FAST = Start("bind", (FAST_NODE,))
ON_SLOW = Start("bind", (SLOW_NODE,))


class Testbed:
    """A booted machine and what is done to it; ``folder`` is shared with it."""

    def __init__(self, machine: Machine, preset: Preset, fast_node: FastNode, folder: Path):
        self.machine, self.preset, self.folder = machine, preset, folder
        self.fast_node, self.meter = fast_node, Meter(machine)

    @contextmanager
    def modelled(self) -> Iterator[None]:
        """Let modelled time run; not before services have started, which it makes slow for good."""
        shared = self.machine.shared
        shared.running = True
        try:
            if not shared.armed:
                self.sh("true")  # where CPUs are idle, the model waits for an event
            self.machine.start_model()
            yield
        finally:
            self.machine.stop_model()

    def set(self, values: Mapping[str, str | int]) -> None:
        """Write files of the guest's /proc and /sys."""
        for path, value in values.items():
            self.sh(f"echo {value} > {path}")

    def get(self, paths: Sequence[str]) -> dict[str, str]:
        """Return what files of the guest's /proc and /sys hold."""
        return {path: self.sh(f"cat {path}").strip() for path in paths}

    @contextmanager
    def having(self, values: Mapping[str, str | int]) -> Iterator[None]:
        """Set values, and set them back at the end."""
        before = self.get(list(values))
        self.set(values)
        try:
            yield
        finally:
            self.set(before)

    def sh(self, script: str) -> str:
        """Run a shell's script beside the program; returns its output, HmdError where it fails."""
        done = self.machine.run(service(["sh", "-c", script]), timeout=_TIMEOUT_S)
        if done.returncode:
            raise HmdError(f"in the guest: {script.strip()!r}: {done.stderr.strip()}")
        return done.stdout

    def vmstat(self) -> dict[str, int]:
        """Return the guest's /proc/vmstat."""
        lines = self.sh("cat /proc/vmstat").split("\n")
        return {name: int(count) for name, count in (line.split() for line in lines if line)}

    def forget_inodes(self) -> None:
        """Let the kernel give up what it keeps of unused inodes, on the fast node too.

        Else who moves pages into a full node has the kernel reclaim that, and gets more fast
        memory than who does not. Files stay in the page cache.
        """
        self.sh("echo 2 > /proc/sys/vm/drop_caches")

    def move_kernel_threads(self) -> None:
        """Keep what the kernel does in threads off the program's CPU, where it lets us."""
        self.sh(_MOVE_KERNEL_THREADS)

    @contextmanager
    def flushing(self) -> Iterator[None]:
        """Let the program's CPU forget translations every ``FLUSH_US``."""
        on_cpu = [str(compile_static(PLACED)), str(PROGRAM_CPU), "bind", str(1 << SLOW_NODE)]
        flush, said = str(compile_static(FLUSH_TLB)), bytearray()
        job = self.machine.start(
            [*on_cpu, flush, str(FLUSH_US)], stdout=said.extend, stderr=said.extend
        )
        try:
            yield
        finally:
            job.kill()

    def execute(self, command: Command, start: Start) -> None:
        """Run a program alone on its CPU; raises HmdError where it does not do its work."""
        mask = sum(1 << node for node in start.nodes)
        placed = [str(compile_static(PLACED)), str(PROGRAM_CPU), start.mode, str(mask)]
        said, wrong = bytearray(), bytearray()
        job = self.machine.start(
            ["sh", "-c", _IN_GROUP, "sh", *placed, *command.argv],
            cwd="/tmp",
            env=dict(command.env),
            stdout=said.extend,
            stderr=wrong.extend,
        )
        try:
            code = job.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            job.kill()
            raise HmdError(f"{command.argv[0]} did not end within {_TIMEOUT_S} s") from None
        found = (said + wrong).decode(errors="replace")
        if code != command.exit_status or command.expect not in found:
            last = (wrong.decode(errors="replace").strip() or "it said nothing").splitlines()[-1]
            raise HmdError(f"{command.argv[0]} exited with {code}, its work not done: {last}")


@contextmanager
def stage(
    commands: Sequence[Command], folder: Path, dilation: float = DILATION
) -> Iterator[Testbed]:
    """Boot the machine for these programs; their files are read, and the model is ready."""
    preset = _with_fast_node(load(PRESET), FAST_NODE_BYTES)
    cache = preset.cache.model_copy(update={"count": CACHES})
    preset = preset.model_copy(update={"cache": cache})
    folder.mkdir(parents=True, exist_ok=True)
    with (
        Machine(preset, share=[folder], dilation=dilation, append=_BOOT) as machine,
        open_fast_node(machine, FAST_NODE) as fast_node,
    ):
        ready = Testbed(machine, preset, fast_node, folder)
        ready.sh(f"mkdir -p /sys/fs/cgroup{GROUP}")
        ready.set(
            {
                "/sys/kernel/mm/transparent_hugepage/enabled": "never",
                "/sys/devices/virtual/workqueue/cpumask": 1 << SERVICE_CPU,
                "/proc/sys/vm/drop_caches": 3,
            }
        )
        for command in commands:
            ready.execute(command, ON_SLOW)
        ready.move_kernel_threads()
        with ready.flushing():
            yield ready


def _with_fast_node(preset: Preset, size: int) -> Preset:
    nodes = list(preset.nodes)
    nodes[FAST_NODE] = nodes[FAST_NODE].model_copy(update={"size": size})
    return preset.model_copy(update={"nodes": tuple(nodes)})
