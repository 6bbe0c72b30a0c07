"""When a program accesses its pages: rows of first accesses, and of those after pages were freed.

Takes a miss stream; gives rows of it, ``len(stream)`` where there is none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hmd.emulate.recordings.miss_stream import MissStream

_ROWS = 1 << 16


def first_rows(stream: MissStream) -> npt.NDArray[np.int64]:
    """Return the row of the first access to each of the program's pages."""
    first = np.full(stream.pages, len(stream), np.int64)
    # From the end, so that the first of a page's rows is written last.
    for begin in reversed(range(0, len(stream), _ROWS)):
        part = stream.page[begin : begin + _ROWS]
        first[part[::-1]] = np.arange(begin, begin + len(part))[::-1]
    return first[: stream.user_pages]


def next_rows(stream: MissStream) -> npt.NDArray[np.int64]:
    """Return the row of the next access to each page that is given back, or the end; ``(k,)``."""
    if stream.frees is None:
        return np.empty(0, np.int64)
    page, end = stream.frees.page.astype(np.int64), len(stream)
    freed = np.zeros(stream.pages, np.bool_)
    freed[page] = True
    rows = np.flatnonzero(freed[stream.page])
    # By page, then by row: one number for both.
    accesses = np.sort(stream.page[rows].astype(np.int64) * (end + 1) + rows)
    at = np.searchsorted(accesses, page * (end + 1) + stream.frees.row)
    found = np.append(accesses, -1)[at]
    return np.where(found // (end + 1) == page, found % (end + 1), end)
