"""With which heat rows compete, in bins: at the upper end of what samples allow, and at the lower.

Takes rates and supports as the table keeps them, gives bins for :mod:`hmd.heat.view.row_selection`.
Costs about 1 ns per row: the loop has no branch, so that it works on several rows at a time.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from hmd.heat.chunk_columns import TableRates
from hmd.heat.geometry import CHUNK_PAGES
from hmd.heat.kernels import Float32s, Int16Plane, Int16s, kernel
from hmd.heat.rates.poisson_bounds import ANSCOMBE
from hmd.heat.view.heat_bins import heat_bin

# In single precision, as rates are kept.
_ANSCOMBE: Final = np.float32(ANSCOMBE)
# Rows compete at 1.25 standard deviations, which is 0.625 of the transform. No setting changes it:
# it is wider than the default confidence of the policies, which is 1.2 (histogram) or 0.6 (benefit,
# learned).
_BOUND: Final = np.float32(0.625)
# Samples that a page needs before it may come.
_SUPPORT_LEAST: Final = np.float32(1.0)
_LEAST: Final = np.float32(1e-6)


class RowBins(NamedTuple):
    """Bins of pages, shape ``(details, 512)``, and of chunks that are one row, ``(chunks,)``.

    ``leaving`` is the bin at the upper end, 0 of a row without samples: it leaves first. ``coming``
    is that at the lower end, -1 of a row with too few samples to come.
    """

    page_leaving: Int16Plane
    page_coming: Int16Plane
    chunk_leaving: Int16s
    chunk_coming: Int16s


@kernel
def fill_bins(rate: Float32s, support: Float32s, leaving: Int16s, coming: Int16s) -> None:
    """Fill the bins of rows; all columns have shape ``(n,)``."""
    for row in range(len(rate)):
        samples = max(support[row], _LEAST)
        root = np.sqrt(samples + _ANSCOMBE)
        above, below = root + _BOUND, max(root - _BOUND, np.float32(0.0))
        each = rate[row] / samples
        leaving[row] = heat_bin(each * above * above) if support[row] > 0.0 else 0
        coming[row] = heat_bin(each * below * below) if support[row] >= _SUPPORT_LEAST else -1


def bins_of(rates: TableRates) -> RowBins:
    """Return the bins of all rows; those of absent pages and free rows mean nothing."""
    details, chunks = len(rates.page_rate), len(rates.chunk_rate)
    bins = RowBins(
        np.empty((details, CHUNK_PAGES), np.int16),
        np.empty((details, CHUNK_PAGES), np.int16),
        np.empty(chunks, np.int16),
        np.empty(chunks, np.int16),
    )
    fill_bins(
        rates.page_rate.reshape(-1),
        rates.page_support.reshape(-1),
        bins.page_leaving.reshape(-1),
        bins.page_coming.reshape(-1),
    )
    fill_bins(rates.chunk_rate, rates.chunk_support, bins.chunk_leaving, bins.chunk_coming)
    return bins
