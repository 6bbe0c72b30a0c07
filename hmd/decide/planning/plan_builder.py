"""The plan builder: which pages move, in which order, within free memory and budget.

Takes the wanted tier and the key of each page from any policy, gives a plan in which every move
finds free memory when its turn comes. About 0.3 µs per move.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.decide.node_arrays import Nodes
from hmd.decide.plan import Plan
from hmd.decide.planning.fast_limits import groups_of, within_limits
from hmd.decide.planning.move_order import (
    Demotions,
    FastShares,
    Movers,
    NodeRoom,
    OrderedMoves,
    arrange,
)
from hmd.decide.planning.move_phases import PlacedMoves, order_in_phases, phase_numbers
from hmd.decide.planning.plan_rows import moves_of
from hmd.decide.planning.wanted import Wanted
from hmd.heat.view.page_view import PageView
from hmd.units import PAGE_BYTES


def build_plan(pages: PageView, nodes: Nodes, wanted: Wanted, budget_bytes: int) -> Plan:
    """Return the plan that brings pages to the tiers where they are wanted, within all limits.

    No move that the budget does not cover is planned.
    """
    groups = groups_of(pages, nodes)
    limited = within_limits(pages, nodes, groups, wanted)
    rows = np.flatnonzero(pages.movable & (limited.tier >= 0) & (limited.tier != pages.tier))
    moving = pages.take(rows)
    here, goal = pages.tier[rows].astype(np.int64), limited.tier[rows].astype(np.int64)
    heats = np.maximum(wanted.key[rows], 0)
    shape = (nodes.tiers, len(groups.held))
    group = groups.of_process[moving.process]
    parts = _parts(here, goal, heats, group, limited.must[rows], *shape)
    ordered = np.concatenate([parts.rising, *parts.falling])
    rows, heats, goal = rows[ordered], heats[ordered], goal[ordered]
    worth = np.zeros(nodes.tiers) if wanted.worth is None else wanted.worth
    displaces = (heats >= worth[goal]) | limited.due[rows]
    size, source = moving.size[ordered], moving.node[ordered]
    movers = Movers(size, source, goal, group[ordered], heats, displaces)
    shares = FastShares(groups.held, groups.least, groups.most)
    row, target, phase = _in_order(
        len(parts.rising),
        movers,
        _demotions(parts, shape),
        nodes,
        shares,
        budget_bytes // PAGE_BYTES,
    )
    return moves_of(pages.processes, moving, ordered[row], target, phase)


def _in_order(
    promotions: int,
    movers: Movers,
    demotions: Demotions,
    nodes: Nodes,
    shares: FastShares,
    budget_pages: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return the moves in the order in which to make them: row, target node and phase."""
    most = len(movers.size)
    moves = OrderedMoves(np.empty(most, np.int64), np.empty(most, np.int64))
    room = NodeRoom(nodes.tier, nodes.room.copy(), nodes.near, nodes.relieve)
    count = arrange(promotions, movers, demotions, room, shares, budget_pages, moves)
    row, target = moves.row[:count], moves.target[:count]
    source = movers.source[row]
    placed = PlacedMoves(movers.size[row], source, target)
    order = np.empty(count, np.int64)
    order_in_phases(placed, nodes.tier, nodes.tiers, nodes.room.copy(), order)
    return row[order], target[order], phase_numbers(source[order], target[order])


def _demotions(parts: _Parts, shape: tuple[int, int]) -> Demotions:
    """Return where each part that falls begins and ends among the rows; shape (tiers, groups)."""
    length = np.array([len(part) for part in parts.falling], np.int64)
    end = len(parts.rising) + np.cumsum(length)
    must = np.array(parts.must, np.int64)
    return Demotions((end - length).reshape(shape), must.reshape(shape), end.reshape(shape))


@dataclass(frozen=True, slots=True)
class _Parts:
    """Promotions, the most valuable first, and possible demotions by tier and group.

    Of each part of demotions the first ``must`` are made in any case.
    """

    rising: npt.NDArray[np.int64]
    falling: list[npt.NDArray[np.int64]]
    must: list[int]


def _parts(
    here: npt.NDArray[np.int64],
    goal: npt.NDArray[np.int64],
    heats: npt.NDArray[np.float32],
    group: npt.NDArray[np.int64],
    must: npt.NDArray[np.bool_],
    tiers: int,
    groups: int,
) -> _Parts:
    rising = np.flatnonzero(goal < here)
    parts = _Parts(rising[_order(heats[rising], -1)], [], [])
    for tier in range(tiers):
        for one in range(groups):
            falling = np.flatnonzero((goal > here) & (here == tier) & (group == one))
            falling = falling[_order(heats[falling], 1)]
            first = must[falling]
            parts.falling.append(np.concatenate([falling[first], falling[~first]]))
            parts.must.append(int(np.count_nonzero(first)))
    return parts


def _order(heats: npt.NDArray[np.float32], sign: int) -> npt.NDArray[np.int64]:
    """Return the rows by rising (``sign`` 1) or falling (-1) heat; equal heats in row order.

    Heats are not negative, so their bits sort in the same order. Bits and row in one integer sort
    several times faster than a stable argsort.
    """
    bits = heats.view(np.int32).astype(np.int64) * sign
    rows = np.arange(len(heats), dtype=np.int64)
    both: npt.NDArray[np.int64] = np.sort(bits << 32 | rows)
    return both & 0xFFFFFFFF
