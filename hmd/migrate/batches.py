"""In which order pages are moved, and how many by one call.

A plan's order says what makes room for what; the kernel is fastest with pages sorted by node and
address. Phases keep the first and leave the second free within each phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import Plan


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of a plan that go to one node of one process, by rising address."""

    process: int
    node: int
    rows: npt.NDArray[np.intp]


def phases(
    from_node: npt.NDArray[np.int16], to_node: npt.NDArray[np.int16]
) -> npt.NDArray[np.int32]:
    """Return a rising phase number of each move; all columns have shape ``(n,)``.

    A move into a node out of which earlier moves of its phase lead may need the room that they
    make, so it begins the next phase. Demotions before promotions are thus two phases, whatever
    the nodes and the number of tiers.
    """
    phase = np.zeros(len(from_node), np.int32)
    if not len(phase):
        return phase
    turns = np.flatnonzero((np.diff(from_node) != 0) | (np.diff(to_node) != 0)) + 1
    starts = np.concatenate((np.zeros(1, np.intp), turns))
    sources: set[int] = set()
    current = 0
    for start in starts:
        if int(to_node[start]) in sources:
            current += 1
            sources.clear()
        sources.add(int(from_node[start]))
        phase[start:] = current
    return phase


def groups(
    plan: Plan, rows: npt.NDArray[np.intp], from_node: npt.NDArray[np.int16]
) -> Iterator[Group]:
    """Give the chosen rows in the order in which to move them, grouped for calls.

    ``from_node`` is where all pages of the plan were found, which its own column only expects.

    A call moves pages of one process (that is move_pages(2)) to one node: an error of the whole
    call (a full node, a cpuset) is then an answer about that node, and the kernel, which migrates
    each run of pages with one target together, gets runs that are as long as can be.
    """
    if not len(rows):
        return
    process, node = plan.process[rows], plan.to_node[rows]
    phase = phases(from_node[rows], node)
    order = np.lexsort((plan.address[rows], node, process, phase))
    key = np.stack((phase[order], process[order], node[order]))
    turns = np.flatnonzero((np.diff(key, axis=1) != 0).any(axis=0)) + 1
    for members in np.split(order, turns):
        first = members[0]
        yield Group(int(process[first]), int(node[first]), rows[members])


class BatchSize:
    """How many 4 KiB pages to hand to one call, so that it blocks its target briefly.

    A process that touches a page under migration waits for it, and each call also drains the LRU
    caches of every CPU: few and long calls hurt the target, many short ones everybody. The size
    doubles while calls are short, and follows the measured speed down at once where one was long.
    """

    def __init__(self, least_pages: int, most_pages: int, call_target_s: float) -> None:
        if not 0 < least_pages <= most_pages:
            raise ValueError(f"no batch size lies between {least_pages} and {most_pages} pages")
        self._least = least_pages
        self._most = most_pages
        self._target_s = call_target_s
        self.pages = least_pages

    def observe(self, pages: int, seconds: float) -> None:
        """Learn from a call that was given so many pages and took so long."""
        fitting = self._most if seconds <= 0 else int(pages * self._target_s / seconds)
        if fitting < self.pages:
            # A small call is mostly the fixed cost of the drain: it says nothing of large ones.
            if seconds > self._target_s or pages * 2 >= self.pages:
                self.pages = max(self._least, fitting)
        elif pages * 2 >= self.pages:
            self.pages = min(self._most, self.pages * 2, fitting)

    def take(self, weights: npt.NDArray[np.uint32]) -> int:
        """Return how many leading rows of these weights (in pages) one call may have; >= 1."""
        return max(1, int(np.searchsorted(np.cumsum(weights, dtype=np.int64), self.pages, "right")))
