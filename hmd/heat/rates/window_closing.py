"""The end of sample windows: those with enough samples join the history of their process's pages.

Takes chunks, clocks and windows; gives what :mod:`hmd.heat.rates.change_detection` leaves credible
of the history of pages and chunks, and adds windows to it (:mod:`hmd.heat.rates.cooling`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hmd.heat.chunks import Chunks
from hmd.heat.rates.change_detection import fill_credible
from hmd.heat.rates.cooling import fold
from hmd.heat.rates.sample_windows import Clocks
from hmd.heat.whole_chunks import count_estimated, fold_wholes


def credible(chunks: Chunks, clocks: Clocks, change_threshold: float) -> npt.NDArray[np.float32]:
    """Return the share of its history to keep of each page in detail, shape ``(details, 512)``.

    ``change_threshold`` is as in :class:`hmd.heat.heat_settings.HeatSettings`.
    """
    kept = np.empty(chunks.columns.node.shape, np.float32)
    fill_credible(chunks.columns, clocks.bundle, change_threshold, kept)
    return kept


def close_windows(chunks: Chunks, clocks: Clocks, change_threshold: float) -> int:
    """Add the windows that have enough samples to the history; return how many."""
    columns = chunks.columns
    resident = np.zeros(len(clocks.processes), np.float64)
    count_estimated(chunks.used, columns, resident)
    window, keep = clocks.due(resident)
    if not window.any():
        return 0
    fold_wholes(chunks.used, columns, clocks.bundle, window, keep, change_threshold)
    fold(columns, clocks.bundle, window, keep, credible(chunks, clocks, change_threshold))
    clocks.close(window, keep)
    return int(np.count_nonzero(window))
