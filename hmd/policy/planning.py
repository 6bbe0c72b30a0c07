# SPDX-License-Identifier: MIT
"""The plan builder: which pages move, in which order, within free memory and budget.

:func:`build_plan` takes the wanted tier and the key of each page from any policy; it gives a plan
in which every move finds free memory when its turn comes. About 0.3 µs per move.

:func:`idle_pages` plans page-out for every policy, if a time is configured: the pages of the
slowest tier that were idle the longest. About 10 ns per page.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.heat.view import PageView
from hmd.policy.fast_limits import groups_of, within_limits
from hmd.policy.move_order import (
    CandidatePages,
    Demotions,
    FastShares,
    NodeRoom,
    OrderedMoves,
    PlacedMoves,
    arrange,
    order_in_phases,
    phase_numbers,
)
from hmd.policy.nodes import Nodes
from hmd.policy.plan import MachineView, Plan, TierRequest, moves_of

OUT: Final = -1
"""In place of a node: swap, zram, or the file that backs the page."""

Rows = npt.NDArray[np.int64]


def build_plan(pages: PageView, nodes: Nodes, request: TierRequest, budget_bytes: int) -> Plan:
    """Return the plan that brings pages to the requested tiers, within all limits.

    No move that the budget does not cover is planned.
    """
    groups = groups_of(pages, nodes)
    limited = within_limits(pages, nodes, groups, request)
    rows = np.flatnonzero(pages.movable & (limited.tier >= 0) & (limited.tier != pages.tier))
    moving = pages.take(rows)
    source_tier, tier = pages.tier[rows].astype(np.int64), limited.tier[rows].astype(np.int64)
    key = np.maximum(request.key[rows], 0)
    group, must = groups.of_process[moving.process], limited.must[rows]

    promoted = np.flatnonzero(tier < source_tier)
    promoted = promoted[rising_rows(-key[promoted])]
    # Demotions by tier and group: first those that must be made, then by rising key.
    demoted, musts = [], []
    for from_tier in range(nodes.tiers):
        for one in range(len(groups.held)):
            part = np.flatnonzero(
                (tier > source_tier) & (source_tier == from_tier) & (group == one)
            )
            part = part[rising_rows(key[part])]
            first = must[part]
            demoted.append(np.concatenate([part[first], part[~first]]))
            musts.append(int(np.count_nonzero(first)))
    shape = (nodes.tiers, len(groups.held))
    length = np.array([len(part) for part in demoted], np.int64)
    end = len(promoted) + np.cumsum(length)
    demotions = Demotions(
        (end - length).reshape(shape), np.array(musts, np.int64).reshape(shape), end.reshape(shape)
    )

    order = np.concatenate([promoted, *demoted])
    rows, key, tier = rows[order], key[order], tier[order]
    worth = np.zeros(nodes.tiers) if request.worth is None else request.worth
    displaces = (key >= worth[tier]) | limited.due[rows]
    candidates = CandidatePages(
        moving.size[order], moving.node[order], tier, group[order], key, displaces
    )
    shares = FastShares(groups.held, groups.least, groups.most)
    row, target, phase = _in_order(
        len(promoted), candidates, demotions, nodes, shares, budget_bytes // PAGE_BYTES
    )
    return moves_of(pages.processes, moving, order[row], target, phase)


def _in_order(
    promotions: int,
    candidates: CandidatePages,
    demotions: Demotions,
    nodes: Nodes,
    shares: FastShares,
    budget_pages: int,
) -> tuple[Rows, Rows, npt.NDArray[np.int32]]:
    """Return the moves in the order in which to make them: row, target node and phase."""
    count = len(candidates.size)
    moves = OrderedMoves(np.empty(count, np.int64), np.empty(count, np.int64))
    room = NodeRoom(nodes.tier, nodes.room.copy(), nodes.near, nodes.relieve)
    count = arrange(promotions, candidates, demotions, room, shares, budget_pages, moves)
    row, target = moves.row[:count], moves.target[:count]
    source = candidates.source[row]
    placed = PlacedMoves(candidates.size[row], source, target)
    order = np.empty(count, np.int64)
    order_in_phases(placed, nodes.tier, nodes.tiers, nodes.room.copy(), order)
    return row[order], target[order], phase_numbers(source[order], target[order])


def rising_rows(value: npt.NDArray[np.floating]) -> Rows:
    """Return the rows by rising value, to the precision of float32; equal ones in row order.

    The bits of a value and its row in one integer sort several times faster than a stable argsort.
    """
    bits = value.astype(np.float32).view(np.int32)
    # Of negative numbers, the bits after the sign fall as the number rises.
    keys = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(np.int64)
    both: Rows = np.sort(keys << 32 | np.arange(len(value), dtype=np.int64))
    return both & 0xFFFFFFFF


def idle_pages(pages: PageView, machine: MachineView, idle_s: float, max_bytes: int) -> Plan:
    """Return up to ``max_bytes`` of pages that were not sampled for ``idle_s``, to go ``OUT``.

    Only movable pages of the slowest tier. The idle time of a new page starts when it appears.
    """
    slowest = len(machine.topology.tiers) - 1
    if slowest < 0:
        return Plan.empty(pages.processes)
    ticks = pages.idle_ticks
    long = ticks >= max(idle_s / machine.tick_s, 1.0)
    rows = np.flatnonzero(long & pages.movable & (pages.tier == slowest))
    rows = rows[np.argsort(-ticks[rows], kind="stable")]
    fits = np.cumsum(pages.size[rows], dtype=np.int64) <= min(max_bytes, 1 << 62) // PAGE_BYTES
    out = pages.take(rows[fits])
    return moves_of(pages.processes, out, np.arange(len(out.size)), np.full(len(out.size), OUT))
