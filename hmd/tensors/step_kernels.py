# SPDX-License-Identifier: MIT
"""Compiled: one training step, kernel by kernel; :func:`run_step` advances the state by one step.

A kernel begins with the moves of the plan, requests what it misses, waits and computes, while the
slots of time in between carry pages (:mod:`hmd.tensors.page_flow`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hmd.base.numba_kernels import generic_kernel
from hmd.tensors.page_flow import add_run, append_pages, move_slots, take_runs
from hmd.tensors.step_state import (
    ALLOCATED_PER_SLOT,
    DROP_DEAD,
    ERROR,
    ERROR_TENSOR,
    FAULT_TICKS,
    FINE,
    HERTZ,
    IDLE_SLOTS,
    IN,
    IN_PLACE,
    KEEP_RUNNING,
    KERNEL,
    LIMIT,
    MISSING,
    MOST_SLOTS,
    NO_ROOM,
    NOW,
    OUT,
    OVERLAP,
    PAGE_BYTES,
    QUEUE_ROWS,
    QUEUED,
    SET_UP,
    SLOT,
    SLOT_TICKS,
    SLOW_FAULT_TICKS,
    STUCK,
    SYNCHRONOUS,
    TOO_SLOW,
)


@generic_kernel
def _drop(given: Any, state: Any, tensor: int) -> None:
    """Free all pages of a tensor that are at rest, and forget its moves."""
    tiers = len(given.capacity)
    take_runs(state, tensor, state.rest[tensor, 0])
    for place in range(tiers):
        gone = state.rest[tensor, place]
        state.occupied[place] -= gone
        state.rest[tensor, place] = 0
        state.rest[tensor, tiers] += gone


@generic_kernel
def _kill(given: Any, state: Any, tensor: int) -> None:
    """Drop a dead tensor wherever its pages are."""
    tiers = len(given.capacity)
    state.occupied[0] -= state.leaving[tensor]
    state.rest[tensor, tiers] += state.leaving[tensor]
    state.leaving[tensor] = 0
    for place in range(1, tiers + 1):
        gone = state.inbound[tensor, place]
        if place < tiers:
            state.occupied[place] -= gone
        state.inbound[tensor, place] = 0
        state.rest[tensor, tiers] += gone
    _drop(given, state, tensor)


@generic_kernel
def _order(given: Any, state: Any, tensor: int, target: int, pages: int) -> None:
    """Carry out one move of the plan, on up to so many pages that are at rest."""
    tiers = len(given.capacity)
    if target == tiers:
        _drop(given, state, tensor)
        return
    if target == 0:
        for place in range(1, tiers + 1):
            count = min(pages, state.rest[tensor, place])
            if count > 0:
                state.rest[tensor, place] -= count
                state.inbound[tensor, place] += count
                append_pages(state, tiers + place - 1, tensor, count)
                pages -= count
        return
    if given.rules[IN_PLACE]:
        # What still waits to come stays where it is.
        for place in range(1, tiers):
            count = min(pages, state.inbound[tensor, place])
            state.inbound[tensor, place] -= count
            state.rest[tensor, place] += count
            pages -= count
    count = min(pages, state.rest[tensor, 0])
    if count > 0:
        take_runs(state, tensor, count)
        state.rest[tensor, 0] -= count
        state.leaving[tensor] += count
        append_pages(state, 2 * tiers + target - 1, tensor, count)
        pages -= count
    if given.rules[IN_PLACE] and pages > 0:
        # A tensor that is not allocated yet is allocated there.
        room = given.capacity[target] - state.occupied[target]
        count = min(pages, state.rest[tensor, tiers], room)
        state.rest[tensor, tiers] -= count
        state.rest[tensor, target] += count
        state.occupied[target] += count


@generic_kernel
def _fault(given: Any, state: Any, tensor: int, counts: Any, row: int) -> None:
    """Queue what a kernel needs of a tensor; ``counts`` gets total, slow and all faulted pages."""
    tiers = len(given.capacity)
    counts[row, 0] += given.pages[tensor]
    for place in range(1, tiers + 1):
        pages = state.rest[tensor, place]
        if pages > 0:
            state.rest[tensor, place] = 0
            state.inbound[tensor, place] += pages
            append_pages(state, place - 1, tensor, pages)
            counts[row, 2] += pages
            if place < tiers:
                counts[row, 3] += pages
                if place > 1:
                    counts[row, 1] += pages


@generic_kernel
def _stall_ticks(given: Any, kernel: int, counts: Any) -> int:
    """Return the handling time of faults, dT of the rules g10; (2, 3) page counts per direction."""
    seconds, page = given.numbers[HERTZ], given.numbers[PAGE_BYTES]
    fast, slow = given.fault_rate[0], given.fault_rate[1]
    times = np.zeros(3)
    if given.profiled_faults.shape[0] == 2:
        times[1] = max(given.profiled_faults[0, kernel], given.ticks[kernel]) // seconds * 1000
        times[0] = max(given.profiled_faults[1, kernel] // seconds * 1000, times[1])
    times[2] = given.ticks[kernel] // seconds * 1000
    limit, slow_limit, has_slow = np.zeros(2), np.zeros(2), 0.0
    for row in range(2):
        gap = times[row] - times[row + 1]
        limit[row] = counts[row, 0] * page / gap if gap > 0 else 1063004400.0
        if counts[row, 1] > 0:
            slow_limit[row] = min(slow, limit[row] * 45.0 / 65.0)
            has_slow = max(has_slow, slow_limit[row])
    slow_ms = other_ms = 0.0
    for row in range(2):
        if counts[row, 1] > 0:
            slow_ms += counts[row, 1] * page / slow_limit[row]
        if counts[row, 2] > counts[row, 1]:
            other_ms += (counts[row, 2] - counts[row, 1]) * page / min(limit[row], fast - has_slow)
    return int(max(slow_ms, other_ms) * seconds / 1000)


@generic_kernel
def _place_new(given: Any, state: Any, tensor: int) -> None:
    """Allocate a tensor where kernels compute in place: in the fastest tiers with room."""
    tiers = len(given.capacity)
    for place in range(tiers):
        count = min(state.rest[tensor, tiers], given.capacity[place] - state.occupied[place])
        if count > 0:
            state.rest[tensor, tiers] -= count
            state.rest[tensor, place] += count
            state.occupied[place] += count
            if place == 0:
                add_run(state, tensor, count)
    if state.rest[tensor, tiers] + state.inbound[tensor, tiers] > 0:
        state.scalars[ERROR] = NO_ROOM
        state.scalars[ERROR_TENSOR] = tensor


@generic_kernel
def _in_place_ticks(given: Any, state: Any, kernel: int) -> int:
    """Allocate a kernel's tensors and return what their places add to its time."""
    added = 0.0
    for use in range(given.use_start[kernel], given.use_start[kernel + 1]):
        tensor, mode = given.use_tensor[use], given.use_mode[use]
        tiers = len(given.capacity)
        state.rest[tensor, tiers] += state.inbound[tensor, tiers]
        state.inbound[tensor, tiers] = 0
        _place_new(given, state, tensor)
        for place in range(1, tiers):
            pages = state.rest[tensor, place] + state.inbound[tensor, place]
            if pages > 0:
                added += given.access[place]
            if mode & 1:
                added += pages * given.price[place, IN]
            if mode & 2:
                added += pages * given.price[place, OUT]
    return int(np.rint(added))


@generic_kernel
def _slots_until(given: Any, state: Any, time: int) -> None:
    """Process the slots that begin before a time; the slot's number is its time."""
    s = state.scalars
    length = given.numbers[SLOT_TICKS]
    last = -(-time // length)
    while s[SLOT] < last and s[ERROR] == FINE:
        if s[QUEUED] == 0:
            s[SLOT] = last
            return
        move_slots(given, state, min(last - s[SLOT], MOST_SLOTS))


@generic_kernel
def _slots_to_arrive(given: Any, state: Any) -> float:
    """Return the slots that pass at least until all that is missing has come over the links."""
    tiers = len(given.capacity)
    most = 0.0
    for tier in range(1, tiers):
        rate = np.inf
        for link in given.paths[tier]:
            if link < 0:
                break
            rate = min(rate, given.link_rate[link, IN])
        before = waited = 0
        for queue in (tier - 1, tiers + tier - 1):
            for at in range(state.queue_ends[queue, 0], state.queue_ends[queue, 1]):
                row = at & (QUEUE_ROWS - 1)
                tensor = state.queue_tensor[queue, row]
                before += min(state.queue_pages[queue, row], state.inbound[tensor, tier])
                if state.needed[tensor]:
                    waited = before
        most = max(most, waited / rate)
    return most


@generic_kernel
def _wait(given: Any, state: Any, until_idle: bool) -> None:
    """Advance the slots until nothing is missing, or until no queued move can go on.

    Moves that wait for room which only later kernels free are not waited for.
    """
    s = state.scalars
    tiers = len(given.capacity)
    came = left = 0.0
    for link in range(len(given.link_rate)):
        came = max(came, given.link_rate[link, IN])
        left += given.link_rate[link, IN if given.link_half[link] else OUT]
    idle, now, slot = 0, s[NOW], s[SLOT]
    limit = IDLE_SLOTS if given.rules[KEEP_RUNNING] or until_idle else 1000 * IDLE_SLOTS
    while (s[QUEUED] > 0 if until_idle else s[MISSING] > 0) and s[ERROR] == FINE:
        before, missing, set_up = s[QUEUED], s[MISSING], s[SET_UP]
        # Never so many slots that the last missing page could arrive before their end: it waits
        # for the links and for room.
        speed = came
        for queue in (tiers - 1, 2 * tiers - 1):
            if state.queue_ends[queue, 0] < state.queue_ends[queue, 1]:
                speed += given.numbers[ALLOCATED_PER_SLOT]
        least = min(missing, before)
        room = given.capacity[0] - state.occupied[0]
        earliest = max(least / speed, (least - room) / left)
        if earliest < MOST_SLOTS:
            earliest = max(earliest, _slots_to_arrive(given, state))
        slots = max(1, min(MOST_SLOTS, int(earliest)))
        s[NOW] = max(s[NOW], (s[SLOT] + slots - 1) * given.numbers[SLOT_TICKS])
        move_slots(given, state, slots)
        still = s[QUEUED] == before and s[MISSING] == missing and s[SET_UP] == set_up
        idle = idle + slots if still else 0
        if not still:
            now, slot = s[NOW], s[SLOT]
        if idle > limit:
            if until_idle:
                s[NOW], s[SLOT] = now, slot
                return
            s[ERROR] = STUCK


@generic_kernel
def _begin_faults(given: Any, state: Any, kernel: int, counts: Any) -> None:
    """Request what a kernel needs and count what is missing."""
    s = state.scalars
    low, high = given.use_start[kernel], given.use_start[kernel + 1]
    s[MISSING] = 0
    for use in range(low, high):
        tensor = given.use_tensor[use]
        if not state.needed[tensor]:
            state.needed[tensor] = True
            if given.rules[KEEP_RUNNING] and state.leaving[tensor] > 0:
                # Evictions that have not begun are cancelled.
                add_run(state, tensor, state.leaving[tensor])
                state.rest[tensor, 0] += state.leaving[tensor]
                state.leaving[tensor] = 0
            s[MISSING] += given.pages[tensor] - state.rest[tensor, 0]
    if s[MISSING] == 0:
        return
    for bit in range(2):
        for use in range(low, high):
            if given.use_mode[use] & (1 << bit):
                _fault(given, state, given.use_tensor[use], counts, bit)


@generic_kernel
def _kernel(given: Any, state: Any, kernel: int) -> None:
    """Run one kernel: moves, faults, wait, compute."""
    s = state.scalars
    s[KERNEL] = kernel
    begin = s[NOW]
    if given.rules[DROP_DEAD]:
        for row in range(given.death_start[kernel], given.death_start[kernel + 1]):
            _kill(given, state, given.death_tensor[row])
    for move in range(given.move_start[kernel], given.move_start[kernel + 1]):
        _order(given, state, given.move_tensor[move], given.move_to[move], given.move_pages[move])
    ticks = given.ticks[kernel]
    if given.rules[IN_PLACE]:
        if given.rules[SYNCHRONOUS]:
            # Operands and room for results are where the moves leave them.
            _wait(given, state, True)
        end = s[NOW] + ticks + _in_place_ticks(given, state, kernel)
    else:
        counts = np.zeros((2, 4), np.int64)
        _begin_faults(given, state, kernel, counts)
        faulted = counts[0, 3] + counts[1, 3]
        if s[MISSING] == 0:
            end = begin + ticks
        elif given.rules[OVERLAP]:
            end = begin + ticks + _stall_ticks(given, kernel, counts)
            _wait(given, state, False)
            end = max(end, s[NOW])
        else:
            _wait(given, state, False)
            end = s[NOW] + ticks
            if faulted:
                end += given.numbers[FAULT_TICKS]
            if counts[0, 1] + counts[1, 1]:
                end += given.numbers[SLOW_FAULT_TICKS]
    if s[ERROR] != FINE:
        return
    state.log_times[kernel, 0] = begin
    state.log_times[kernel, 1] = end
    state.log_occupied[kernel] = state.occupied
    _slots_until(given, state, end)
    for use in range(given.use_start[kernel], given.use_start[kernel + 1]):
        state.needed[given.use_tensor[use]] = False
    s[NOW] = end


@generic_kernel
def run_step(given: Any, state: Any) -> None:
    """Advance the state by one step; ``scalars[ERROR]`` is set where the step cannot finish."""
    state.log_moved[:] = 0
    for kernel in range(len(given.ticks)):
        _kernel(given, state, kernel)
        if state.scalars[NOW] > state.scalars[LIMIT]:
            state.scalars[ERROR] = TOO_SLOW
        if state.scalars[ERROR] != FINE:
            return
    if given.rules[DROP_DEAD]:
        last = len(given.ticks)
        for row in range(given.death_start[last], given.death_start[last + 1]):
            _kill(given, state, given.death_tensor[row])
