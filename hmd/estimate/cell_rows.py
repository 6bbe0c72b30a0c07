"""The rows of a program's recorded runs by cell: what the runtime model prices.

Takes aligned runs, gives the accesses to each page by window and kind of access.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from hmd.estimate.aligned_runs import AlignedRun, AlignedRuns
from hmd.estimate.overlap import CLASSES, classes
from hmd.estimate.sample_aggregation import AccessClass

Floats = npt.NDArray[np.float64]


class SampleSelection(StrEnum):
    """The run whose samples give a page's accesses; if the fast run has none, the slow one.

    Both give most samples. Layouts made from one run's samples are priced with the other's: the
    hottest pages of one set of samples are so partly by chance.
    """

    BOTH = "both"
    SLOW = "slow"
    FAST = "fast"


@dataclass(frozen=True, slots=True)
class CellRows:
    """Rows in order of cell, and what follows from them; columns have shape ``(rows,)``.

    A row is ``accesses`` to a ``page``, from ``samples`` samples; ``begin``, ``(cells + 1,)``, is
    the first row of each cell, ``total`` the sum of their accesses. Cells are loads by window and
    class, then by window stores, streamed loads and streamed stores.

    ``misses`` are loads that memory answers, by window and class, ``sampled_loads`` the samples of
    them; ``lines`` are all that hold a fill buffer, by window. One sample stands for ``period``.
    """

    used: Sequence[AlignedRun]
    of_page: npt.NDArray[np.int32]
    page: npt.NDArray[np.int32]
    accesses: npt.NDArray[np.float32]
    samples: npt.NDArray[np.int32]
    begin: npt.NDArray[np.uint64]
    total: Floats
    misses: Floats
    lines: Floats
    sampled_loads: Floats
    period: float


def rows_of(runs: AlignedRuns, selection: SampleSelection, *, structures: bool) -> CellRows:
    """Return the rows of the selected runs; with ``structures``, loads by class of their page."""
    wanted = {
        SampleSelection.BOTH: (runs.slow, runs.fast),
        SampleSelection.SLOW: (runs.slow,),
        SampleSelection.FAST: (runs.fast,),
    }[selection]
    used = [run for run in wanted if len(run.page)] or [runs.slow]
    page = np.concatenate([run.page for run in used])
    window = np.concatenate([run.window for run in used])
    accesses = (np.concatenate([run.accesses for run in used]) / len(used)).astype(np.float32)
    samples = np.concatenate([run.samples for run in used])
    access = np.concatenate([run.access for run in used])
    waits = access == AccessClass.LOAD
    windows, pages = runs.windows, len(runs.pages)
    of_page = (
        classes(page[waits], accesses[waits], pages) if structures else np.zeros(pages, np.int32)
    )
    loads, cells = windows * CLASSES, windows * (CLASSES + 3)
    beyond = loads + windows * (access.astype(np.int64) - 1) + window
    cell = np.where(waits, window * CLASSES + of_page[page], beyond)
    # In order of cell and page; both runs' rows of a page and cell become one row.
    key = cell * pages + page
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    samples = np.add.reduceat(samples[order], first).astype(np.int32)
    accesses = np.add.reduceat(accesses[order], first).astype(np.float32)
    cell, page = cell[order][first], page[order][first]
    begin = np.searchsorted(cell, np.arange(cells + 1)).astype(np.uint64)
    total = sum_cells(page, accesses, begin, pages)
    sampled = np.bincount(cell, samples, cells).astype(np.float64)[:loads]
    misses = total[:loads].reshape(windows, CLASSES)
    return CellRows(
        used,
        of_page,
        page,
        accesses,
        samples,
        begin,
        total,
        misses,
        misses.sum(1) + total[loads : loads + windows],
        sampled.reshape(windows, CLASSES),
        # Rings lose consecutive records, so a pair is lost whole: pairs are not scaled up.
        sum(
            float(run.accesses[run.access == AccessClass.LOAD].sum()) / (1 + run.lost)
            for run in used
        )
        / max(float(sampled.sum()), 1.0),
    )


def sum_cells(
    page: npt.NDArray[np.int32],
    accesses: npt.NDArray[np.float32],
    begin: npt.NDArray[np.uint64],
    pages: int,
) -> Floats:
    """Return accesses by cell, added up as a layout's are: all slow is all, to the last bit."""
    from hmd.estimate.slow_accesses import add_slow

    total = np.zeros(len(begin) - 1)
    add_slow(page, accesses, begin, np.ones(pages, np.float32), 0, len(total), total)
    return total
