"""Flows in windows of moves: how much of a tensor each kernel of a window carries, in MiB.

Per gap and direction, one column per kernel of the window; together they carry what leaves after
the gap's first span, or what comes before its second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hmd.tensors.gap_windows import MoveWindow
from hmd.tensors.integer_program import IntegerProgram
from hmd.tensors.tensor_trace import Floats, Ints

Windows = tuple[tuple[MoveWindow, MoveWindow], ...]
"""The windows out of and back into the fastest tier of each gap."""


EARLY: Final = 1e-4
"""Cost of a MiB at the end of its window, in ms: of equal flows, the early ones are taken."""


@dataclass(frozen=True)
class WindowFlows:
    """Columns of the flows of all windows: those of window w are ``start[w]:start[w + 1]``.

    Windows are numbered by gap, out before back: w = 2 * gap + (0 or 1).
    """

    columns: Ints
    start: Ints

    def of(self, gap: int, *, inwards: bool) -> Ints:
        """Return the columns of one window, in the order of its kernels."""
        window = 2 * gap + inwards
        return self.columns[self.start[window] : self.start[window + 1]]

    def placed(self, windows: Windows, values: Floats) -> Windows:
        """Return the windows with the shares that a solution gives to their kernels."""
        return tuple(
            (
                _placed(out, values[self.of(gap, inwards=False)]),
                _placed(back, values[self.of(gap, inwards=True)]),
            )
            for gap, (out, back) in enumerate(windows)
        )


def add_window_flows(
    program: IntegerProgram, windows: Windows, size: Floats, ends: tuple[Ints, Ints, Ints]
) -> WindowFlows:
    """Add the flows of all windows to a program.

    ``size`` (G,) is in MiB. ``ends`` has the columns (G,) of the share that is fast before the gap,
    of the share that is fast after it, and of the share that stays.
    """
    before, after, stay = ends
    count = np.array([len(window.kernels) for pair in windows for window in pair], np.int64)
    both = np.repeat(size, 2)
    place = np.concatenate([np.arange(each) / each for each in count.tolist()])
    columns = program.add_columns(place * EARLY, np.repeat(both, count))
    zero = np.zeros(len(count))
    rows = program.add_rows(zero, zero)
    program.add_entries(np.repeat(rows, count), columns, 1.0)
    program.add_entries(rows, np.stack([before, after], axis=1).ravel(), -both)
    program.add_entries(rows, np.repeat(stay, 2), both)
    return WindowFlows(columns, np.concatenate([[0], np.cumsum(count)]))


def _placed(window: MoveWindow, carried: Floats) -> MoveWindow:
    total = float(carried.sum())
    return MoveWindow(window.kernels, carried / total) if total > 1e-9 else window
