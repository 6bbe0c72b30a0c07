"""A plan out of what is wanted where: which pages move, in which order, how far room and budget go.

Takes a tier and a key for each page, from any policy; gives a plan in which every move finds room
when its turn comes. About 0.3 µs a move.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.decide.fast_limits import Wanted, groups_of, within_limits
from hmd.decide.hottest_fit import collect
from hmd.decide.move_order import Demotions, FastShares, Movers, NodeRoom, OrderedMoves, arrange
from hmd.decide.move_phases import PlacedMoves, in_rounds, phase_numbers
from hmd.decide.node_arrays import Nodes
from hmd.decide.plan import Plan
from hmd.decide.plan_rows import moves_of
from hmd.heat.geometry import CHUNK_PAGES
from hmd.heat.heat_table import HeatTable
from hmd.units import PAGE_BYTES


def placing(
    heat: HeatTable,
    nodes: Nodes,
    wanted: npt.NDArray[np.int8],
    key: npt.NDArray[np.float32],
    worth: npt.NDArray[np.float64],
    rate: npt.NDArray[np.float32],
    budget_bytes: int,
    *,
    must: npt.NDArray[np.bool_] | None = None,
    fills: bool = False,
) -> Plan:
    """Return the plan that brings pages to the tiers where they are wanted, within all limits.

    ``wanted``, ``key``, ``rate`` and ``must`` have shape ``(chunks, 512)``; of a huge page the
    first counts. ``wanted`` is a tier, -1 for pages that stay. Pages go up in falling order of
    ``key`` (at least 0), and down, as far as room is needed, in rising order; those that ``must``
    go down do so first, needed or not. A page displaces others of the tier where it goes only if
    its key is at least ``worth`` of that tier, shape ``(tiers,)``. ``rate`` is what the plan tells
    as its pages' heat. Moves are within ``budget_bytes``. ``fills`` says that as many pages are
    wanted on the fastest tier as fit (see :mod:`hmd.decide.fast_limits`).
    """
    columns, groups = heat.chunks.columns, groups_of(heat, nodes)
    forced = np.zeros(wanted.shape, np.bool_) if must is None else must
    want = Wanted(wanted, forced, np.zeros_like(forced))
    want = within_limits(heat, nodes, groups, want, key, rate, fills=fills)
    page = _movers(heat, nodes, want.tier)
    source = columns.node.reshape(-1)[page].astype(np.int64)
    here, goal = nodes.tier[source], want.tier.reshape(-1)[page].astype(np.int64)
    heats = np.maximum(key.reshape(-1)[page], 0)
    shape = (nodes.tiers, len(groups.held))
    group = groups.of_process[columns.process[page // CHUNK_PAGES]]
    parts = _parts(here, goal, heats, group, want.must.reshape(-1)[page], *shape)
    ordered = np.concatenate([parts.rising, *parts.falling])
    page, heats, source, goal = page[ordered], heats[ordered], source[ordered], goal[ordered]
    size = np.where(columns.huge[page // CHUNK_PAGES], CHUNK_PAGES, 1).astype(np.int64)
    displaces = (heats >= worth[goal]) | want.due.reshape(-1)[page]
    movers = Movers(size, source, goal, group[ordered], heats, displaces)
    demotions = _demotions(parts, shape)
    shares = FastShares(groups.held, groups.least, groups.most)
    row, target, phase = _in_order(
        len(parts.rising), movers, demotions, nodes, shares, budget_bytes // PAGE_BYTES
    )
    page = page[row]
    heat_column = rate.reshape(-1)[page]
    return moves_of(heat, page, size[row], source[row], target, heat_column, phase)


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
    in_rounds(placed, nodes.tier, nodes.tiers, nodes.room.copy(), order)
    return row[order], target[order], phase_numbers(source[order], target[order])


def _demotions(parts: _Parts, shape: tuple[int, int]) -> Demotions:
    """Return where each part that falls begins and ends among the rows; shape (tiers, groups)."""
    length = np.array([len(part) for part in parts.falling], np.int64)
    end = len(parts.rising) + np.cumsum(length)
    must = np.array(parts.must, np.int64)
    return Demotions((end - length).reshape(shape), must.reshape(shape), end.reshape(shape))


@dataclass(frozen=True, slots=True)
class _Parts:
    """Rows that rise, the most valuable first, and those that fall, by tier and group.

    Of each part that falls the first ``must`` rows go in any case.
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
    """Return the rows in order of heat, up or down (``sign``), equals as they come.

    Heats are not negative, so that their bits sort as they do. Bits and row in one integer sort
    several times faster than a stable argsort.
    """
    bits = heats.view(np.int32).astype(np.int64) * sign
    rows = np.arange(len(heats), dtype=np.int64)
    both: npt.NDArray[np.int64] = np.sort(bits << 32 | rows)
    return both & 0xFFFFFFFF


def _movers(heat: HeatTable, nodes: Nodes, wanted: npt.NDArray[np.int8]) -> npt.NDArray[np.int64]:
    """Return the pages that are not where they are wanted, numbered as by ``collect``."""
    columns, room = heat.chunks.columns, 1 << 14
    while True:
        movers = np.empty(room, np.int64)
        found = collect(heat.chunks.used, columns.huge, columns.node, wanted, nodes.tier, movers)
        if found <= room:
            return movers[:found]
        room = found
