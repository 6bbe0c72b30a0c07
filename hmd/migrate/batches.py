"""Batches: the pages of one call of move_pages(2), which and how many.

A plan's phases say what makes room for what. Within a phase any order does, and the kernel is
fastest with pages sorted by node and address.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import Plan

Rows = npt.NDArray[np.intp]


def is_uniform(column: npt.NDArray[Any]) -> bool:
    """Return whether all rows are alike, as they often are: a fraction of the time of a sort."""
    return not len(column) or bool((column == column[0]).all())


def move_sequence(plan: Plan) -> tuple[Rows, Rows]:
    """Return the order in which to move a plan's rows, and where each group begins in it.

    The plan's phases follow each other. Within a phase a group has pages of one process (that is
    move_pages(2)) and one target node, by rising address: an error of the whole call (a full node,
    a cpuset) is then an answer about that node, and the kernel, which migrates each run of pages
    with one target together, gets the longest possible runs.
    """
    by_address = np.argsort(plan.address)
    if not len(plan):
        return by_address, by_address
    if is_uniform(plan.phase) and is_uniform(plan.process) and is_uniform(plan.to_node):
        return by_address, np.zeros(1, np.intp)
    processes, nodes = int(plan.process.max()) + 1, int(plan.to_node.max()) + 1
    key = (plan.phase.astype(np.int64) * processes + plan.process) * nodes + plan.to_node
    # Integers of few bits are sorted digit by digit, in linear time.
    small = key.astype(np.min_scalar_type(int(key.max())))
    order = by_address.take(np.argsort(small.take(by_address), kind="stable"))
    return order, np.append(0, np.flatnonzero(np.diff(small.take(order))) + 1)


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
        aim_s = self._target_s / 2
        fitting = self._most if seconds <= 0 else int(pages * aim_s / seconds)
        if fitting < self.pages:
            # The cost of a small call is mostly the LRU drain: no measure of large calls.
            if seconds > self._target_s or pages * 2 >= self.pages:
                self.pages = max(self._least, fitting)
        elif pages * 2 >= self.pages:
            self.pages = min(self._most, self.pages * 2, fitting)

    def take(self, weights: npt.NDArray[np.uint32]) -> int:
        """Return how many leading rows of these weights (in pages) fit one call; at least 1."""
        pages = np.cumsum(weights[: self.pages], dtype=np.int64)
        return max(1, int(np.searchsorted(pages, self.pages, "right")))
