"""Microbenchmarks of a running emulated machine: workloads/membench.c, timed by both clocks.

Takes a machine and a preset; gives nanoseconds per line on each CPU, by the modelled clock and by
the guest's, and what the plugin counted meanwhile. Calibration and tests compare them with targets.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hmd.emulate.assets import WORKLOADS
from hmd.emulate.c_compiler import compile_static
from hmd.emulate.preset import Preset
from hmd.emulate.virtual_machine.boot import Machine
from hmd.errors import HmdError

ATTEMPTS = 5
SLIP = 1.05
"""Largest accepted ratio of guest time to modelled time, or of modelled to guest time, in one run.

A run beyond it is repeated; the run with the least slip counts. The guest's clock slips where the
host is too busy to emulate in time, modelled time where one CPU waits for another to catch up."""

_CHASE_NS, _OTHERS_NS = 20_000_000, 5_000_000
"""Modelled time of a run. A chase is timed in windows of 0.4 ms, of which each is off by up to the
40 us that the reorder window holds: 12 windows scatter by 3 %, 50 by 0.3 %."""
_CHASES = ("chase", "walk", "loaded")
_SOURCE = WORKLOADS / "membench.c"
_INCLUDES = tuple(f"-I{Path(__file__).with_name(name)}" for name in ("plugin", "timing"))


@dataclass(frozen=True, slots=True)
class Timing:
    """Nanoseconds per line on each CPU: modelled, and by the guest's clock over the dilation.

    ``written_bytes`` are the bytes that the node's media wrote per line moved.
    """

    modelled_ns: tuple[float, ...]
    guest_ns: tuple[float, ...]
    written_bytes: float

    @property
    def slip(self) -> float:
        """Largest ratio between the two clocks over the CPUs.

        Infinite where a CPU made no progress while the first CPU finished its work.
        """
        pairs = zip(self.guest_ns, self.modelled_ns, strict=True)
        return max(max(a / b, b / a) if a and b else math.inf for a, b in pairs)


class Bench:
    """The microbenchmarks in a running machine, on these CPUs of it (``0-1``)."""

    def __init__(self, machine: Machine, preset: Preset, cpus: str):
        self.preset = preset
        self._cpus = cpus
        self._machine = machine
        self._dilation = machine.shared.dilation
        self._program = str(compile_static(_SOURCE, _INCLUDES))
        find = "for d in /sys/bus/pci/devices/*; do grep -q 0x1110 $d/device && echo $d; done"
        self._device = machine.run(["sh", "-c", find], timeout=60).stdout.split()[0]

    def run(self, mode: str, node: int, line_ns: float, filler: int = 0) -> Timing:
        """Run one mode for some milliseconds of modelled time, at about ``line_ns`` per line."""
        modelled_ns = _CHASE_NS if mode in _CHASES else _OTHERS_NS
        lines = max(4096, int(modelled_ns / line_ns))
        arguments = [mode, str(node), str(lines), str(filler)]
        best = self._once(node, arguments)
        for _ in range(ATTEMPTS - 1):
            if best.slip <= SLIP:
                break
            best = min(best, self._once(node, arguments), key=lambda timing: timing.slip)
        if best.slip == math.inf:
            raise HmdError("the host is too busy to calibrate: a CPU of the guest made no progress")
        return best

    def once(self, mode: str, node: int, lines: int) -> None:
        """Run one mode for so many lines, once."""
        self._once(node, [mode, str(node), str(lines), "0"])

    @contextmanager
    def sampled(self, period: int) -> Iterator[None]:
        """Sample one in ``period`` load misses meanwhile."""
        self._machine.shared.sample(period, 0, 0)
        try:
            yield
        finally:
            self._machine.shared.stop_sampling()

    def shootdowns(self) -> tuple[float, float]:
        """Return how many TLB shootdowns there were so far, and what CPUs were charged in all, ns.

        The number is the guest kernel's own, of shootdowns received, over the other CPUs of the
        benchmark.
        """
        shared = self._machine.shared
        lines = self._machine.run(["cat", "/proc/interrupts"], check=True).stdout.splitlines()
        (row,) = (line.split() for line in lines if line.strip().startswith("TLB:"))
        received = sum(int(word) for word in row[1:] if word.isdigit())
        charged_ps = sum(shared.counters(cpu).shootdown_ps for cpu in range(shared.vcpus))
        return received / max(1, self.preset.cpus - 1), charged_ps / 1000

    def _traffic(self, node: int) -> tuple[int, int]:
        """Return lines read from a node, and bytes that its media wrote, since the start."""
        shared = self._machine.shared
        counters = [shared.counters(cpu).nodes[node] for cpu in range(shared.vcpus)]
        lines = sum(c.load_misses + c.store_misses + c.prefetched_lines for c in counters)
        return lines, sum(c.write_bytes for c in counters)

    def _once(self, node: int, arguments: list[str]) -> Timing:
        argv = [self._program, f"{self._device}/resource2", self._cpus, *arguments]
        lines, written = self._traffic(node)
        done = self._machine.run(argv, timeout=300)
        if done.returncode != 0:
            raise HmdError(f"membench {' '.join(arguments)}: {done.stderr.strip() or 'failed'}")
        cpus = json.loads(done.stdout)["cpus"]
        lines_after, written_after = self._traffic(node)
        return Timing(
            tuple(cpu["modelled_ns"] for cpu in cpus),
            tuple(cpu["guest_ns"] / self._dilation for cpu in cpus),
            (written_after - written) / (lines_after - lines),
        )
