# SPDX-License-Identifier: MIT
"""Limits on the share of tiers per target or cgroup, enforced for every policy in one place.

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
from hmd.base.units import HUGE_PAGE_BYTES, PAGE_BYTES
from hmd.policy.nodes import Nodes
from hmd.policy.plan import FastLimits, TierRequest

if TYPE_CHECKING:
    from hmd.heat.view import PageView

NO_LIMIT: Final = 1 << 62
"""A limit in bytes that no machine reaches."""
Share: TypeAlias = tuple[Amount, Amount, Amount]
"""What a group may have of the fastest tier at least and at most, and of each in the middle."""
UNLIMITED: Final[Share] = (Amount(size=0), Amount(share=1.0), Amount(share=1.0))
Rows: TypeAlias = npt.NDArray[np.intp]
Sums: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of processes and their pages of the fastest tier, in base pages.

    ``of_process`` is the group of each process; the others have shape ``(groups,)``. ``held`` are
    on the tier now, unmovable ones included. ``on_tier``, ``(tiers, groups)``, are those of each
    tier; ``middle``, of the same shape, is the most of those between the fastest and the slowest.
    ``budget`` are the pages that may be promoted in a tick.
    """

    of_process: npt.NDArray[np.int64]
    held: npt.NDArray[np.int64]
    least: npt.NDArray[np.int64]
    most: npt.NDArray[np.int64]
    on_tier: npt.NDArray[np.int64]
    middle: npt.NDArray[np.int64]
    budget: npt.NDArray[np.int64]


def share_limits(
    amounts: Sequence[Share],
    group: Sequence[int],
    rates: Sequence[int | None] = (),
    *,
    always: bool = False,
) -> FastLimits | None:
    """Return the limits of groups, None where no group has any, unless ``always`` some are wanted.

    ``group`` is that of each process, ``rates`` are bytes per second of each group, None for any.
    """
    limited = any(each != UNLIMITED for each in amounts) or any(r is not None for r in rates)
    if not (always or limited):
        return None
    least, most, middle = zip(*amounts, strict=True) if amounts else ((), (), ())
    return FastLimits(
        group=np.array(group, np.int32),
        least_bytes=np.array([each.size or 0 for each in least], np.int64),
        least_share=np.array([each.share or 0.0 for each in least], np.float64),
        most_bytes=_sizes(most),
        most_share=_shares(most),
        middle=(_sizes(middle), _shares(middle)),
        rate_bytes=_sizes([Amount(rate) for rate in rates or [None] * len(amounts)]),
    )


def _sizes(most: Sequence[Amount]) -> npt.NDArray[np.int64]:
    return np.array([NO_LIMIT if each.size is None else each.size for each in most], np.int64)


def _shares(most: Sequence[Amount]) -> npt.NDArray[np.float64]:
    return np.array([1.0 if each.share is None else each.share for each in most], np.float64)


def groups_of(pages: PageView, nodes: Nodes) -> Groups:
    """Return the groups; one without limits where there are none."""
    limits = nodes.limits
    if limits is not None and len(limits.group) != len(pages.processes):
        raise ValueError(f"limits of {len(limits.group)} processes, not {len(pages.processes)}")
    movable, fixed = pages.pages_by_node(len(nodes.tier))
    if limits is None:
        group = np.zeros(len(pages.processes), np.int64)
        least, most = np.zeros(1, np.int64), np.full(1, NO_LIMIT)
    else:
        group, fast = limits.group.astype(np.int64), nodes.fast_bytes
        least_bytes = np.maximum(limits.least_bytes, limits.least_share * fast)
        most_bytes = np.minimum(limits.most_bytes, limits.most_share * fast)
        least = (least_bytes // PAGE_BYTES).astype(np.int64)
        most = (most_bytes // PAGE_BYTES).astype(np.int64)
    on_tier = np.zeros((nodes.tiers, len(least)), np.int64)
    middle = np.full(on_tier.shape, NO_LIMIT)
    for tier in range(nodes.tiers):
        by_process = (movable + fixed)[:, nodes.tier == tier].sum(axis=1)
        on_tier[tier] = np.bincount(group, by_process, len(least))
        if limits is not None and limits.middle is not None and 0 < tier < nodes.tiers - 1:
            size, share = limits.middle
            middle[tier] = np.minimum(size, share * nodes.tier_bytes[tier]) // PAGE_BYTES
    budget = np.full(len(least), NO_LIMIT)
    if limits is not None and limits.rate_bytes is not None:
        budget = limits.rate_bytes * max(nodes.tick_s, 1e-3)
        budget = (np.maximum(budget, HUGE_PAGE_BYTES) // PAGE_BYTES).astype(np.int64)
    least = np.minimum(least, most)
    return Groups(group, on_tier[0], least, most, on_tier, middle, budget)


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

    def wanted(self, groups: Groups, tier: int = 0) -> npt.NDArray[np.int64]:
        """Return the pages of each group that are wanted on a tier."""
        there, here = self.tier == tier, self.here == tier
        change = np.where(there, self.size, 0) - np.where(here, self.size, 0)
        now: Sums = groups.on_tier[tier]
        return now + np.bincount(self.group, change, len(now)).astype(np.int64)

    def leave(self, rows: Rows, amount: int, spare: Sums, tier: int = 0) -> Rows:
        """Want the coldest of some rows off a tier; returns them.

        At least ``amount`` pages in all, and of each group at most its ``spare``.
        """
        chosen = self._first(rows, self.key[rows], spare, amount)
        total = np.cumsum(self.size[chosen])
        chosen = chosen[: np.searchsorted(total, amount) + 1] if amount > 0 else chosen[:0]
        self.tier[chosen] = np.maximum(self.here[chosen], tier + 1)
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
    _hold_below(limited, groups, 0, groups.most)
    fast = limited.wanted(groups)
    short = np.maximum(groups.least - fast, 0)
    rows = np.flatnonzero((short[limited.group] > 0) & (limited.tier > 0) & limited.warm)
    came = limited.come(rows, int(short.sum()), short)
    limited.due[came] = limited.here[came] > 0
    _balance(limited, nodes, groups, fills=wanted.fills)
    _force_down(limited, groups, 0, groups.most)
    for middle in range(1, nodes.tiers - 1):
        _hold_below(limited, groups, middle, groups.middle[middle])
        _force_down(limited, groups, middle, groups.middle[middle])
    tier, must = wanted.tier.copy(), np.zeros(len(due), np.bool_)
    tier[limited.rows], must[limited.rows] = limited.tier, limited.must
    due[limited.rows] = limited.due
    return replace(wanted, tier=tier, must=must), due


def _hold_below(pages: _LimitedPages, groups: Groups, tier: int, most: Sums) -> None:
    """Want the coldest pages of groups off a tier on which more than their most are wanted."""
    there = pages.wanted(groups, tier)
    for group in np.flatnonzero(there > most).tolist():
        rows = np.flatnonzero((pages.group == group) & (pages.tier == tier))
        pages.leave(rows, int(there[group] - most[group]), there, tier)


def _balance(pages: _LimitedPages, nodes: Nodes, groups: Groups, *, fills: bool) -> None:
    """Demote pages of groups with spare ones where too many are wanted; fill what is left."""
    fast = pages.wanted(groups)
    over = int(fast.sum() - groups.held.sum() - nodes.by_tier(nodes.room)[0])
    if over > 0:
        rows = np.flatnonzero((pages.tier == 0) & ~pages.due)
        pages.leave(rows, over, np.maximum(fast - groups.least, 0))
    elif fills:
        rows = np.flatnonzero((pages.tier > 0) & pages.warm & (pages.key > 0))
        pages.come(rows, -over, np.maximum(groups.most - fast, 0))


def _force_down(pages: _LimitedPages, groups: Groups, tier: int, most: Sums) -> None:
    """Mark the coldest pages of groups that hold more than their most of a tier."""
    excess = np.maximum(groups.on_tier[tier] - most, 0)
    for group in np.flatnonzero(excess).tolist():
        falls = np.flatnonzero((pages.group == group) & (pages.tier > tier) & (pages.here == tier))
        falls = falls[np.argsort(pages.key[falls], kind="stable")]
        enough = np.searchsorted(np.cumsum(pages.size[falls]), excess[group]) + 1
        pages.must[falls[:enough]] = True
