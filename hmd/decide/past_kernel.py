"""The kernels of past heat: how hot pages have been, and which of them are cold now.

Take columns of a view and the peak of each page's rate. About 2 ns per row.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from hmd.heat.kernels import Float32s, Float64s, Int8s, Int32s, Int64s, kernel

# A page is cold now where its rate is below this part of its peak.
_COLD: Final = 1 / 32


class PastRows(NamedTuple):
    """Columns of the rows of a view; shape ``(n,)``. ``number`` is where the peak of a row is."""

    number: Int64s
    process: Int32s
    tier: Int8s
    rate: Float32s


@kernel
def keep_peaks(rows: PastRows, stay: float, peak: Float32s) -> None:
    """Have in ``peak`` the highest rate of each row, of which each call keeps the part ``stay``."""
    for row in range(len(rows.rate)):
        at = rows.number[row]
        peak[at] = max(np.float32(peak[at] * np.float32(stay)), rows.rate[row])


@kernel
def find_past(rows: PastRows, peak: Float32s, hot: Float64s, past: Int64s) -> int:
    """Fill ``past`` with the rows that were hot and are cold now; return how many.

    ``hot`` is the least rate of a page that is called hot, by process.
    """
    count = 0
    for row in range(len(rows.rate)):
        highest = peak[rows.number[row]]
        past[count] = row
        was_hot = highest > np.float32(hot[rows.process[row]])
        count += int(was_hot & (rows.rate[row] < highest * np.float32(_COLD)))
    return count


@kernel
def fill_least(
    rows: PastRows, slowest: int, part: Float64s, peak: Float32s, least: Float32s
) -> None:
    """Fill ``least`` with a part of the peak of each row on tiers faster than ``slowest``, else 0.

    ``part`` is by process.
    """
    for row in range(len(least)):
        kept = peak[rows.number[row]] * np.float32(part[rows.process[row]])
        least[row] = kept if 0 <= rows.tier[row] < slowest else np.float32(0.0)
