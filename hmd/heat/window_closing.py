"""The end of sample windows: those with enough samples join the history of their process's pages.

Takes chunks, clocks and windows; gives what :mod:`hmd.heat.change_detection` leaves credible of the
history of pages and chunks, and adds windows to it (:mod:`hmd.heat.cooling`).
"""

from __future__ import annotations

import numpy as np

from hmd.heat.change_detection import believe
from hmd.heat.chunk_columns import KeptShares
from hmd.heat.chunks import Chunks
from hmd.heat.cooling import fold
from hmd.heat.sample_windows import Clocks
from hmd.heat.whole_chunks import believe_wholes, count_estimated, fold_wholes


def credible(chunks: Chunks, clocks: Clocks, surprise: float) -> KeptShares:
    """Return the shares of their history to keep of each page and each chunk.

    ``surprise`` is as in :class:`hmd.heat.heat_settings.HeatSettings`.
    """
    columns, bundle, used = chunks.columns, clocks.bundle, chunks.used
    kept = KeptShares(np.empty(columns.node.shape, np.float32), np.empty(used, np.float32))
    believe(columns, bundle, surprise, kept.pages)
    believe_wholes(used, columns, bundle, surprise, kept.chunks)
    return kept


def close_windows(chunks: Chunks, clocks: Clocks, surprise: float) -> int:
    """Add the windows that have enough samples to the history; return how many."""
    columns = chunks.columns
    resident = np.zeros(len(clocks.processes), np.float64)
    count_estimated(chunks.used, columns, resident)
    window, keep = clocks.due(resident)
    if not window.any():
        return 0
    kept = credible(chunks, clocks, surprise)
    fold_wholes(chunks.used, columns, clocks.bundle, window, keep, kept.chunks)
    fold(columns, clocks.bundle, window, keep, kept.pages)
    clocks.close(window, keep)
    return int(np.count_nonzero(window))
