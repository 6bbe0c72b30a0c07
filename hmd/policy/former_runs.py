# SPDX-License-Identifier: MIT
"""Moves by what former runs of a program tell, beside those by this run's samples.

A policy decides first. Then pages that it leaves where they are may change places by the rates that
former runs give them (:mod:`hmd.profiles.prior`). So a profile changes no price of the policy's
moves.

What these moves bring is counted: samples on pages that they promoted save time, those on pages
that they demoted lose it, and moves cost. No more may be spent than ``START_SHARE`` of what a run's
accesses could save and what was earned, so that a profile that does not pay costs little, once.
About 30 ns per page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hmd.base.numba_kernels import Bools
from hmd.base.units import PAGE_MOVE_COST
from hmd.heat.page_state import PageState
from hmd.policy.plan import MachineView, TierRequest
from hmd.policy.saving import MoveTerms, Rows, SavingsLedger, ValueColumns, Values
from hmd.profiles.prior import Rates, expect

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
        tier, process = pages.tier, pages.process
        marks, at = self._moved.in_place(pages)
        overlap = overlap * _MORE_OVERLAP
        slower_ns = float(latency_ns.max() - latency_ns[0])
        access_s = slower_ns * _S_PER_NS / overlap
        earned, mine = np.zeros(len(overlap)), np.flatnonzero(marks[at])
        if len(mine):
            mark, now = marks[at[mine]], np.where(tier[mine] > 0, _DEMOTED, _PROMOTED)
            hits = pages.tick_samples[mine] * mark * (mark == now)
            earned += np.bincount(process[mine], hits, len(earned))
            earned *= pages.process_rate * machine.tick_s / np.maximum(pages.process_samples, 1)
        rate, support, ticks = expect(pages, machine.priors, machine.tick_s, earned, access_s)
        changed = np.flatnonzero(request.tier != tier)
        changed = changed[(tier[changed] == 0) | (request.tier[changed] == 0)]
        marks[at[changed]] = 0
        known = [pages.processes[slot] for slot in np.flatnonzero(ticks)]
        move_s = terms.move_ns * PAGE_MOVE_COST * _S_PER_NS
        most = int(sum(machine.priors[each].credit_s for each in known) / (2 * move_s))
        seconds = np.maximum(ticks * machine.tick_s - machine.move_delay_s, 0.0) / overlap
        value = rate * seconds.astype(np.float32)[process]
        free = (request.tier == tier) & (ticks > 0)[process]
        pays = value * slower_ns > terms.move_ns * PAGE_MOVE_COST
        gains = _least(-value, free & (tier > 0) & pays, most)
        if not len(gains):
            return 0
        rows = np.concatenate([gains, _least(value, free & (tier == 0), most)])
        whole = (tier, pages.size, pages.wear, process, rate, support)
        columns = ValueColumns._make(column[rows] for column in whole)
        ledger = SavingsLedger(pages, columns, terms, seconds)
        size = pages.size[changed].astype(np.int64)
        room += int(np.where(tier[changed] > 0, -size, size).sum())
        count = ledger.promote_paying(0, latency_ns, max(room, 0), _NO_LIMIT, most)
        added = ledger.request()
        here = np.flatnonzero(added.tier != columns.tier)
        moved, size = rows[here], pages.size[rows[here]].astype(np.int64)
        request.tier[moved], request.key[moved] = added.tier[here], added.key[here]
        marks[at[moved]] = np.where(tier[moved] > 0, _PROMOTED, _DEMOTED)
        cost_s = np.bincount(process[moved], size, len(earned)) * move_s
        for each in known:
            machine.priors[each].saved_s -= float(cost_s[pages.processes.index(each)])
        return count


def _least(value: Rates, among: Bools, count: int) -> Rows:
    """Return the rows of the ``count`` least values among some."""
    rows = np.flatnonzero(among)
    return rows if len(rows) <= count else rows[np.argpartition(value[rows], count)[:count]]
