# SPDX-License-Identifier: MIT
"""Moves by what former runs of a program tell, beside those by this run's samples.

A policy decides first. Then pages that it leaves where they are may change places by the rates that
former runs give them (:mod:`hmd.profiles.prior`). So a profile changes no price of the policy's
moves, and takes no place from a page with samples.

What these moves bring is counted: samples on pages that they promoted save time, those on pages
that they demoted lose it, and moves cost. No more may be spent than ``START_SHARE`` of a run's time
and what was earned, so that a profile that does not pay costs little, once. About 100 ns per page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hmd.base.units import PAGE_MOVE_COST
from hmd.heat.page_state import PageState
from hmd.policy.plan import MachineView, TierRequest
from hmd.policy.saving import MoveTerms, SavingsLedger, ValueColumns, Values
from hmd.profiles.prior import expect

if TYPE_CHECKING:
    from hmd.heat.view import PageView

_NO_LIMIT: Final = 2.0
_S_PER_NS: Final = 1e-9
# By how much more misses overlap than is known, which is a lower bound.
_MORE_OVERLAP: Final = 2.0
_PROMOTED, _DEMOTED = 1, -1


class FormerRunMoves:
    """Adds moves to a policy's, and keeps which pages they moved."""

    def __init__(self) -> None:
        self._moved = PageState(np.int8, 0)

    def add(
        self,
        request: TierRequest,
        pages: PageView,
        machine: MachineView,
        terms: MoveTerms,
        latency_ns: Values,
        overlap: Values,
        room: int,
    ) -> int:
        """Add the moves to the fastest tier that pay to ``request``; return how many.

        ``latency_ns`` is by tier, ``overlap`` of misses by process. The tier has ``room`` pages
        before the moves of ``request``. What moves saved and cost goes to ``machine.priors``.
        """
        tier, process, size = pages.tier, pages.process, pages.size.astype(np.int64)
        marks, at = self._moved.in_place(pages)
        overlap = overlap * _MORE_OVERLAP
        saved_s = np.zeros(len(pages.processes))
        there = np.where(marks[at] == np.where(tier == 0, _PROMOTED, _DEMOTED), marks[at], 0)
        if there.any():
            saved_s += np.bincount(process, pages.tick_samples * there, len(saved_s))
            saved_s *= pages.process_rate * machine.tick_s / np.maximum(pages.process_samples, 1)
            saved_s *= (latency_ns[1] - latency_ns[0]) * _S_PER_NS / overlap
        rate, support, ticks = expect(pages, machine.priors, machine.tick_s, saved_s)
        leaves, comes = (tier == 0) & (request.tier > 0), (tier > 0) & (request.tier == 0)
        marks[at[leaves | comes]] = 0
        known = [pages.processes[slot] for slot in np.flatnonzero(ticks)]
        if not known:
            return 0
        silent = pages.effective_samples < terms.samples_min
        free = (request.tier == tier) & (silent | (tier > 0))
        free &= ticks[process] > 0
        horizon_s = np.maximum(ticks * machine.tick_s - machine.move_delay_s, 0.0)
        from_tier = np.where(free, tier, np.int8(-1))
        columns = ValueColumns(from_tier, pages.size, pages.wear, process, rate, support)
        ledger = SavingsLedger(pages, columns, terms, horizon_s / overlap)
        room += int(size[leaves].sum() - size[comes].sum())
        move_s = terms.move_ns * PAGE_MOVE_COST * _S_PER_NS
        most = sum(machine.priors[each].credit_s for each in known) / (2 * move_s)
        count = ledger.promote_paying(0, latency_ns, max(room, 0), _NO_LIMIT, most)
        added = ledger.request()
        moved = np.flatnonzero(free & (added.tier != tier))
        request.tier[moved], request.key[moved] = added.tier[moved], added.key[moved]
        marks[at[moved]] = np.where(tier[moved] > 0, _PROMOTED, _DEMOTED)
        cost_s = np.bincount(process[moved], size[moved], len(saved_s)) * move_s
        for each in known:
            machine.priors[each].saved_s -= float(cost_s[pages.processes.index(each)])
        return count
