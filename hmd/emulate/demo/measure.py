# SPDX-License-Identifier: MIT
"""A run of the demonstration: its variant of placement, its fast memory, the plugin's counters.

The counters are read on the host while programs run in the guest.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from hmd.base.errors import HmdError
from hmd.base.units import HUGE_PAGE_BYTES
from hmd.emulate.assets import WORKLOADS, compile_static
from hmd.emulate.vm.boot import Machine
from hmd.emulate.vm.guest import GuestError, Job
from hmd.linux.node_memory import Watermark, reserve_bytes

FAST_NODE = 0
SLOW_NODE = 1
PROGRAM_CPU = 1
SERVICE_CPU = 0


class Variant(StrEnum):
    """A variant of a run."""

    ALL_FAST = "all_fast"
    ALL_SLOW = "all_slow"
    FIRST_TOUCH = "first_touch"
    HMD = "hmd"

    @property
    def fast_node_is_scarce(self) -> bool:
        """Whether the fast node is reduced to 1.1 hot sets."""
        return self in (Variant.FIRST_TOUCH, Variant.HMD)


def bound_to(variant: Variant, cpu: int) -> list[str]:
    """Return the command prefix that starts a program in this variant on a CPU.

    First touch and hmd have no memory policy: the kernel's first touch places pages.
    """
    words = ["numactl", f"--physcpubind={cpu}"]
    if variant is Variant.ALL_FAST:
        words.append(f"--membind={FAST_NODE}")
    elif variant is Variant.ALL_SLOW:
        words.append(f"--membind={SLOW_NODE}")
    return [*words, "--"]


def service(command: list[str], node: int = SLOW_NODE) -> list[str]:
    """Return a command that runs on the service CPU and allocates on a slow node."""
    return [
        "numactl",
        f"--physcpubind={SERVICE_CPU}",
        f"--membind={node}",
        "--",
        *command,
    ]


@dataclass(frozen=True, slots=True)
class Reading:
    """Modelled busy time, misses by node and instructions of the program's CPUs since the boot.

    Several CPUs are busy while at least one is. ``clock_s`` is the modelled time at which one of
    them was last busy, ``machine_s`` that of the machine; of a difference, both are the time from
    the earlier reading until then, halts included while another CPU of the machine was busy.
    """

    busy_s: float
    clock_s: float
    machine_s: float
    misses: tuple[int, ...]
    instructions: int

    def since(self, earlier: Reading) -> Reading:
        """Return the difference from an earlier reading."""
        return Reading(
            self.busy_s - earlier.busy_s,
            self.clock_s - earlier.machine_s,
            self.machine_s - earlier.machine_s,
            tuple(a - b for a, b in zip(self.misses, earlier.misses, strict=True)),
            self.instructions - earlier.instructions,
        )

    @property
    def asleep_s(self) -> float:
        """Of a difference: how long the CPUs halted, at a page that moved or for I/O."""
        return max(0.0, self.clock_s - self.busy_s)

    @property
    def fast_share(self) -> float:
        """Share of misses that the fast node served; 0 without misses."""
        return self.misses[FAST_NODE] / max(1, sum(self.misses))


class Meter:
    """The counters of a machine's CPUs, which are halted now, and control of its timing model."""

    def __init__(self, machine: Machine, cpus: Sequence[int] = (PROGRAM_CPU,)):
        self._shared, self._cpus = machine.shared, tuple(cpus)
        if len(self._cpus) > 1:
            self._shared.watch(*self._cpus)

    @contextmanager
    def dilated(self, factor: float) -> Iterator[None]:
        """Run the guest's clock ``factor`` times slower than modelled time."""
        was = self._shared.dilation
        self._set_dilation(factor)
        try:
            yield
        finally:
            self._set_dilation(was)

    def _set_dilation(self, factor: float) -> None:
        with self.paused():
            self._shared.dilation = factor

    def read(self) -> Reading:
        """Return the current counters; those of several CPUs while all are halted."""
        each = [self._shared.counters(cpu) for cpu in self._cpus]
        busy_ps = each[0].busy_ps if len(each) == 1 else self._shared.awake_ps
        nodes = zip(*(counters.nodes for counters in each), strict=True)
        return Reading(
            busy_ps * 1e-12,
            max(counters.clock_ps for counters in each) * 1e-12,
            self._shared.clock_ps * 1e-12,
            tuple(sum(node.load_misses + node.store_misses for node in same) for same in nodes),
            sum(counters.instructions for counters in each),
        )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the timing model for work that is not measured, which then runs at full speed."""
        was_running = self._shared.running
        self._shared.running = False
        try:
            yield
        finally:
            self._shared.running = was_running


# khugepaged raises min_free_kbytes to keep 2 MiB blocks free (set_recommended_min_free_kbytes), to
# 40 MiB of the fast node, which is more than the hot set.
MIN_FREE_KBYTES = 8192
NEAR_BYTES = 128 << 10
MAX_TRIES = 20
SETTLE_S = 0.3
ANSWER_S = 60.0
SOURCE = WORKLOADS / "set_aside.c"
_MEMINFO = re.compile(r"(\w+):\s+(\d+) kB")
_COUNT = "/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages"


F = TypeVar("F", bound="FastNode")


class FastNode:
    """A node of the guest with a limited amount of memory for programs.

    The rest is reserved as 2 MiB hugetlb pages (hugetlbpage.rst, the per-node nr_hugepages), and a
    remainder of less than 2 MiB in the buffer of a pipe (workloads/set_aside.c). No process maps
    that memory, and the kernel neither reclaims, demotes nor migrates it.
    """

    def __init__(self, machine: Machine, node: int, rest: _Rest):
        """Use ``open_fast_node``."""
        self._machine, self._node, self._rest = machine, node, rest
        self._meminfo_path = f"/sys/devices/system/node/node{node}/meminfo"

    def free_bytes(self) -> int:
        """Return MemFree of the node."""
        return self._meminfo()["MemFree"]

    def for_programs_bytes(self, mark: Watermark = Watermark.LOW) -> int:
        """Return the bytes that programs can allocate now: free memory beyond the zone reserves."""
        zoneinfo = self._read("/proc/zoneinfo").encode()
        return self.free_bytes() - reserve_bytes(zoneinfo, mark)[self._node]

    def leave(self, wanted_bytes: int, *, drop_caches: bool = True) -> int:
        """Reserve all of the node but ``wanted_bytes`` for a program; returns the bytes left.

        The zone reserves, which a program cannot allocate, are left in addition. Files in the page
        cache of the node are dropped first, with ``drop_caches``.
        """
        self.release()
        if drop_caches:
            self._machine.run(["sh", "-c", "echo 3 > /proc/sys/vm/drop_caches"], check=True)
        spare = self.for_programs_bytes() - wanted_bytes
        self._set_huge_pages(max(0, spare // HUGE_PAGE_BYTES - 1))
        # Reserving memory makes the kernel free other memory, some of it later.
        aside = 0
        for _ in range(MAX_TRIES):
            left = self.for_programs_bytes()
            if abs(left - wanted_bytes) <= NEAR_BYTES:
                return left
            aside = max(0, aside + left - wanted_bytes)
            self._rest.hold(aside)
            time.sleep(SETTLE_S)
        raise HmdError(
            f"node {self._node} of the guest has {left >> 10} KiB free where "
            f"{wanted_bytes >> 10} are wanted"
        )

    def release(self) -> None:
        """Free the memory that ``leave`` reserved."""
        self._rest.hold(0)
        self._set_huge_pages(0)

    def _set_huge_pages(self, pages: int) -> None:
        self._write(_COUNT.format(node=self._node), str(pages))

    def _meminfo(self) -> dict[str, int]:
        """Return the node's meminfo in bytes."""
        text = self._read(self._meminfo_path)
        return {name: int(size) << 10 for name, size in _MEMINFO.findall(text)}

    def _write(self, path: str, value: str) -> None:
        self._machine.run(["sh", "-c", f"echo {value} > {path}"], check=True)

    def _read(self, path: str) -> str:
        return self._machine.run(["cat", path], check=True).stdout


@contextmanager
def open_fast_node(machine: Machine, node: int, kind: type[F]) -> Iterator[F]:
    """Prepare a node for ``leave``: small zone reserves, small per-CPU page lists, no boost.

    The watermark boost would reserve more for some time after page blocks of one mobility type
    received pages of another.
    """
    settings = [
        f"vm.min_free_kbytes={MIN_FREE_KBYTES}",
        "vm.percpu_pagelist_high_fraction=1000",
        "vm.watermark_boost_factor=0",
    ]
    machine.run(["sysctl", "-qw", *settings], check=True)
    rest = _Rest(machine, node)
    try:
        yield kind(machine, node, rest)
    finally:
        rest.end()


class _Rest:
    """The running set_aside; its answers come on the agent's thread."""

    def __init__(self, machine: Machine, node: int):
        self._answered = threading.Event()
        self._wrong = bytearray()
        self._job: Job = machine.start(
            [str(compile_static(SOURCE)), str(node)],
            stdin=True,
            stdout=lambda _: self._answered.set(),
            stderr=self._wrong.extend,
        )

    def hold(self, wanted_bytes: int) -> None:
        """Reserve ``wanted_bytes``; raises HmdError where the node has less.

        Raises GuestError where the guest's kernel killed the holder: that needs another boot.
        """
        self._answered.clear()
        self._job.write(f"{wanted_bytes}\n".encode())
        give_up = time.monotonic() + ANSWER_S
        while not self._answered.wait(0.1):
            message = self._wrong.decode(errors="replace").strip()
            if self._job.poll() is not None and not message:
                raise GuestError("the guest's kernel killed the process that reserves fast memory")
            if message or time.monotonic() > give_up:
                why = message or "it does not answer"
                raise HmdError(f"cannot reserve {wanted_bytes >> 10} KiB of a node: {why}")

    def end(self) -> None:
        self._job.kill()
