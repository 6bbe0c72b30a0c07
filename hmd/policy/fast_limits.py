# SPDX-License-Identifier: MIT
"""Limits on the share of the fastest tier per target, enforced for every policy in one place.

Takes what a policy wants, gives what is wanted within the limits;
:mod:`hmd.policy.planning` then keeps them move by move. Costs nothing without limits,
else about 0.3 µs per page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.base.quantities import Amount
from hmd.base.units import PAGE_BYTES
from hmd.policy.nodes import Nodes
from hmd.policy.plan import FastLimits, TierRequest

if TYPE_CHECKING:
    from hmd.heat.view import PageView

NO_LIMIT: Final = 1 << 62
"""A limit in bytes that no machine reaches."""
UNLIMITED: Final = (Amount(size=0), Amount(share=1.0))
"""What a target without limits may have: at least, and at most."""
Rows: TypeAlias = npt.NDArray[np.intp]
Sums: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of processes and their pages of the fastest tier, in base pages.

    ``of_process`` is the group of each process; the others have shape ``(groups,)``. ``held`` are
    on the tier now, unmovable ones included.
    """

    of_process: npt.NDArray[np.int64]
    held: npt.NDArray[np.int64]
    least: npt.NDArray[np.int64]
    most: npt.NDArray[np.int64]


def share_limits(
    amounts: Sequence[tuple[Amount, Amount]], group: Sequence[int]
) -> FastLimits | None:
    """Return limits of the fastest tier, None where no group has any.

    ``amounts`` are the minimum and the maximum of each group, ``group`` that of each process.
    """
    if all(each == UNLIMITED for each in amounts):
        return None
    least, most = zip(*amounts, strict=True)
    return FastLimits(
        group=np.array(group, np.int32),
        least_bytes=np.array([each.size or 0 for each in least], np.int64),
        least_share=np.array([each.share or 0.0 for each in least]),
        most_bytes=np.array([NO_LIMIT if m.size is None else m.size for m in most], np.int64),
        most_share=np.array([1.0 if m.share is None else m.share for m in most]),
    )


def groups_of(pages: PageView, nodes: Nodes) -> Groups:
    """Return the groups; one without limits where there are none."""
    limits = nodes.limits
    if limits is not None and len(limits.group) != len(pages.processes):
        raise ValueError(f"limits of {len(limits.group)} processes, not {len(pages.processes)}")
    movable, fixed = pages.pages_by_node(len(nodes.tier))
    by_process = (movable + fixed)[:, nodes.tier == 0].sum(axis=1)
    if limits is None:
        group = np.zeros(len(pages.processes), np.int64)
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
    """The movable pages, and what is wanted of them so far."""

    def __init__(self, pages: PageView, wanted: TierRequest, groups: Groups) -> None:
        rows = np.flatnonzero(pages.movable)
        self.rows = rows
        self.size = pages.size[rows].astype(np.int64)
        self.group = groups.of_process[pages.process[rows]]
        self.here, self.key = pages.tier[rows], wanted.key[rows]
        self.warm = pages.rate[rows] > 0
        self.tier = np.where(wanted.tier[rows] < 0, self.here, wanted.tier[rows])
        self.must = np.zeros(len(rows), np.bool_) if wanted.must is None else wanted.must[rows]
        self.due = np.zeros(len(rows), np.bool_)

    def fast(self, groups: Groups) -> npt.NDArray[np.int64]:
        """Return the pages of each group that are wanted on the fastest tier."""
        change = np.where(self.tier == 0, self.size, 0) - np.where(self.here == 0, self.size, 0)
        return groups.held + np.bincount(self.group, change, len(groups.held)).astype(np.int64)

    def leave(self, rows: Rows, amount: int, spare: Sums) -> Rows:
        """Want the coldest of some rows off the fastest tier; returns them.

        At least ``amount`` pages in all, and of each group at most its ``spare``.
        """
        chosen = self._first(rows, self.key[rows], spare, amount)
        total = np.cumsum(self.size[chosen])
        chosen = chosen[: np.searchsorted(total, amount) + 1] if amount > 0 else chosen[:0]
        self.tier[chosen] = np.maximum(self.here[chosen], 1)
        return chosen

    def come(self, rows: Rows, amount: int, spare: Sums) -> Rows:
        """Want the hottest of some rows on the fastest tier; returns them.

        At most ``amount`` pages in all, and of each group at most its ``spare``.
        """
        chosen = self._first(rows, -self.key[rows], spare, amount)
        chosen = chosen[np.cumsum(self.size[chosen]) <= amount]
        self.tier[chosen] = 0
        self.must[chosen] = False
        return chosen

    def _first(self, rows: Rows, order: npt.NDArray[np.float32], most: Sums, amount: int) -> Rows:
        """Return rows by rising ``order``, at most ``most`` pages of each group; sorts few rows."""
        found, orders = [], []
        group = self.group[rows]
        for one in np.unique(group).tolist():
            own = np.flatnonzero(group == one)
            # A row has at least one page.
            enough = int(max(min(amount, most[one]), 0)) + 1
            if enough < len(own):
                own = own[np.argpartition(order[own], enough)[:enough]]
            own = own[np.argsort(order[own], kind="stable")]
            own = own[np.cumsum(self.size[rows[own]]) <= most[one]]
            found.append(rows[own])
            orders.append(order[own])
        if not found:
            return rows[:0]
        return np.concatenate(found)[np.argsort(np.concatenate(orders), kind="stable")]


def within_limits(
    pages: PageView, nodes: Nodes, groups: Groups, wanted: TierRequest
) -> tuple[TierRequest, npt.NDArray[np.bool_]]:
    """Return the request so that each group has at least its least and at most its most.

    Also which rows are due to their group: they are promoted even if others are hotter.
    """
    due = np.zeros(len(wanted.tier), np.bool_)
    if nodes.limits is None:
        return wanted, due
    limited = _LimitedPages(pages, wanted, groups)
    fast = limited.fast(groups)
    for group in np.flatnonzero(fast > groups.most).tolist():
        rows = np.flatnonzero((limited.group == group) & (limited.tier == 0))
        limited.leave(rows, int(fast[group] - groups.most[group]), fast)
    short = np.maximum(groups.least - fast, 0)
    rows = np.flatnonzero((short[limited.group] > 0) & (limited.tier > 0) & limited.warm)
    came = limited.come(rows, int(short.sum()), short)
    limited.due[came] = limited.here[came] > 0
    _balance(limited, nodes, groups, fills=wanted.fills)
    _force_down(limited, groups)
    tier, must = wanted.tier.copy(), np.zeros(len(due), np.bool_)
    tier[limited.rows], must[limited.rows] = limited.tier, limited.must
    due[limited.rows] = limited.due
    return replace(wanted, tier=tier, must=must), due


def _balance(pages: _LimitedPages, nodes: Nodes, groups: Groups, *, fills: bool) -> None:
    """Demote pages of groups with spare ones where too many are wanted; fill what is left."""
    fast = pages.fast(groups)
    over = int(fast.sum() - groups.held.sum() - nodes.by_tier(nodes.room)[0])
    if over > 0:
        rows = np.flatnonzero((pages.tier == 0) & ~pages.due)
        pages.leave(rows, over, np.maximum(fast - groups.least, 0))
    elif fills:
        rows = np.flatnonzero((pages.tier > 0) & pages.warm & (pages.key > 0))
        pages.come(rows, -over, np.maximum(groups.most - fast, 0))


def _force_down(pages: _LimitedPages, groups: Groups) -> None:
    """Mark the coldest pages of groups that hold more than their most."""
    excess = np.maximum(groups.held - groups.most, 0)
    for group in np.flatnonzero(excess).tolist():
        falls = np.flatnonzero((pages.group == group) & (pages.tier > 0) & (pages.here == 0))
        falls = falls[np.argsort(pages.key[falls], kind="stable")]
        enough = np.searchsorted(np.cumsum(pages.size[falls]), excess[group]) + 1
        pages.must[falls[:enough]] = True
