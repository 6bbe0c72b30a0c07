"""Phases of a program: which parts of memory a tick hits, and whether that was seen before.

Takes the samples of each tick by row, gives the number of the current phase. A tick's signature is
the share of its samples in each of 512 parts of the address space, as basic block vectors are
shares of code (Sherwood et al., "Automatically characterizing large scale program behavior",
ASPLOS 2002). A tick belongs to the phase whose mean signature is the most similar, or starts a new
one. Costs about 5 ns per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from hmd.heat.page_view import PageView

PHASES: Final = 4
"""Phases that are remembered; the one that was not seen for longest gives way."""

_PARTS: Final = 512
_BLOCK_SHIFT: Final = np.uint64(16)
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
# Cosine between two signatures from which on they are of one phase, less what chance takes off.
_ALIKE: Final = 0.6
# What a tick's signature adds to the mean of its phase, and the fewest samples that show a phase.
_GAIN: Final = 0.25
_SAMPLES_LEAST: Final = 32

Signature = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ProgramPhase:
    """The phase of a tick: its number, the ticks that it was seen for, whether it is ``new``.

    ``similarity`` is the cosine between the tick's signature and that of the tick before.
    """

    number: int
    ticks: int
    new: bool
    similarity: float


class PhaseMemory:
    """Finds the phases of all tracked processes together."""

    def __init__(self) -> None:
        self._means: list[Signature] = []
        self._ticks: list[int] = []
        self._seen: list[int] = []
        self._last: Signature = np.zeros(_PARTS)
        self._current = 0
        self._clock = 0

    def update(self, pages: PageView) -> ProgramPhase:
        """Return the phase of the tick of a view; call it once per tick."""
        self._clock += 1
        sampled = np.flatnonzero(pages.tick_samples)
        moved = pages.take(sampled)
        samples = pages.tick_samples[sampled].astype(np.float64)
        if float(samples.sum()) < _SAMPLES_LEAST:
            return self._stay()
        block = moved.address >> _BLOCK_SHIFT ^ moved.process.astype(np.uint64) << np.uint64(40)
        part = (block * _SPREAD >> np.uint64(55)).astype(np.int64)
        counts = np.bincount(part, samples, _PARTS).astype(np.float64)
        signature: Signature = counts / np.linalg.norm(counts)
        similarity, self._last = float(signature @ self._last), signature
        if self._means:
            alike = [float(mean @ signature / np.linalg.norm(mean)) for mean in self._means]
            best = int(np.argmax(alike))
            if alike[best] >= _ALIKE:
                self._means[best] += _GAIN * (signature - self._means[best])
                return self._enter(best, similarity, new=False)
        return self._enter(self._slot(signature), similarity, new=True)

    def _stay(self) -> ProgramPhase:
        """Return the current phase again: too few samples say otherwise."""
        if not self._means:
            return ProgramPhase(0, 0, False, 1.0)
        return self._enter(self._current, 1.0, new=False)

    def _slot(self, signature: Signature) -> int:
        """Return the number of a new phase."""
        if len(self._means) < PHASES:
            self._means.append(signature)
            self._ticks.append(0)
            self._seen.append(self._clock)
            return len(self._means) - 1
        oldest = int(np.argmin(self._seen))
        self._means[oldest], self._ticks[oldest] = signature, 0
        return oldest

    def _enter(self, number: int, similarity: float, *, new: bool) -> ProgramPhase:
        self._current = number
        self._ticks[number] += 1
        self._seen[number] = self._clock
        return ProgramPhase(number, self._ticks[number], new, similarity)
