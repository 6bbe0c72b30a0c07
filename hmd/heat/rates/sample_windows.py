"""Sample windows: each process's clock of samples, its open window and its access rate.

All weights are in accesses: samples times their period, times the weight of a store. The rate of a
page is its share of the accesses of its process, times the accesses per second of the process. So
an idle process keeps the order of its pages, while they lose against those of busy processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.heat.chunk_columns import WindowClocks
from hmd.heat.heat_settings import HeatSettings
from hmd.machine.process_id import ProcessId

WEIGHT_OVER_MEAN: Final = 8.0
"""Bound of a sample's weight over the mean weight of its process's samples (winsorized samples)."""

WEIGHED_SAMPLES: Final = 64
"""Samples of a process after which their mean weight is known well enough for that bound."""

UNIT_OVER_WINDOW: Final = 2.0
"""Bound of a history's weight per sample over that of a window that is added to it."""

Weights: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Columns:
    """Sums per process, shape ``(processes,)``; see :class:`Clocks` for the first three.

    ``samples`` is the number in the open window, ``window_squares`` the sum of the squares of their
    weights, ``window_unbounded`` that of the weights without bound; ``counted``, ``weights``,
    ``squares`` and ``unbounded`` are the cooled number of samples and such sums, with the open
    window.
    """

    clock: Weights
    window: Weights
    rate: Weights
    samples: Weights
    window_squares: Weights
    counted: Weights
    weights: Weights
    squares: Weights
    unbounded: Weights
    window_unbounded: Weights

    @classmethod
    def zeros(cls, processes: int) -> _Columns:
        """Return columns of processes that were never sampled."""
        return cls(*(np.zeros(processes) for _ in fields(cls)))


class Clocks:
    """Clocks of the tracked processes; columns have shape ``(processes,)``.

    ``clock`` is the cooled weight of all closed windows, ``window`` the weight of the open one,
    ``rate`` the accesses per second, averaged with a half-life of a tick, ``unit`` the weight of
    one sample for the purpose of noise (0 before the first). ``tick`` counts updates.
    """

    def __init__(self, settings: HeatSettings) -> None:
        self._settings = settings
        self.tick = 0
        self.processes: tuple[ProcessId, ...] = ()
        self._columns = _Columns.zeros(0)

    @property
    def clock(self) -> Weights:
        """Cooled weight of all closed windows."""
        return self._columns.clock

    @property
    def window(self) -> Weights:
        """Weight of the open window."""
        return self._columns.window

    @property
    def rate(self) -> Weights:
        """Accesses per second."""
        return self._columns.rate

    @property
    def unit(self) -> Weights:
        """Weight of one sample: of equal samples that have the same total and variance."""
        weights, squares = self._columns.weights, self._columns.squares
        unit: Weights = np.divide(squares, weights, out=np.zeros_like(weights), where=weights > 0)
        return unit

    @property
    def weight_most(self) -> Weights:
        """The most that a sample may weigh; infinite before a process has ``WEIGHED_SAMPLES``.

        A sample of a rare kind stands for many accesses: a store for 64 times as many as a load. A
        few of them would make ``unit``, and with it the noise of all pages, several times larger.
        Where they are not few, the mean weight is high, and the bound with it: the mean is of
        weights without bound, or each bounded sample would lower the bound of the next.
        """
        counted, weights = self._columns.counted, self._columns.unbounded
        most = np.full(len(counted), np.inf)
        np.divide(WEIGHT_OVER_MEAN * weights, counted, out=most, where=counted >= WEIGHED_SAMPLES)
        return most

    @property
    def bundle(self) -> WindowClocks:
        """The columns as kernels take them."""
        return WindowClocks(self.clock, self.window, self.unit)

    def track(self, processes: Sequence[ProcessId]) -> npt.NDArray[np.int32]:
        """Track these processes; returns the new slot of each old one, -1 for those not kept."""
        if len(set(processes)) != len(processes):
            raise ValueError("a process is tracked twice")
        slots = {process: slot for slot, process in enumerate(processes)}
        moved = np.array([slots.get(p, -1) for p in self.processes], np.int32)
        columns = _Columns.zeros(len(processes))
        for field in fields(_Columns):
            kept = getattr(self._columns, field.name)[moved >= 0]
            getattr(columns, field.name)[moved[moved >= 0]] = kept
        self._columns = columns
        self.processes = tuple(processes)
        return moved

    def count(self, sums: Weights, elapsed_s: float) -> None:
        """Count a tick: samples per process, sums of their weights and of the squares."""
        samples, weights, squares, unbounded = sums.T
        known, rate = self.clock + self.window > 0, weights / elapsed_s
        self.rate[:] = np.where(known, (self.rate + rate) / 2, rate)
        self.window[:] += weights
        self._columns.samples[:] += samples
        self._columns.window_squares[:] += squares
        self._columns.counted[:] += samples
        self._columns.weights[:] += weights
        self._columns.squares[:] += squares
        self._columns.unbounded[:] += unbounded
        self._columns.window_unbounded[:] += unbounded
        self.tick += 1

    def discount(self, part: Weights) -> None:
        """Multiply the weight of all samples so far by ``part``, shape ``(processes,)``."""
        for name in ("clock", "window", "samples", "window_squares", "window_unbounded"):
            getattr(self._columns, name)[:] *= part

    def due(self, resident: Weights) -> tuple[Weights, Weights]:
        """Return the weight of the windows to close, 0 for others, and the history that is kept.

        ``resident`` is the number of resident pages of each process.
        """
        settings, samples = self._settings, self._columns.samples
        least = np.maximum(resident / settings.window_pages_per_sample, settings.window_samples_min)
        window = np.where(samples >= least, self.window, 0.0)
        if settings.cooling_samples is None:
            halving = np.maximum(
                settings.cooling_samples_per_page * resident,
                settings.cooling_samples_per_page * settings.window_samples_min,
            )
        else:
            halving = np.full(len(resident), float(settings.cooling_samples))
        return window, np.exp2(-samples / halving) * self._comparable(window)

    def _comparable(self, window: Weights) -> Weights:
        """Return the share of its history's weight that each process keeps for its window's sake.

        Where the sampling period has become shorter, a sample of the history weighs many of the
        window: a few of the first would outweigh all that come later, and ``unit`` would show them
        as noise. History weighs as much as its samples do in units of ``UNIT_OVER_WINDOW`` times
        the window's, as estimates of different variance are combined.
        """
        columns = self._columns
        past, squares = columns.weights - window, columns.squares - columns.window_squares
        known = (window > 0) & (past > 0) & (squares > 0)
        share = np.ones_like(window)
        most = UNIT_OVER_WINDOW * columns.window_squares * past
        np.divide(most, window * squares, out=share, where=known)
        return np.minimum(share, 1.0)

    def close(self, window: Weights, keep: Weights) -> None:
        """Close the windows that :meth:`due` returned, once the table has added them to heat."""
        closed, columns = window > 0, self._columns
        share = self._comparable(window)

        def fold(past: Weights, new: Weights, kept: Weights) -> Weights:
            return (past * kept + new)[closed]

        self.clock[closed] = fold(self.clock, window, keep)
        for column, new, kept in (
            (columns.counted, columns.samples, keep / share),
            (columns.weights, window, keep),
            (columns.unbounded, columns.window_unbounded, keep),
            (columns.squares, columns.window_squares, keep * share),
        ):
            column[closed] = fold(column - new, new, kept)
        columns.samples[closed] = 0.0
        columns.window_squares[closed] = 0.0
        columns.window_unbounded[closed] = 0.0
        self.window[closed] = 0.0
