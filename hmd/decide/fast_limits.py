"""What each target may have of the fastest tier, kept for every policy in one place.

Takes what a policy wants, gives what is wanted within the limits; :mod:`hmd.decide.move_order` then
keeps them move by move. Costs nothing without limits, else about 0.3 µs a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.decide.node_arrays import Nodes
from hmd.heat.geometry import CHUNK_PAGES
from hmd.heat.heat_table import HeatTable
from hmd.units import PAGE_BYTES

NO_LIMIT: Final = 1 << 62
Rows: TypeAlias = npt.NDArray[np.intp]
Sums: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of processes and their pages of the fastest tier, in 4 KiB.

    ``of_process`` is the group of each process; ``held``, ``least`` and ``most`` have shape
    ``(groups,)``. What must stay where it is counts as held.
    """

    of_process: npt.NDArray[np.int64]
    held: npt.NDArray[np.int64]
    least: npt.NDArray[np.int64]
    most: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted within the limits; shape ``(chunks, 512)``, of a huge page the first counts.

    ``tier`` is -1 for pages that stay. Pages that ``must`` go down do so before anything else;
    those ``due`` their group go up even where others are hotter.
    """

    tier: npt.NDArray[np.int8]
    must: npt.NDArray[np.bool_]
    due: npt.NDArray[np.bool_]


def groups_of(heat: HeatTable, nodes: Nodes) -> Groups:
    """Return the groups; one without limits where there are none."""
    limits = nodes.limits
    if limits is not None and len(limits.group) != len(heat.processes):
        raise ValueError(f"limits of {len(limits.group)} processes, not {len(heat.processes)}")
    movable, fixed = heat.resident_pages(len(nodes.tier))
    by_process = (movable + fixed)[:, nodes.tier == 0].sum(axis=1)
    if limits is None:
        group = np.zeros(len(heat.processes), np.int64)
        least, most = np.zeros(1, np.int64), np.full(1, NO_LIMIT)
    else:
        group, fast = limits.group.astype(np.int64), nodes.fast_bytes
        least_bytes = np.maximum(limits.least_bytes, limits.least_share * fast)
        most_bytes = np.minimum(limits.most_bytes, limits.most_share * fast)
        least = (least_bytes // PAGE_BYTES).astype(np.int64)
        most = (most_bytes // PAGE_BYTES).astype(np.int64)
    held = np.bincount(group, by_process, len(least)).astype(np.int64)
    return Groups(group, held, np.minimum(least, most), most)


class _LimitedPages:
    """The movable pages as one column each, and what is wanted of them so far."""

    def __init__(
        self,
        heat: HeatTable,
        nodes: Nodes,
        wanted: Wanted,
        key: npt.NDArray[np.float32],
        rate: npt.NDArray[np.float32],
        groups: Groups,
    ) -> None:
        columns, used = heat.chunks.columns, heat.chunks.used
        here = nodes.of_pages(columns.node[:used])
        counts = here >= 0
        counts[:, 1:] &= ~columns.huge[:used, None]
        self.at = np.flatnonzero(counts)
        chunk = self.at // CHUNK_PAGES
        self.size = np.where(columns.huge[chunk], CHUNK_PAGES, 1)
        self.group = groups.of_process[columns.process[chunk]]
        self.here, self.key = here.reshape(-1)[self.at], key.reshape(-1)[self.at]
        self.warm = rate.reshape(-1)[self.at] > 0
        tier = wanted.tier.reshape(-1)[self.at]
        self.tier = np.where(tier < 0, self.here, tier)
        self.must = wanted.must.reshape(-1)[self.at]
        self.due = np.zeros(len(self.at), np.bool_)

    def fast(self, groups: Groups) -> npt.NDArray[np.int64]:
        """Return how many pages of each group are to be on the fastest tier."""
        change = np.where(self.tier == 0, self.size, 0) - np.where(self.here == 0, self.size, 0)
        return groups.held + np.bincount(self.group, change, len(groups.held)).astype(np.int64)

    def leave(self, rows: Rows, amount: int, spare: Sums) -> Rows:
        """Want the coldest of some rows off the fastest tier; returns which.

        ``amount`` of pages or a little more, but of no group more than its ``spare``.
        """
        chosen = self._first(rows, self.key[rows], spare, amount)
        total = np.cumsum(self.size[chosen])
        chosen = chosen[: np.searchsorted(total, amount) + 1] if amount > 0 else chosen[:0]
        self.tier[chosen] = np.maximum(self.here[chosen], 1)
        return chosen

    def come(self, rows: Rows, amount: int, spare: Sums) -> Rows:
        """Want the hottest of some rows on the fastest tier; returns which.

        No more than ``amount`` of pages, and of no group more than its ``spare``.
        """
        chosen = self._first(rows, -self.key[rows], spare, amount)
        chosen = chosen[np.cumsum(self.size[chosen]) <= amount]
        self.tier[chosen] = 0
        self.must[chosen] = False
        return chosen

    def _first(self, rows: Rows, order: npt.NDArray[np.float32], most: Sums, amount: int) -> Rows:
        """Return rows in an order, of each group as many as do not exceed ``most`` pages.

        No more than ``amount`` of pages needs; only so many are sorted.
        """
        found, places = [], []
        group = self.group[rows]
        for one in np.unique(group).tolist():
            mine = np.flatnonzero(group == one)
            # A row has one page at least.
            enough = int(max(min(amount, most[one]), 0)) + 1
            if enough < len(mine):
                mine = mine[np.argpartition(order[mine], enough)[:enough]]
            mine = mine[np.argsort(order[mine], kind="stable")]
            mine = mine[np.cumsum(self.size[rows[mine]]) <= most[one]]
            found.append(rows[mine])
            places.append(order[mine])
        if not found:
            return rows[:0]
        return np.concatenate(found)[np.argsort(np.concatenate(places), kind="stable")]


def within_limits(
    heat: HeatTable,
    nodes: Nodes,
    groups: Groups,
    wanted: Wanted,
    key: npt.NDArray[np.float32],
    rate: npt.NDArray[np.float32],
    *,
    fills: bool,
) -> Wanted:
    """Return what is wanted so that each group has its least and no more than its most.

    ``fills`` says that a policy wants as many pages on the fastest tier as fit: what one group
    has to give up others then get.
    """
    if nodes.limits is None:
        return wanted
    pages = _LimitedPages(heat, nodes, wanted, key, rate, groups)
    fast = pages.fast(groups)
    for group in np.flatnonzero(fast > groups.most).tolist():
        rows = np.flatnonzero((pages.group == group) & (pages.tier == 0))
        pages.leave(rows, int(fast[group] - groups.most[group]), fast)
    short = np.maximum(groups.least - fast, 0)
    rows = np.flatnonzero((short[pages.group] > 0) & (pages.tier > 0) & pages.warm)
    came = pages.come(rows, int(short.sum()), short)
    pages.due[came] = pages.here[came] > 0
    _balance(pages, nodes, groups, fills=fills)
    _force_down(pages, groups)
    return _spread(pages, wanted)


def _balance(pages: _LimitedPages, nodes: Nodes, groups: Groups, *, fills: bool) -> None:
    """Let pages of groups that may lose some go where too many are wanted; fill what is left."""
    fast = pages.fast(groups)
    over = int(fast.sum() - groups.held.sum() - nodes.by_tier(nodes.room)[0])
    if over > 0:
        rows = np.flatnonzero((pages.tier == 0) & ~pages.due)
        pages.leave(rows, over, np.maximum(fast - groups.least, 0))
    elif fills:
        rows = np.flatnonzero((pages.tier > 0) & pages.warm & (pages.key > 0))
        pages.come(rows, -over, np.maximum(groups.most - fast, 0))


def _force_down(pages: _LimitedPages, groups: Groups) -> None:
    """Mark the coldest pages of groups that hold more than they may."""
    excess = np.maximum(groups.held - groups.most, 0)
    for group in np.flatnonzero(excess).tolist():
        falls = np.flatnonzero((pages.group == group) & (pages.tier > 0) & (pages.here == 0))
        falls = falls[np.argsort(pages.key[falls], kind="stable")]
        enough = np.searchsorted(np.cumsum(pages.size[falls]), excess[group]) + 1
        pages.must[falls[:enough]] = True


def _spread(pages: _LimitedPages, wanted: Wanted) -> Wanted:
    """Return pages as the policy's arrays have them."""
    shape = wanted.tier.shape
    tier, must = wanted.tier.copy().reshape(-1), wanted.must.copy().reshape(-1)
    due = np.zeros(len(tier), np.bool_)
    tier[pages.at], must[pages.at], due[pages.at] = pages.tier, pages.must, pages.due
    return Wanted(tier.reshape(shape), must.reshape(shape), due.reshape(shape))
