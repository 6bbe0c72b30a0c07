"""When evicted parts leave and return: bookings of the links and of the room, kernel by kernel.

Slots are kernels; the step repeats, so slots wrap. Evictions fill the free bytes of their links
forward from the first slot in which they may leave. Fetches go as early as there is room.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hmd.tensors.eviction_choice import EvictedParts
from hmd.tensors.step_state import compiled
from hmd.tensors.tensor_trace import Bools, Floats, Ints


def choose_slower(
    parts: EvictedParts,
    seconds: Floats,
    rates: tuple[float, float],
    room: float,
    buffered: float,
) -> Bools:
    """Return which parts go below the second tier, (E,), so that ``room`` bytes suffice for it.

    The longest periods first, where the slower tier's link has free bytes to take the part before
    it is needed and to return it before its use; ``rates`` are its bytes per second out and in.
    What has returned early occupies the fastest tier: at first the link returns parts at most as
    early as it carries ``buffered`` bytes; then twice and four times as early, the shortest periods
    first. What does not fit then goes there without a booking.
    """
    slots = len(seconds)
    start = np.concatenate([[0.0], np.cumsum(np.tile(seconds, 3))])
    order = np.argsort(start[parts.start] - start[parts.end], kind="stable")
    change = np.zeros(3 * slots + 1)
    np.add.at(change, parts.start, parts.size.astype(np.float64))
    np.add.at(change, parts.end, -parts.size.astype(np.float64))
    held = np.cumsum(change)[: 3 * slots].reshape(3, slots).sum(axis=0)
    free = np.stack([seconds * rates[0], seconds * rates[1]])
    chosen = np.zeros(len(order), np.bool_)
    columns = (parts.start, parts.end, parts.needed, parts.size)
    for early, rows in ((1.0, order), (2.0, order[::-1]), (4.0, order[::-1]), (-1.0, order)):
        limits = (room, early * buffered / rates[1])
        _choose(rows.copy(), columns, held, free, start, limits, chosen)
    return chosen


@compiled
def _choose(
    order: Any, columns: Any, held: Any, free: Any, time: Any, limits: Any, chosen: Any
) -> None:
    start, end, needed, size = columns
    room, early = limits
    slots = len(held)
    for row in order:
        if held.max() <= room:
            return
        if chosen[row]:
            continue
        helps = False
        for slot in range(start[row], end[row]):
            if held[slot % slots] > room:
                helps = True
                break
        if not helps:
            continue
        if early >= 0:
            out, back = start[row], end[row] - 1
            amount = float(size[row])
            while out < needed[row]:
                amount -= free[0, out % slots]
                if amount <= 0:
                    break
                out += 1
            missing = float(size[row])
            while back > out and time[end[row]] - time[back + 1] <= early:
                missing -= free[1, back % slots]
                if missing <= 0:
                    break
                back -= 1
            if amount > 0 or missing > 0:
                continue
            amount = float(size[row])
            for slot in range(start[row], out + 1):
                part = min(amount, free[0, slot % slots])
                free[0, slot % slots] -= part
                amount -= part
            amount = float(size[row])
            for slot in range(end[row] - 1, back - 1, -1):
                part = min(amount, free[1, slot % slots])
                free[1, slot % slots] -= part
                amount -= part
        chosen[row] = True
        for slot in range(start[row], end[row]):
            held[slot % slots] -= size[row]


def book_departures(
    parts: EvictedParts, to_flash: Bools, seconds: Floats, rates: tuple[float, float]
) -> Ints:
    """Return the slot in which each part has left, (E,), counted as ``start`` is.

    ``rates`` are bytes per second of the shared link and of flash; ``seconds`` (K,) the lengths of
    the slots. A part that cannot leave before it is needed has left just before: its kernel waits.
    """
    free = np.stack([seconds * rates[0], seconds * rates[1]])
    order = np.argsort(parts.start, kind="stable")
    left = parts.start.copy()
    _fill((order, parts.start, parts.needed, parts.size, to_flash), free, left)
    return left


@compiled
def _fill(rows: Any, free: Any, left: Any) -> None:
    order, start, needed, size, to_flash = rows
    slots = free.shape[1]
    for row in order:
        bytes_left = float(size[row])
        link = 1 if to_flash[row] else 0
        slot = start[row]
        while True:
            at = slot % slots
            part = min(bytes_left, free[link, at], free[0, at])
            bytes_left -= part
            free[0, at] -= part
            if link == 1:
                free[1, at] -= part
            if bytes_left <= 0.5 or slot >= needed[row] - 1:
                break
            slot += 1
        left[row] = slot


def book_returns(
    parts: EvictedParts,
    left: Ints,
    to_flash: Bools,
    occupied: Floats,
    limits: tuple[Floats, float, float, float],
) -> Ints:
    """Return the slot with which each part is fetched, (E,).

    At first as late as the links permit, the last used booking first; then earlier while there is
    room, those that are used first choosing first. ``occupied`` (K,) are bytes of the fastest tier
    with every part away from ``left`` until it is used; it is updated. ``limits``: lengths of the
    slots in seconds, bytes per second of the shared link and of flash, capacity in bytes.
    """
    seconds, rate, flash_rate, capacity = limits
    slots = len(occupied)
    free = np.stack([seconds * rate, seconds * flash_rate])
    fetched = parts.end.copy()
    columns = (parts.end, parts.size, to_flash)
    # Flash first: it is the slower one, and the shared link has room for what it carries.
    latest = np.lexsort((-(parts.end % slots), ~to_flash))
    _fill_back(latest, columns, free, left, occupied, fetched)
    _advance(np.argsort(fetched % slots, kind="stable"), columns, left, occupied, capacity, fetched)
    return fetched


@compiled
def _fill_back(order: Any, columns: Any, free: Any, left: Any, occupied: Any, fetched: Any) -> None:
    end, size, to_flash = columns
    slots = len(occupied)
    for row in order:
        missing, slot = float(size[row]), end[row]
        link = 1 if to_flash[row] else 0
        while slot > left[row] + 1 and missing > 0:
            slot -= 1
            at = slot % slots
            part = min(missing, free[link, at], free[0, at])
            missing -= part
            free[0, at] -= part
            if link == 1:
                free[1, at] -= part
            occupied[at] += size[row]
        fetched[row] = slot


@compiled
def _advance(
    order: Any, columns: Any, left: Any, occupied: Any, capacity: float, fetched: Any
) -> None:
    size = columns[1]
    slots = len(occupied)
    for row in order:
        slot = fetched[row]
        while slot > left[row] + 1 and occupied[(slot - 1) % slots] + size[row] <= capacity:
            slot -= 1
            occupied[slot % slots] += size[row]
        fetched[row] = slot


def mark_away(parts: EvictedParts, left: Ints, occupied: Floats) -> None:
    """Subtract each part from the slots between its departure and its use; they may wrap."""
    slots = len(occupied)
    change = np.zeros(3 * slots + 2)
    begin = np.minimum(left + 1, parts.end)
    np.add.at(change, begin, -parts.size.astype(np.float64))
    np.add.at(change, parts.end, parts.size.astype(np.float64))
    away = np.cumsum(change)[: 3 * slots]
    occupied += away.reshape(3, slots).sum(axis=0)
