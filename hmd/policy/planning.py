# SPDX-License-Identifier: MIT
"""The plan builder: which pages move, in which order, within free memory and budget.

:func:`build_plan` takes the wanted tier and the key of each page from any policy; it gives a plan
in which every move finds free memory when its turn comes, in few phases. About 0.3 µs per move.

:func:`arrange` precedes a promotion by the demotions that make its room and by no others; a
demotion likewise where the tier below is full. No group of processes comes to have more of the
fastest tier than its maximum, or less than its minimum. That order alternates: one page down, one
page up. One call of move_pages(2) moves pages to one node, and each call walks all CPUs to drain
their LRU caches; thousands of calls of one page would cost many times their copies. So
:func:`order_in_phases` gathers moves into groups, all demotions of a group before its promotions.

:func:`idle_pages` plans page-out for every policy, if a time is configured: the pages of the
slowest tier that were idle the longest. About 10 ns per page.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import Bools, Float32s, Int64Plane, Int64s, inline, kernel
from hmd.base.units import PAGE_BYTES
from hmd.heat.view import PageView
from hmd.policy.fast_limits import groups_of, within_limits
from hmd.policy.nodes import Nodes
from hmd.policy.plan import MachineView, Plan, TierRequest, moves_of

_DONE: Final = 0
_NO_ROOM: Final = 1
_NO_BUDGET: Final = 2
_ANY: Final = -1
_NONE: Final = -1


class CandidatePages(NamedTuple):
    """The pages that may move, columns of shape ``(rows,)``.

    Pages of ``size`` base pages of a ``group``, on node ``source``, that go to ``tier``: first the
    promotions, the most valuable first, then the pages that may be demoted, by rising ``key``. A
    promotion without ``displaces`` takes only room that is free.
    """

    size: Int64s
    source: Int64s
    tier: Int64s
    group: Int64s
    key: Float32s
    displaces: Bools


class Demotions(NamedTuple):
    """The pages that may be demoted from each tier of each group, shape ``(tiers, groups)``.

    They are the rows from ``begin`` to ``end`` (exclusive), of which the first ``must`` are demoted
    in any case, the others where room is needed.
    """

    begin: Int64Plane
    must: Int64Plane
    end: Int64Plane


class NodeRoom(NamedTuple):
    """The nodes: the ``tier`` of each, and how many pages it can take, shape ``(nodes,)``.

    ``near`` has for each node all nodes by distance. ``relieve``, shape ``(tiers,)``, marks tiers
    to be brought back to their headroom first. ``room`` is left as it is after the moves.
    """

    tier: Int64s
    room: Int64s
    near: Int64Plane
    relieve: Bools


class FastShares(NamedTuple):
    """Pages by group, ``(groups,)``: of the fastest tier now, at least, at most; to promote."""

    used: Int64s
    least: Int64s
    most: Int64s
    budget: Int64s


class _Bounds(NamedTuple):
    """What the moves do not change: columns of the bundles above."""

    end: Int64Plane
    near: Int64Plane
    node_tier: Int64s
    least: Int64s
    most: Int64s


class _State(NamedTuple):
    """What each move changes.

    ``next_down`` is the next row to demote, shape ``(tiers, groups)``; ``progress`` the number of
    moves and the pages left of the budget; ``row`` and ``target`` are the moves; ``stack`` are rows
    that wait for room.
    """

    next_down: Int64Plane
    room: Int64s
    used: Int64s
    progress: Int64s
    row: Int64s
    target: Int64s
    stack: Int64s


@inline
def _node_with_room(
    tier: int, row: int, rows: CandidatePages, bounds: _Bounds, room: Int64s
) -> int:
    """Return the node of a tier that is nearest to a page and has room for it, or ``_NONE``."""
    near = bounds.near
    for rank in range(near.shape[1]):
        target = near[rows.source[row], rank]
        if bounds.node_tier[target] == tier and room[target] >= rows.size[row]:
            return int(target)
    return _NONE


@inline
def _coldest(
    tier: int, only: int, promoted: int, rows: CandidatePages, bounds: _Bounds, state: _State
) -> int:
    """Take the coldest page that may be demoted from a tier, or ``_NONE``.

    It is of the group ``only``, or of any, and its group keeps its least without it. ``promoted``
    is the page that it makes room for, or ``_NONE``; it counts as promoted already.
    """
    end, next_down = bounds.end, state.next_down
    best = _NONE
    for group in range(next_down.shape[1]):
        if (only >= 0 and group != only) or next_down[tier, group] >= end[tier, group]:
            continue
        row = next_down[tier, group]
        if tier == 0:
            comes = rows.size[promoted] if promoted >= 0 and rows.group[promoted] == group else 0
            if state.used[group] + comes - rows.size[row] < bounds.least[group]:
                continue
        if best < 0 or rows.key[row] < rows.key[best]:
            best = row
    if best >= 0:
        next_down[tier, rows.group[best]] += 1
    return best


@inline
def _move(row: int, only: int, rows: CandidatePages, bounds: _Bounds, state: _State) -> int:
    """Move ``row``, after the moves that make its room; return ``_DONE`` or why not.

    A page waits for one that goes to a slower tier still: ``stack`` is no deeper than there are
    tiers. On the fastest tier it displaces pages of the group ``only``, or of any.
    """
    node_tier, tiers = bounds.node_tier, len(bounds.end)
    room, progress, stack = state.room, state.progress, state.stack
    promoted = row if rows.tier[row] == 0 else _NONE
    depth = 1
    stack[0] = row
    while depth:
        row = stack[depth - 1]
        size, source, tier = rows.size[row], rows.source[row], rows.tier[row]
        target = _node_with_room(tier, row, rows, bounds, room)
        if target < 0:
            down = _coldest(tier, only if tier == 0 else _ANY, promoted, rows, bounds, state)
            if down >= 0:
                stack[depth] = down
                depth += 1
                continue
            # None is demoted from there, but some may be promoted once this page has made room: it
            # takes a tier that is lower still, and a later plan brings it back.
            while target < 0 and node_tier[source] < tier < tiers - 1:
                tier += 1
                target = _node_with_room(tier, row, rows, bounds, room)
            if target < 0:
                return _NO_ROOM
        if size > progress[1]:
            return _NO_BUDGET
        room[target] -= size
        room[source] += size
        if node_tier[target] == 0:
            state.used[rows.group[row]] += size
        if node_tier[source] == 0:
            state.used[rows.group[row]] -= size
        state.row[progress[0]], state.target[progress[0]] = row, target
        progress[0] += 1
        progress[1] -= size
        depth -= 1
    return _DONE


@inline
def _promote(row: int, rows: CandidatePages, bounds: _Bounds, state: _State) -> int:
    """Promote a page; where its group has its most, pages of that group make room."""
    group = rows.group[row]
    if rows.tier[row] > 0:
        return _move(row, _ANY, rows, bounds, state)
    while state.used[group] + rows.size[row] > bounds.most[group]:
        down = _coldest(0, group, row, rows, bounds, state)
        if down < 0:
            return _NO_ROOM
        result = _move(down, _ANY, rows, bounds, state)
        if result != _DONE:
            return result
    return _move(row, _ANY, rows, bounds, state)


@inline
def _is_short(tier: int, bounds: _Bounds, room: Int64s) -> bool:
    """Return whether a tier has less free than its headroom."""
    free = np.int64(0)
    for node in range(len(room)):
        if bounds.node_tier[node] == tier:
            free += room[node]
    return bool(free < 0)


@inline
def _demote_first(
    demotions: Demotions, relieve: Bools, rows: CandidatePages, bounds: _Bounds, state: _State
) -> None:
    """Demote what must go, then what brings tiers to relieve back to their headroom."""
    begin, must, _ = demotions
    tiers, groups = begin.shape
    for tier in range(tiers - 1):
        for group in range(groups):
            stop = begin[tier, group] + must[tier, group]
            while state.next_down[tier, group] < stop:
                row = _coldest(tier, group, _NONE, rows, bounds, state)
                if row < 0 or _move(row, _ANY, rows, bounds, state) != _DONE:
                    break
        while relieve[tier] and _is_short(tier, bounds, state.room):
            row = _coldest(tier, _ANY, _NONE, rows, bounds, state)
            if row < 0 or _move(row, _ANY, rows, bounds, state) != _DONE:
                break


@inline
def _copy(values: Int64s, into: Int64s) -> None:
    """Copy a few numbers: a loop, since numba's slice assignment costs more than a move."""
    for index in range(len(values)):
        into[index] = values[index]


@kernel
def arrange(
    promotions: int,
    rows: CandidatePages,
    demotions: Demotions,
    nodes: NodeRoom,
    shares: FastShares,
    budget_pages: int,
    moved: Int64s,
    target: Int64s,
) -> int:
    """Fill ``moved`` with rows, in the order in which to move them, and ``target`` with nodes.

    The first ``promotions`` rows are promoted, as far as room, shares and budget go. Returns the
    number of moves.
    """
    bounds = _Bounds(demotions.end, nodes.near, nodes.tier, shares.least, shares.most)
    room, next_down, used = nodes.room, demotions.begin.copy(), shares.used.copy()
    progress, group_budget = np.array([0, budget_pages], np.int64), shares.budget.copy()
    stack = np.empty(len(next_down) + 1, np.int64)
    state = _State(next_down, room, used, progress, moved, target, stack)
    _demote_first(demotions, nodes.relieve, rows, bounds, state)
    next_flat = next_down.reshape(-1)
    room_before, next_before, used_before = room.copy(), next_flat.copy(), used.copy()
    # Pages of this size found no room on the tier: larger ones need not try.
    refused = np.full((len(next_down), len(used)), np.iinfo(np.int64).max, np.int64)
    for row in range(promotions):
        tier, group = rows.tier[row], rows.group[row]
        if rows.size[row] >= refused[tier, group] or rows.size[row] > group_budget[group]:
            continue
        if not rows.displaces[row] and _node_with_room(tier, row, rows, bounds, room) < 0:
            continue
        _copy(room, room_before)
        _copy(next_flat, next_before)
        _copy(used, used_before)
        before, left = progress[0], progress[1]
        result = _promote(row, rows, bounds, state)
        if result == _DONE:
            group_budget[group] -= rows.size[row]
            continue
        lacks = used[group] < min(used_before[group], shares.least[group])
        # Room made for a page that is larger than a tick's budget serves the next tick.
        if result == _NO_ROOM or before > 0 or lacks:
            _copy(room_before, room)
            _copy(next_before, next_flat)
            _copy(used_before, used)
            progress[0], progress[1] = before, left
        if result == _NO_BUDGET:
            break
        refused[tier, group] = rows.size[row]
    return int(progress[0])


@inline
def _turn(source_tier: int, target_tier: int, tiers: int) -> int:
    """Return when in its group a move is made: out of the slowest tiers first, then upwards."""
    if target_tier > source_tier:
        return tiers - 1 - source_tier
    return tiers + target_tier


@kernel
def order_in_phases(
    size: Int64s,
    source: Int64s,
    target: Int64s,
    node_tier: Int64s,
    tiers: int,
    room: Int64s,
    order: Int64s,
) -> None:
    """Fill ``order`` with the moves by groups; moves of one turn of a group keep their order.

    Moves of ``size`` pages from node ``source`` to node ``target`` are given in an order in which
    each finds room. ``room`` is how many pages each node can take before them, and is left as it is
    after them. A group is as long as can be: within one, what leaves a node downwards does so
    before anything comes, so that only its sums have to fit.
    """
    room_down, room_up = room.copy(), room.copy()
    begin = 0
    ordered = 0
    while begin < len(size):
        end = begin
        room_down[:], room_up[:] = room, room
        while end < len(size):
            here, there, pages = source[end], target[end], size[end]
            down = node_tier[there] > node_tier[here]
            free = min(room_down[there], room_up[there]) if down else room_up[there]
            if free < pages and end > begin:
                break
            # A promoted page leaves its node only after all demoted ones have come there.
            if down:
                room_down[here] += pages
                room_down[there] -= pages
            room_up[here] += pages
            room_up[there] -= pages
            end += 1
        for turn in range(2 * tiers):
            for move in range(begin, end):
                if _turn(node_tier[source[move]], node_tier[target[move]], tiers) == turn:
                    order[ordered] = move
                    ordered += 1
        room[:] = room_up
        begin = end


def phase_numbers(
    source: npt.NDArray[np.integer], target: npt.NDArray[np.integer]
) -> npt.NDArray[np.int32]:
    """Return the phase of each move, rising from 0; all columns have shape ``(n,)``.

    Moves are given in an order in which each finds room. A move into a node that earlier moves of
    its phase leave may need the room that they make, so it begins the next phase.
    """
    if not len(source):
        return np.zeros(0, np.int32)
    # Runs of moves between the same two nodes: there are few of them.
    turns = np.flatnonzero((np.diff(source) != 0) | (np.diff(target) != 0)) + 1
    starts = np.concatenate((np.zeros(1, np.intp), turns))
    phase = np.zeros(len(starts), np.int32)
    left: set[int] = set()
    current = 0
    runs = zip(source[starts].tolist(), target[starts].tolist(), strict=True)
    for run, (from_node, to_node) in enumerate(runs):
        if to_node in left:
            current += 1
            left.clear()
        left.add(from_node)
        phase[run] = current
    return np.repeat(phase, np.diff(starts, append=len(source)))


OUT: Final = -1
"""In place of a node: swap, zram, or the file that backs the page."""

Rows = npt.NDArray[np.int64]


def build_plan(pages: PageView, nodes: Nodes, request: TierRequest, budget_bytes: int) -> Plan:
    """Return the plan that brings pages to the requested tiers, within budget and all limits."""
    groups = groups_of(pages, nodes)
    limited, due = within_limits(pages, nodes, groups, request)
    rows = np.flatnonzero(pages.movable & (limited.tier >= 0) & (limited.tier != pages.tier))
    moving = pages.take(rows)
    source_tier, tier = pages.tier[rows].astype(np.int64), limited.tier[rows].astype(np.int64)
    key = np.maximum(request.key[rows], 0)
    group = groups.of_process[moving.process]
    must = np.zeros(len(rows), np.bool_) if limited.must is None else limited.must[rows]

    promoted = np.flatnonzero(tier < source_tier)
    promoted = promoted[rising_rows(-key[promoted])]
    if due.any():  # what is guaranteed comes before what pays
        promoted = promoted[np.argsort(~due[rows[promoted]], kind="stable")]
    # Demotions by tier and group: first those that must be made, then by rising key.
    demoted = np.flatnonzero((tier > source_tier) & (source_tier >= 0))
    demoted = demoted[rising_rows(key[demoted])]
    shape = (nodes.tiers, len(groups.held))
    part = source_tier * len(groups.held) + group
    demoted = demoted[np.argsort(2 * part[demoted] + ~must[demoted], kind="stable")]
    length = np.bincount(part[demoted], minlength=shape[0] * shape[1])
    musts = np.bincount(part[demoted[must[demoted]]], minlength=len(length))
    end = len(promoted) + np.cumsum(length)
    demotions = Demotions(*(each.reshape(shape) for each in (end - length, musts, end)))

    order = np.concatenate([promoted, demoted])
    rows, key, tier = rows[order], key[order], tier[order]
    worth = np.zeros(nodes.tiers) if request.worth is None else request.worth
    displaces = (key >= worth[tier]) | due[rows]
    candidates = CandidatePages(
        moving.size[order], moving.node[order], tier, group[order], key, displaces
    )
    shares = FastShares(groups.held, groups.least, groups.most, groups.budget)
    count = len(order)
    row, target = np.empty(count, np.int64), np.empty(count, np.int64)
    count = arrange(
        len(promoted),
        candidates,
        demotions,
        NodeRoom(nodes.tier, nodes.room.copy(), nodes.near, nodes.relieve),
        shares,
        budget_bytes // PAGE_BYTES,
        row,
        target,
    )
    row, target = row[:count], target[:count]
    source, in_turn = candidates.source[row], np.empty(count, np.int64)
    order_in_phases(
        candidates.size[row], source, target, nodes.tier, nodes.tiers, nodes.room.copy(), in_turn
    )
    row, source, target = row[in_turn], source[in_turn], target[in_turn]
    return moves_of(pages.processes, moving, order[row], target, phase_numbers(source, target))


def rising_rows(value: npt.NDArray[np.floating]) -> Rows:
    """Return the rows by rising value, to the precision of float32; equal ones in row order."""
    # Bits and row in one integer sort several times faster than a stable argsort.
    bits = value.astype(np.float32).view(np.int32)
    # Of negative numbers, the bits after the sign fall as the number rises.
    keys = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(np.int64)
    both: Rows = np.sort(keys << 32 | np.arange(len(value), dtype=np.int64))
    return both & 0xFFFFFFFF


def idle_pages(
    pages: PageView, machine: MachineView, idle_s: npt.NDArray[np.float64], max_bytes: int
) -> Plan:
    """Return up to ``max_bytes`` of pages that were not sampled for ``idle_s``, to go ``OUT``.

    ``idle_s`` is that of each process, shape ``(processes,)``. Only movable pages of the slowest
    tier. The idle time of a new page starts when it appears.
    """
    slowest = len(machine.topology.tiers) - 1
    if slowest < 0:
        return Plan.empty(pages.processes)
    ticks = pages.idle_ticks
    long = ticks >= np.maximum(idle_s / machine.tick_s, 1.0)[pages.process]
    rows = np.flatnonzero(long & pages.movable & (pages.tier == slowest))
    rows = rows[np.argsort(-ticks[rows], kind="stable")]
    fits = np.cumsum(pages.size[rows], dtype=np.int64) <= min(max_bytes, 1 << 62) // PAGE_BYTES
    out = pages.take(rows[fits])
    return moves_of(pages.processes, out, np.arange(len(out.size)), np.full(len(out.size), OUT))
