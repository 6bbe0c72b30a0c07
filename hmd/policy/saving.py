# SPDX-License-Identifier: MIT
"""What moves save and cost, and which of them pay.

Takes a page view with the rate of each page and the seconds for which its process's heat is
expected to last; gives the tier on which each page is wanted. A promotion saves the page's accesses
per second, times the difference in latency, times these seconds. It costs its own move and, where
the tier is full, the loss and the move of the coldest page there. The best gain is paired with the
least loss until a pair does not pay, so nothing moves where nothing pays. About 60 ns per page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import (
    Bools,
    Float32s,
    Float64s,
    Int8s,
    Int32s,
    Int64s,
    Uint8s,
    Uint16s,
    kernel,
)
from hmd.base.units import PAGE_MOVE_COST
from hmd.heat.rates import ANSCOMBE
from hmd.heat.settings import MOVE_WEAR
from hmd.policy.nodes import Nodes
from hmd.policy.plan import TierRequest
from hmd.policy.planning import rising_rows

if TYPE_CHECKING:
    from hmd.heat.view import PageView

_MIN_SAMPLES: Final = 1e-9
# Wear of one move doubles the cost of the next.
WEAR_COST: Final = np.exp2(np.arange(256) / float(MOVE_WEAR))

Values = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]


class MoveTerms(NamedTuple):
    """When a move is made: settings of a policy that makes the moves that pay.

    ``move_ns`` is the cost of moving 4 KiB to its program, ``confidence`` how certain a gain must
    be, in standard deviations of a page's heat, ``samples_min`` the samples that a page needs.
    """

    move_ns: float
    confidence: float
    samples_min: float


class ValueColumns(NamedTuple):
    """Columns of a view; shape ``(n,)``. ``support`` has the samples behind the view's rates."""

    tier: Int8s
    size: Uint16s
    wear: Uint8s
    process: Int32s
    rate: Float32s
    support: Float32s


class PageValues(NamedTuple):
    """The movable rows of a view; shape ``(n,)``.

    ``row`` is the row's index in the view. ``saving_low`` and ``saving_high`` are the ends of the
    interval that the samples leave for the stall time, in ns, which one base page of the row saves
    per ns of latency; ``served`` is ``saving_high`` of all its pages. A move costs ``cost`` ns.
    Rows with ``enough_samples`` may be promoted.
    """

    row: Int64s
    tier: Int8s
    size: Int64s
    saving_low: Float64s
    saving_high: Float64s
    served: Float64s
    cost: Float64s
    enough_samples: Bools


class Competition(NamedTuple):
    """Rows of :class:`PageValues` that compete for a tier, and what each gains or loses, in ns."""

    promotable: Int64s
    gain: Float64s
    resident: Int64s
    loss: Float64s


@kernel
def value_pages(
    rows: ValueColumns,
    seconds: Float64s,
    move_ns: Float64s,
    confidence: float,
    samples_min: float,
    into: PageValues,
) -> int:
    """Fill ``into`` with the movable rows; return how many there are.

    A page saves ``seconds`` of its accesses, by process. ``move_ns`` is the cost of a move by wear,
    shape ``(256,)``.
    """
    end, half = 0, confidence / 2.0
    for row in range(len(rows.tier)):
        if rows.tier[row] < 0:
            continue
        support, size = np.float64(rows.support[row]), np.int64(rows.size[row])
        root = np.sqrt(support + ANSCOMBE)
        each = np.float64(rows.rate[row]) * seconds[rows.process[row]]
        each = each / max(support, _MIN_SAMPLES)
        below = max(root - half, 0.0)
        high = each * ((root + half) * (root + half)) if support > 0.0 else 0.0
        into.row[end], into.tier[end], into.size[end] = row, rows.tier[row], size
        into.saving_low[end], into.saving_high[end] = each * (below * below), high
        into.served[end], into.cost[end] = high * size, move_ns[rows.wear[row]]
        into.enough_samples[end] = support >= samples_min
        end += 1
    return end


@kernel
def find_competition(
    tier: int, wanted: Int8s, values: PageValues, latency_ns: Float64s, into: Competition
) -> tuple[int, int]:
    """Fill the rows whose promotion to a tier gains, and all that are wanted there.

    ``wanted`` is the tier of each row so far, ``latency_ns`` that of each tier. Returns the numbers
    of both.
    """
    promotable = resident = 0
    lost_ns = latency_ns[tier + 1] - latency_ns[tier]
    for at in range(len(wanted)):
        if wanted[at] == tier:
            into.resident[resident] = at
            into.loss[resident] = values.saving_high[at] * lost_ns + values.cost[at]
            resident += 1
        elif wanted[at] > tier and values.enough_samples[at]:
            nearer_ns = latency_ns[values.tier[at]] - latency_ns[tier]
            gain = values.saving_low[at] * nearer_ns - values.cost[at]
            if gain > 0.0:
                into.promotable[promotable], into.gain[promotable] = at, gain
                promotable += 1
    return promotable, resident


def paying_pairs(
    gain: Values, size: Rows, loss: Values, freed_size: Rows, room: int
) -> tuple[Rows, Rows]:
    """Return the rows to promote, best first, and those to demote for them, least loss first.

    Rows have a ``gain`` and a ``size`` in pages; those that may be demoted a ``loss`` and a
    ``freed_size``. ``room`` is how many pages fit without a demotion; below 0, so many are demoted
    in any case. A row is promoted if its gain exceeds the loss of the last row that is demoted for
    it.
    """
    order = np.arange(len(gain))
    if (gain[1:] > gain[:-1]).any():  # rows that come in order need not be sorted again
        order = rising_rows(-gain)
        gain = gain[order]
    # A loss above the best gain never pays: there is no need to sort it.
    near = np.arange(len(loss))
    if room >= 0:
        near = np.flatnonzero(loss < (gain[0] if len(gain) else 0.0))
    demoted = near[rising_rows(loss[near])]
    loss, freed = loss[demoted], np.cumsum(freed_size[demoted])
    needed = np.cumsum(size[order]) - max(room, 0)
    price = np.where(needed > 0, np.append(loss, np.inf)[np.searchsorted(freed, needed)], 0.0)
    stop = np.flatnonzero(gain <= price)
    count = int(stop[0]) if len(stop) else len(order)
    needs = max(-room, 0) + (max(int(needed[count - 1]), 0) if count else 0)
    demoted = demoted[: int(np.searchsorted(freed, needs)) + 1] if needs else demoted[:0]
    return order[:count], demoted


def _falling_rows(value: Values) -> Rows:
    """Return the rows by falling value; equal ones in row order."""
    # A stable argsort is one pass over what is nearly sorted.
    near = rising_rows(-value)
    return near[np.argsort(-value[near], kind="stable")]


class SavingsLedger:
    """The movable pages, shape ``(n,)``, and the tier on which each is ``wanted`` so far.

    ``value`` is the stall time, in ns, that a page on that tier saves per nanosecond of latency,
    from now until its heat ends.
    """

    def __init__(
        self, pages: PageView, columns: ValueColumns, terms: MoveTerms, seconds: Values
    ) -> None:
        """Begin with every page wanted where it is.

        ``columns`` are of rows of ``pages``, with the rates that they are expected to have;
        they save ``seconds`` of their accesses, by process.
        """
        self._pages = count = len(columns.tier)
        whole, real = np.empty((2, count), np.int64), np.empty((4, count))
        tier, known = np.empty(count, np.int8), np.empty(count, np.bool_)
        into = PageValues._make([whole[0], tier, whole[1], *real, known])
        move_ns = terms.move_ns * PAGE_MOVE_COST * WEAR_COST
        count = value_pages(columns, seconds, move_ns, terms.confidence, terms.samples_min, into)
        self._values = values = PageValues._make(column[:count] for column in into)
        self.wanted = values.tier.copy()
        self._unshown = (pages.unshown.accesses * seconds[:, None]).sum(axis=0)
        self._all_served = float(values.served.sum() + self._unshown.sum())
        self.value = values.saving_high.copy()
        self._demoted_for_bandwidth = np.zeros(count, np.bool_)

    def tier_shares(self, nodes: Nodes) -> list[float]:
        """Return the share of all accesses that each tier serves."""
        shown = np.bincount(self._values.tier, self._values.served, nodes.tiers)
        served = shown + nodes.tier_sums(self._unshown)
        shares: list[float] = (served / max(float(served.sum()), _MIN_SAMPLES)).tolist()
        return shares

    def promote_paying(
        self, tier: int, latency: Values, room: int, max_share: float, max_pages: float = np.inf
    ) -> int:
        """Select the pages whose promotion to a tier with ``room`` pays; return how many.

        They are promoted in falling order of what they save, and resident pages demoted in rising
        order of what they lose, until the promoted pages have the share ``max_share`` of all
        accesses, or are ``max_pages``.
        """
        values, rows = self._values, len(self.wanted)
        number, real = np.empty((2, rows), np.int64), np.empty((2, rows))
        found = Competition(number[0], real[0], number[1], real[1])
        promotable, resident = find_competition(tier, self.wanted, values, latency, found)
        order = _falling_rows(found.gain[:promotable])
        row, gain = found.promotable[order], found.gain[order]
        share = np.cumsum(values.served[row])
        fit = np.searchsorted(share, max_share * self._all_served, side="right")
        fit = min(fit, np.searchsorted(np.cumsum(values.size[row]), max_pages, side="right"))
        row, gain = row[:fit], gain[:fit]
        displaced = found.resident[:resident]
        promoted, demoted = paying_pairs(
            gain,
            values.size[row],
            found.loss[:resident],
            values.size[displaced],
            room,
        )
        promoted, demoted = row[promoted], displaced[demoted]
        self.wanted[promoted] = tier
        self.wanted[demoted] = tier + 1
        self.value[promoted] = values.saving_low[promoted]
        return len(promoted)

    def demote_for_bandwidth(self, tier: int, latency: Values, share: float) -> int:
        """Select pages with this share of all accesses to go one tier lower; return how many.

        The hottest take the most load off a tier for the fewest moves; each must save more than it
        costs.
        """
        if share <= 0:
            return 0
        values = self._values
        stays = (self.wanted == tier) & (values.tier == tier) & values.enough_samples
        rows = np.flatnonzero(stays)
        saved = values.saving_low[rows] * (latency[tier] - latency[tier + 1])
        rows = rows[saved > values.cost[rows]]
        rows = rows[np.argsort(-values.saving_high[rows], kind="stable")]
        served = np.cumsum(values.served[rows])
        rows = rows[: int(np.searchsorted(served, share * self._all_served, side="right"))]
        self.wanted[rows] = tier + 1
        self._demoted_for_bandwidth[rows] = True
        return len(rows)

    def competing_rows(self) -> Rows:
        """Return the rows of the view whose promotion pays; where none does, all that could be."""
        values = self._values
        promoted = self.wanted < values.tier
        if not promoted.any():
            promoted = (values.tier > 0) & values.enough_samples
        return values.row[promoted]

    def request(self) -> TierRequest:
        """Return the wanted tiers by the rows of the view."""
        tier = np.full(self._pages, -1, np.int8)
        key = np.zeros(self._pages, np.float32)
        must = np.zeros(self._pages, np.bool_)
        rows = self._values.row
        tier[rows], key[rows], must[rows] = self.wanted, self.value, self._demoted_for_bandwidth
        return TierRequest(tier, key, must)
