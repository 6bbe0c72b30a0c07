# SPDX-License-Identifier: MIT
"""The testbed of the comparison: a booted machine with little noise and a fast node of any size.

The program runs on CPU 1, or with n threads on the first n odd CPUs, with a last-level cache that
nothing else uses, and with timer ticks, from which NUMA balancing scans a task's memory. Everything
else that can be moved runs on CPU 0 and allocates on the slow node. CPU 0 has a cache of its own as
on another socket, of the size of a real one: the program's cache is scaled to the programs, which
the working set of services is not. Other even CPUs share it and are idle.

Pages are 4 KiB: transparent huge pages are off, because 2 MiB of these programs stand for
gigabytes, but for systems whose names end with ``@thp``. Files that programs read are in the page
cache, on the slow node, before measurements. The fast node is full of the page cache of another
file when a program starts.

Continuous demotion: keeps kswapd awake on the fast node.

After sixteen failures on a node, kswapd is not woken there until something is reclaimed
(kswapd_failures, mm/vmscan.c). A node full of unmovable memory makes it fail; tiering then
promotes nothing, for lack of free pages. So, while a program runs with demotion enabled, a helper
process on the fast node has a few of its pages demoted every second (memory.reclaim,
Documentation/admin-guide/cgroup-v2.rst, Linux 5.19).

What the host's other work costs emulated CPUs: time in which their threads could not run.

The guest's clock is the host's, so that it runs on while QEMU's thread of a CPU waits for a CPU of
the host. Two causes are measured: the thread's wait in the run queues of the host's kernel (the
second field of /proc/PID/task/TID/schedstat, Documentation/scheduler/sched-stats.rst), and the
time that a hypervisor took from the host's CPUs (steal in proc_stat(5)), as a share of one CPU.
What shared caches and memory of the host cost is in neither.

Footprints of the suite's programs, from which the sizes of fast tiers follow.

A footprint is the peak resident set (VmHWM in proc_pid_status(5)) of one run on the host, which
takes a second or two. A server runs its load. The result is stored in a file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.compare.filled_node import FilledNode
from hmd.base.errors import HmdError, MissingError
from hmd.emulate.assets import WORKLOADS, compile_static
from hmd.emulate.demo.measure import (
    FAST_NODE,
    PROGRAM_CPU,
    SERVICE_CPU,
    SLOW_NODE,
    Meter,
    open_fast_node,
    service,
)
from hmd.emulate.preset import Preset, load, with_cpus, with_node_size
from hmd.emulate.recordings.recorder import READY_S, serve
from hmd.emulate.vm.boot import Machine
from hmd.emulate.vm.guest import BASE_ENVIRONMENT, Command
from hmd.linux.procfs import PROC, chosen

_STEAL = 8  # of the fields of the first line of /proc/stat

PRESET = "dram-pm"

DILATION = 50.0
"""Guest time over modelled time, at least: emulation of a program that mostly hits caches is
slower than that, and the guest's clock then runs ahead."""

FAST_NODE_BYTES = 256 << 20
"""Size of the fast node at boot: more than any program needs, and so small that zone reserves in
proportion to it are small compared with the reduced node."""

MEASURE = 5
"""Version of the measurement. A change to this file, the trial, the demotion or the fast node that
changes results increments it, which invalidates stored results."""

CACHES = 2
"""Last-level caches: one for the program, one for services."""

SERVICE_CACHE_BYTES = 28160 << 10
"""Size of the cache of services: 27.5 MiB, that of a socket with persistent memory (Intel Xeon Gold
6248, ark.intel.com). A daemon's working set of some megabytes does not fit 2 MiB, as programs have
it: its misses then take bandwidth of the slow node (docs/lab/2026-11-sampling.md)."""

STEP_NS = 2_000.0
"""By how much modelled time a thread's CPU may be ahead of another's: short compared with the time
between two barriers."""

FLUSH_US = 10_000
"""Interval of TLB flushes of the program's CPUs, in us of the guest's clock. QEMU's TLB keeps all
translations, so that the accessed bits that DAMON and the kernel's demotion rely on would be set
only once (docs/explanation/emulated-machine.md)."""

GROUP = "/programs"
"""The cgroup of the programs, by which services select them."""

PLACED = WORKLOADS / "placed.c"
_TIMEOUT_S = 900

_MOVE_KERNEL_THREADS = f"""
for each in /proc/[0-9]*; do
    [ -s $each/cmdline ] || taskset -p {1 << SERVICE_CPU:x} ${{each#/proc/}}
done >/dev/null 2>&1
true"""

_IN_GROUP = f'echo $$ > /sys/fs/cgroup{GROUP}/cgroup.procs && exec "$@"'
_PAGES = 8
_DEMOTION = "/sys/kernel/mm/numa/demotion_enabled"
_GROUP, _HELD = "/sys/fs/cgroup/demoted", "/run/held"

_BEGIN = f"""
echo +memory > /sys/fs/cgroup/cgroup.subtree_control
mkdir {_GROUP}
mkfifo {_HELD}"""

_GO_ON = f"""
echo $$ > {_GROUP}/cgroup.procs
while sleep 1; do
    "$@" > {_HELD} &
    read held < {_HELD} && echo 16K > {_GROUP}/memory.reclaim
    kill $!
done"""

_END = f"""
echo 1 > {_GROUP}/cgroup.kill
until rmdir {_GROUP} 2>/dev/null; do sleep 0.1; done
rm {_HELD}
echo -memory > /sys/fs/cgroup/cgroup.subtree_control"""

_END_S = 60
_LOOK_S = 0.002
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HostWait:
    """Seconds since the start of the thread and of the host."""

    queued_s: float
    stolen_s: float

    def since(self, earlier: HostWait) -> float:
        """Return the seconds that the thread lost from an earlier reading to this one."""
        return self.queued_s - earlier.queued_s + self.stolen_s - earlier.stolen_s


class HostContention:
    """Readings of emulated CPUs' threads, of which the mean counts."""

    def __init__(self, pid: int, vcpus: Sequence[int], proc: Path = PROC) -> None:
        """Find the threads of CPUs in a QEMU process; MissingError where it has none."""
        self._proc, tasks = proc, proc / str(pid) / "task"
        self._threads = [_thread_named(tasks, f"CPU {vcpu}/TCG") for vcpu in vcpus]

    def read(self) -> HostWait:
        """Return the waits so far; 0 s in queues where the kernel has no scheduler statistics."""
        files = [thread / "schedstat" for thread in self._threads]
        waits = [int(file.read_text().split()[1]) if file.exists() else 0 for file in files]
        waited_ns = sum(waits) / len(waits)
        cpus = (self._proc / "stat").read_text().split("\n", 1)[0].split()
        stolen_s = int(cpus[_STEAL]) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
        return HostWait(waited_ns * 1e-9, stolen_s)


def _thread_named(tasks: Path, name: str) -> Path:
    for task in tasks.iterdir():
        if (task / "comm").read_text().strip() == name:
            return task
    raise MissingError(f"QEMU has no thread {name!r}: this version gives its threads no names")


FLUSH_TLB = Path(__file__).parents[1] / "workloads/flush_tlb.c"


@dataclass(frozen=True, slots=True)
class Start:
    """The initial placement of pages: a mode of set_mempolicy(2) and its nodes.

    ``default`` is first touch: pages go to the fast node until it is full.
    """

    mode: str = "default"
    nodes: tuple[int, ...] = ()


FIRST_TOUCH = Start()
ON_FAST = Start("bind", (FAST_NODE,))
ON_SLOW = Start("bind", (SLOW_NODE,))


class Testbed:
    """A booted machine and its settings; the guest shares ``folder``, programs run on ``cpus``."""

    def __init__(
        self, machine: Machine, preset: Preset, fast_node: FilledNode, folder: Path, cpus: range
    ):
        self.machine, self.preset, self.folder = machine, preset, folder
        self.fast_node, self.meter = fast_node, Meter(machine, cpus)
        self.contention, self._cpus = HostContention(machine.pid, cpus), cpus

    @contextmanager
    def modelled(self) -> Iterator[None]:
        """Run modelled time; instrumented code stays slow, so services start before this."""
        shared = self.machine.shared
        shared.running = True
        try:
            if not shared.armed:
                self.sh("true")  # an event, for which the model waits where CPUs are idle
            self.machine.start_model()
            yield
        finally:
            self.machine.stop_model()

    def set(self, values: Mapping[str, str | int]) -> None:
        """Write files of the guest's /proc and /sys."""
        for path, value in values.items():
            self.sh(f"echo {value} > {path}")

    def get(self, paths: Sequence[str]) -> dict[str, str]:
        """Return the contents of files of the guest's /proc and /sys; of choices the one."""
        texts = {path: self.sh(f"cat {path}").strip() for path in paths}
        return {path: chosen(text) or text for path, text in texts.items()}

    @contextmanager
    def having(self, values: Mapping[str, str | int]) -> Iterator[None]:
        """Set values, and restore them at the end."""
        before = self.get(list(values))
        self.set(values)
        try:
            yield
        finally:
            self.set(before)

    def sh(self, script: str) -> str:
        """Run a shell script on the service CPU; returns its output, HmdError where it fails."""
        done = self.machine.run(service(["sh", "-c", script]), timeout=_TIMEOUT_S)
        if done.returncode:
            raise HmdError(f"in the guest: {script.strip()!r}: {done.stderr.strip()}")
        return done.stdout

    def vmstat(self) -> dict[str, int]:
        """Return the guest's /proc/vmstat."""
        lines = self.sh("cat /proc/vmstat").split("\n")
        return {name: int(count) for name, count in (line.split() for line in lines if line)}

    def forget_inodes(self) -> None:
        """Free the kernel's unused inodes and dentries, also on the fast node.

        Otherwise a system that moves pages into a full node makes the kernel reclaim them, and
        gets more fast memory than one that does not. Files stay in the page cache.
        """
        self.sh("echo 2 > /proc/sys/vm/drop_caches")

    def move_kernel_threads(self) -> None:
        """Move kernel threads off the program's CPUs, as far as their affinity allows."""
        self.sh(_MOVE_KERNEL_THREADS)

    @contextmanager
    def flushing(self) -> Iterator[None]:
        """Flush the TLBs of the program's CPUs every ``FLUSH_US``."""
        placed, flush, output = compile_static(PLACED), compile_static(FLUSH_TLB), bytearray()
        jobs = [
            self.machine.start(
                [str(placed), str(cpu), "bind", str(1 << SLOW_NODE), str(flush), str(FLUSH_US)],
                stdout=output.extend,
                stderr=output.extend,
            )
            for cpu in self._cpus
        ]
        try:
            yield
        finally:
            for job in jobs:
                job.kill()

    def execute(self, command: Command, start: Start) -> None:
        """Run a program alone on its CPUs; HmdError where its status or output is unexpected.

        The load of a server runs on the service CPU.
        """
        mask = sum(1 << node for node in start.nodes)
        cpus = f"{self._cpus[0]}-{self._cpus[-1]}:{self._cpus.step}"
        placed = [str(compile_static(PLACED)), cpus, start.mode, str(mask)]
        output, errors = bytearray(), bytearray()
        job = self.machine.start(
            ["sh", "-c", _IN_GROUP, "sh", *placed, *command.argv],
            cwd="/tmp",
            env=dict(command.env),
            stdout=output.extend,
            stderr=errors.extend,
        )
        try:
            if command.load:
                output.extend(serve(self.machine, command, service([]), _TIMEOUT_S))
            code = job.wait(_TIMEOUT_S)
        except HmdError:
            job.kill()
            raise
        except subprocess.TimeoutExpired:
            job.kill()
            raise HmdError(f"{command.argv[0]} did not end within {_TIMEOUT_S} s") from None
        found = (output + errors).decode(errors="replace")
        if code != command.exit_status or command.expect not in found:
            last = (errors.decode(errors="replace").strip() or "no message").splitlines()[-1]
            raise HmdError(f"{command.argv[0]} exited with {code} and did not do its work: {last}")


@contextmanager
def stage(
    commands: Sequence[Command],
    folder: Path,
    dilation: float = DILATION,
    machine: Preset | None = None,
) -> Iterator[Testbed]:
    """Boot the machine for programs of as many threads each, and run each once to read its files.

    ``machine`` replaces the preset. Raises ValueError where their threads differ.
    """
    cpus = _program_cpus(commands)
    preset = with_node_size(machine or load(PRESET), FAST_NODE, FAST_NODE_BYTES)
    if len(cpus) > 1:
        preset = with_cpus(preset, cpus.stop)
    caches = {"count": CACHES, "first_size": SERVICE_CACHE_BYTES}
    cache = preset.cache.model_copy(update=caches)
    preset = preset.model_copy(update={"cache": cache})
    folder.mkdir(parents=True, exist_ok=True)
    with (
        Machine(
            preset,
            share=[folder],
            dilation=dilation,
            append=_isolated(cpus),
            step_ns=STEP_NS if len(cpus) > 1 else 0,
        ) as booted,
        open_fast_node(booted, FAST_NODE, FilledNode) as fast_node,
    ):
        ready = Testbed(booted, preset, fast_node, folder, cpus)
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


def _program_cpus(commands: Sequence[Command]) -> range:
    """Return the CPUs of a program: every ``CACHES``-th, which share a cache."""
    threads = {command.threads for command in commands}
    if len(threads) > 1:
        raise ValueError(f"one boot has programs of as many threads: {sorted(threads)}")
    return range(PROGRAM_CPU, PROGRAM_CPU + CACHES * max(threads, default=1), CACHES)


def _isolated(cpus: range) -> tuple[str, ...]:
    listed = ",".join(map(str, cpus))
    return (f"isolcpus={listed}", f"rcu_nocbs={listed}")


HOLD_PAGES = Path(__file__).parents[1] / "workloads/hold_pages.c"


@contextmanager
def going_on(stage: Testbed) -> Iterator[None]:
    """Keep demotion active if it is enabled; raises HmdError where the guest refuses."""
    if stage.get([_DEMOTION])[_DEMOTION] != "true":
        yield
        return
    stage.sh(_BEGIN)
    held = (str(compile_static(HOLD_PAGES)), str(_PAGES))
    on_fast = (str(compile_static(PLACED)), str(SERVICE_CPU), "bind", str(1 << FAST_NODE), *held)
    said = bytearray()
    job = stage.machine.start(
        service(["sh", "-c", _GO_ON, "sh", *on_fast]), stdout=said.extend, stderr=said.extend
    )
    try:
        yield
    finally:
        stage.sh(_END)
        job.wait(_END_S)


def footprint_bytes(name: str, digest: str, prepare: Callable[[], Command], folder: Path) -> int:
    """Return a program's footprint; ``digest`` identifies all that its runs depend on.

    Raises HmdError where the program fails on the host.
    """
    path = folder / "footprints" / f"{name}-{digest}.json"
    if path.exists():
        return int(json.loads(path.read_text())["peak_bytes"])
    peak = _measured(prepare())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"peak_bytes": peak}))
    return peak


def _measured(command: Command) -> int:
    with subprocess.Popen(
        ["setarch", "--addr-no-randomize", *command.argv],
        cwd="/tmp",
        env=dict(command.env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        status, peak = Path(f"/proc/{process.pid}/status"), 0
        client = _load(command)
        while process.poll() is None:
            found = _PEAK.search(status.read_text())
            peak = int(found[1]) << 10 if found else peak  # a zombie has none
            time.sleep(_LOOK_S)
            if client is not None and client.poll():
                process.kill()
                raise HmdError(f"{command.load[0]} exited with {client.returncode} on the host")
    if process.returncode != command.exit_status:
        raise HmdError(f"{command.argv[0]} exited with {process.returncode} on the host")
    return peak


def _load(command: Command) -> subprocess.Popen[bytes] | None:
    """Start the load of a server that has been started; None for other programs."""
    if not command.load:
        return None
    give_up = time.monotonic() + READY_S
    while _run(command.ready).wait():
        if time.monotonic() > give_up:
            raise HmdError(f"{command.argv[0]} did not become ready within {READY_S:.0f} s")
        time.sleep(_LOOK_S)
    return _run(command.load)


def _run(words: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words, env=BASE_ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
