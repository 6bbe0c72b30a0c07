"""The plugin's counters, read on the host while programs run in the guest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hmd.emulate.boot import Machine
from hmd.emulate.demo.variants import FAST_NODE, PROGRAM_CPU


@dataclass(frozen=True, slots=True)
class Reading:
    """Modelled busy time, misses by node and instructions of the program's CPU since the boot."""

    busy_s: float
    misses: tuple[int, ...]
    instructions: int

    def since(self, earlier: Reading) -> Reading:
        """Return the difference from an earlier reading."""
        return Reading(
            self.busy_s - earlier.busy_s,
            tuple(a - b for a, b in zip(self.misses, earlier.misses, strict=True)),
            self.instructions - earlier.instructions,
        )

    @property
    def fast_share(self) -> float:
        """Share of misses that the fast node served; 0 without misses."""
        return self.misses[FAST_NODE] / max(1, sum(self.misses))


class Meter:
    """The counters of a machine, and control of its timing model."""

    def __init__(self, machine: Machine):
        self._shared = machine.shared

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
        """Return the current counters."""
        counters = self._shared.counters(PROGRAM_CPU)
        return Reading(
            counters.busy_ps * 1e-12,
            tuple(node.load_misses + node.store_misses for node in counters.nodes),
            counters.instructions,
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
