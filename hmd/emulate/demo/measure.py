# SPDX-License-Identifier: MIT
"""A run of the demonstration: its variant of placement, and the plugin's counters meanwhile.

The counters are read on the host while programs run in the guest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from hmd.emulate.vm.boot import Machine

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


def service(command: list[str]) -> list[str]:
    """Return a command that runs on the service CPU and allocates on the slow node."""
    return [
        "numactl",
        f"--physcpubind={SERVICE_CPU}",
        f"--membind={SLOW_NODE}",
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
