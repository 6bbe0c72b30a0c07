"""Pieces of tensors for the bytes that a transfer program moves per kernel.

What leaves first is what may leave first; what returns first is what is used first, of what has
left. The step repeats: it is walked twice, and what leaves in the second walk is kept.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final

import numpy as np

from hmd.tensors.tensor_trace import Floats, Ints

_STEPS: Final = 3
"""Walks: pieces that leave in the second have returned by the end of the third."""


def scheduled_pieces(gaps: tuple[Ints, Ints], pages: Floats, flow: tuple[Floats, Floats]) -> Ints:
    """Return gap, slot of leaving, slot of returning, end and pages of each piece, (5, P).

    ``gaps`` are start and end kernels, (G,) each, an end at or before its start in the next step;
    ``pages`` (G,) leave in each gap, and ``flow`` (K,) each are pages that leave and return per
    slot. What has not left when its gap ends stays; what the flow does not return in time is
    fetched at the end. Slots count from the step in which the piece leaves.
    """
    start, end = gaps
    leaves, returns = flow
    kernels = len(leaves)
    length = np.where(end <= start, end + kernels, end) - start
    opened: list[list[int]] = [[] for _ in range(kernels)]
    for gap in np.flatnonzero(pages >= 1).tolist():
        opened[int(start[gap])].append(gap)
    for row in opened:
        row.sort(key=lambda gap: int(length[gap]))
    waiting: deque[tuple[int, int, int]] = deque()  # gap, end, pages
    away: list[tuple[int, int, int, int]] = []  # end, left, gap, pages
    found: list[tuple[int, int, int, int, int]] = []
    out = back = 0.0
    for slot in range(_STEPS * kernels):
        kernel = slot % kernels
        if slot < 2 * kernels:
            waiting.extend(
                (gap, slot + int(length[gap]), int(pages[gap])) for gap in opened[kernel]
            )
        while away and away[0][0] <= slot:
            due, left, gap, count = heapq.heappop(away)
            found.append((gap, left, due, due, count))
        back += returns[kernel]
        while away and back >= 1:
            due, left, gap, count = heapq.heappop(away)
            part = min(count, int(back))
            found.append((gap, left, slot, due, part))
            back -= part
            if count > part:
                heapq.heappush(away, (due, left, gap, count - part))
        out += leaves[kernel]
        while waiting and out >= 1:
            gap, due, count = waiting.popleft()
            if due <= slot:
                continue
            part = min(count, int(out))
            out -= part
            heapq.heappush(away, (due, slot, gap, part))
            if count > part:
                waiting.appendleft((gap, due, count - part))
        if not waiting:
            out = min(out, 0.99)
        if not away:
            back = min(back, 0.99)
    rows = np.array(found, np.int64).reshape(-1, 5)
    rows = rows[(rows[:, 1] >= kernels) & (rows[:, 1] < 2 * kernels)]
    rows[:, 1:4] -= kernels
    return rows.T.copy()
