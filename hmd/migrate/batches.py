"""Batches: the pages of one call of move_pages(2), which and how many.

A plan's phases say what makes room for what. Within a phase any order does, and the kernel is
fastest with pages sorted by node and address.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import Plan


@dataclass(frozen=True, slots=True)
class MoveGroup:
    """Rows of a plan: pages of one process that go to one node, by rising address."""

    process: int
    node: int
    rows: npt.NDArray[np.intp]


def move_groups(plan: Plan, rows: npt.NDArray[np.intp]) -> Iterator[MoveGroup]:
    """Yield the given rows in the order in which to move them, grouped for calls.

    The plan's phases follow each other. Within a phase a group has pages of one process (that is
    move_pages(2)) and one target node: an error of the whole call (a full node, a cpuset) is then
    an answer about that node, and the kernel, which migrates each run of pages with one target
    together, gets the longest possible runs.
    """
    if not len(rows):
        return
    process, node, phase = plan.process[rows], plan.to_node[rows], plan.phase[rows]
    order = np.lexsort((plan.address[rows], node, process, phase))
    key = np.stack((phase[order], process[order], node[order]))
    turns = np.flatnonzero((np.diff(key, axis=1) != 0).any(axis=0)) + 1
    for members in np.split(order, turns):
        first = members[0]
        yield MoveGroup(int(process[first]), int(node[first]), rows[members])


class BatchSize:
    """How many 4 KiB pages to hand to one call, so that it blocks its target briefly.

    A process that accesses a page under migration waits for it, and each call also drains the LRU
    caches of all CPUs: few long calls delay the target, many short ones delay every process. The
    size doubles while calls are short. After a long call it falls at once to what the measured
    speed allows.
    """

    def __init__(self, least_pages: int, most_pages: int, call_target_s: float) -> None:
        if not 0 < least_pages <= most_pages:
            raise ValueError(f"no batch size lies between {least_pages} and {most_pages} pages")
        self._least = least_pages
        self._most = most_pages
        self._target_s = call_target_s
        self.pages = least_pages

    def observe(self, pages: int, seconds: float) -> None:
        """Adapt the size to a call of so many pages that took so long."""
        fitting = self._most if seconds <= 0 else int(pages * self._target_s / seconds)
        if fitting < self.pages:
            # The cost of a small call is mostly the LRU drain: no measure of large calls.
            if seconds > self._target_s or pages * 2 >= self.pages:
                self.pages = max(self._least, fitting)
        elif pages * 2 >= self.pages:
            self.pages = min(self._most, self.pages * 2, fitting)

    def take(self, weights: npt.NDArray[np.uint32]) -> int:
        """Return how many leading rows of these weights (in pages) fit one call; at least 1."""
        return max(1, int(np.searchsorted(np.cumsum(weights, dtype=np.int64), self.pages, "right")))
