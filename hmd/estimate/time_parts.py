"""What the time that a window takes longer in slow memory consists of.

Takes aligned runs and their rows, gives waits for loads, held fill buffers, and queues of streams,
in nanoseconds by window.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hmd.estimate.aligned_runs import AlignedRuns
from hmd.estimate.cell_rows import CellRows
from hmd.estimate.overlap import Overlap
from hmd.units import LINE_BYTES

Floats = npt.NDArray[np.float64]


def parts_of(
    runs: AlignedRuns, longer: Floats, rows: CellRows, overlap: Overlap, gap: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the parts of a window's difference: waits, held fill buffers, and queues.

    In proportion to the parts that the measured latencies predict, with queues at least as long as
    the bandwidth of the slow tier makes them.
    """
    misses = rows.misses
    waiting = overlap.waits(misses) * gap
    holding = np.maximum(runs.slow.store_ns - runs.fast.store_ns, 0.0) / runs.core.fill_buffers
    queueing = np.maximum(runs.slow.queue_ns - runs.fast.queue_ns, 0.0)
    total = waiting + holding + queueing
    parts = [longer * share(part, total) for part in (waiting, holding, queueing)]
    # At most one wait per miss; the rest has another cause.
    beyond = np.maximum(parts[0] - misses.sum(1) * gap, 0.0) + np.where(total > 0, 0.0, longer)
    waiting, holding = parts[0] - np.minimum(beyond, parts[0]), parts[1]
    queueing = parts[2] + beyond
    least = np.clip(_traffic_ns(runs, rows) - runs.fast.ns, queueing, np.maximum(longer, queueing))
    kept = 1 - share(least - queueing, waiting + holding)
    return waiting * kept, holding * kept, least


def _traffic_ns(runs: AlignedRuns, rows: CellRows) -> Floats:
    """Return how long a window's lines take at the slow tier's peak bandwidths; 0 if unknown.

    A line that is stored to is read and written.
    """
    speeds, windows = runs.speeds, runs.windows
    if speeds.slow_read_bytes_per_ns <= 0 or speeds.slow_write_bytes_per_ns <= 0:
        return np.zeros(windows)
    held, loads, stores = rows.total[-3 * windows :].reshape(3, windows)
    reads = rows.misses.sum(1) + held + loads + stores
    return np.asarray(
        LINE_BYTES * reads / speeds.slow_read_bytes_per_ns
        + LINE_BYTES * (held + stores) / speeds.slow_write_bytes_per_ns
    )


def share(part: Floats, whole: Floats, otherwise: Floats | float = 0.0) -> Floats:
    """Return part / whole, and ``otherwise`` where the whole is 0."""
    return np.asarray(np.where(whole > 0, part / np.maximum(whole, 1e-12), otherwise))
