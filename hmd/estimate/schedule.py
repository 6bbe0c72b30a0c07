"""Price of a schedule of migrations: pages, tiers and times.

Takes a model, the layout at the start and moves in order of time; returns the run's windows with
the cost of the moves. A page's accesses in the window of its move are divided by the time of the
move. A window's time depends on the moves in it and vice versa, so both are iterated until they
agree to 0.01 % of the runtime: usually three or four times, each at the cost of a layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.estimate.layout import Layout
from hmd.estimate.layout_estimate import Estimate
from hmd.estimate.overlap import CLASSES
from hmd.estimate.runtime_model import RuntimeModel, SlowMass

MOVE_NS = 2000.0
"""Time of a 4 KiB page's move, in ns, during which the program waits. Published figures are 1 to
12 us (HeMem, SOSP '21; Nimble, ASPLOS '19); a copy at 4 GB/s is 1 us, unmapping and the rest
about as long."""

_ROUNDS = 12
_NEAR = 1e-4


@dataclass(frozen=True, slots=True)
class Schedule:
    """Moves in order of time, columns of shape ``(moves,)``.

    ``time_ns`` is from the program's start, ``page`` indexes the model's pages, ``fast`` is the
    destination: the fast tier (True) or the slow one.
    """

    time_ns: npt.NDArray[np.float64]
    page: npt.NDArray[np.int32]
    fast: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if the columns differ in length or are not in order."""
        if not len(self.time_ns) == len(self.page) == len(self.fast):
            raise ValueError("a schedule's columns must have the same length")
        if np.any(self.time_ns[1:] < self.time_ns[:-1]):
            raise ValueError("a schedule's moves must be in order of time")

    def __len__(self) -> int:
        """Return the number of moves."""
        return len(self.time_ns)


@dataclass(frozen=True, slots=True)
class PricedSchedule:
    """The run, its moves included: ``moved`` pages changed tier, which took ``moving_ns``."""

    estimate: Estimate
    moved: int
    moving_ns: float


def price_schedule(
    model: RuntimeModel, start: Layout, schedule: Schedule, move_ns: float = MOVE_NS
) -> PricedSchedule:
    """Return the run that starts with pages placed as ``start`` says and then moves them.

    A move of a page to where it already is costs nothing. ``start`` may have more pages than the
    model: those were never sampled, so their moves only cost. Raises ValueError for a
    move of a page beyond ``start``.
    """
    if len(schedule) and int(schedule.page.max()) >= len(start):
        raise ValueError(f"page {schedule.page.max()}: the layout has {len(start)}")
    assumed_ns = model.estimate(start).window_ns
    before = np.zeros(model.windows)
    for _ in range(_ROUNDS):
        mass, moves = _played(model, start, schedule, assumed_ns)
        window_ns = model.price(mass).window_ns + moves * move_ns
        change = window_ns - assumed_ns
        if np.abs(change).sum() <= _NEAR * window_ns.sum():
            break
        # An oscillating window is damped: half of each step.
        assumed_ns = assumed_ns + np.where(change * before < 0, change / 2, change)
        before = change
    moved = int(moves.sum())
    return PricedSchedule(Estimate(float(window_ns.sum()), window_ns), moved, moved * move_ns)


def _played(
    model: RuntimeModel,
    start: Layout,
    schedule: Schedule,
    window_ns: npt.NDArray[np.float64],
) -> tuple[SlowMass, npt.NDArray[np.float64]]:
    """Return the slow accesses of each window as pages move, and the moves in each."""
    from hmd.estimate.slow_accesses import add_slow

    ends = np.cumsum(window_ns)
    # Moves after the end have no effect.
    of_move = np.searchsorted(ends, schedule.time_ns, side="right")
    cells, moves = np.zeros(len(model.total)), np.zeros(model.windows)
    pairs, loads = model.pairs, model.windows * CLASSES
    of_pair = np.searchsorted(pairs.window, np.arange(model.windows + 1))
    pair_a, pair_b = np.empty(len(pairs), np.float32), np.empty(len(pairs), np.float32)
    slow = (~start).astype(np.float32)
    for window in range(model.windows):
        low, high = np.searchsorted(of_move, [window, window + 1])
        share = slow
        if high > low:
            left = (ends[window] - schedule.time_ns[low:high]) / max(window_ns[window], 1e-9)
            slow, share, moves[window] = _moved(
                slow, schedule.page[low:high], schedule.fast[low:high], np.clip(left, 0.0, 1.0)
            )
        cell = window * CLASSES
        beyond = [loads + window + i * model.windows for i in range(3)]
        for first, last in [(cell, cell + CLASSES), *((c, c + 1) for c in beyond)]:
            add_slow(model.page, model.accesses, model.begin, share, first, last, cells)
        near = slice(of_pair[window], of_pair[window + 1])
        pair_a[near], pair_b[near] = share[pairs.page_a[near]], share[pairs.page_b[near]]
    return SlowMass(cells, pair_a, pair_b), moves


def _moved(
    slow: npt.NDArray[np.float32],
    page: npt.NDArray[np.int32],
    fast: npt.NDArray[np.bool_],
    left: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], int]:
    """Return the slow pages after a window's moves, their slow share of it, and the moved pages.

    ``left`` is the share of the window after each move.
    """
    after, share, count = slow.copy(), slow.copy(), 0
    for number, to_fast, rest in zip(page.tolist(), fast.tolist(), left.tolist(), strict=True):
        wanted = 0.0 if to_fast else 1.0
        if after[number] != wanted:
            share[number] += (wanted - after[number]) * rest
            after[number] = wanted
            count += 1
    return after, share, count
