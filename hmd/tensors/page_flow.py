# SPDX-License-Identifier: MIT
"""Compiled: the pages that links carry in slots of time, in order of priority.

Out: planned evictions, the slowest tier first. In: faults, allocations, then what the plan moves
ahead. What comes into a full fastest tier pushes out the pages that arrived first.

Compiled: queues of moves, and the order of arrival in the fastest tier, as runs of pages.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hmd.base.numba_kernels import generic_kernel
from hmd.tensors.step_state import (
    ALLOCATED_PER_SLOT,
    ERROR,
    ERROR_TENSOR,
    HEAD,
    IN,
    IN_PLACE,
    KEEP_RUNNING,
    KERNEL,
    MERGED_RUNS,
    MISSING,
    NO_ROOM,
    OUT,
    QUEUE_OVERFLOW,
    QUEUE_ROWS,
    QUEUED,
    RUNS_OVERFLOW,
    SET_UP,
    SLOT,
    TAIL,
    UNUSED,
    WHOLE_PAGES,
)


@generic_kernel
def append_pages(state: Any, queue: int, tensor: int, pages: int) -> None:
    """Append pages of a tensor to a queue."""
    mask = QUEUE_ROWS - 1
    first, end = state.queue_ends[queue, 0], state.queue_ends[queue, 1]
    state.scalars[QUEUED] += pages
    if end > first and state.queue_tensor[queue, (end - 1) & mask] == tensor:
        state.queue_pages[queue, (end - 1) & mask] += pages
        return
    if end - first >= QUEUE_ROWS:
        state.scalars[ERROR] = QUEUE_OVERFLOW
        return
    state.queue_tensor[queue, end & mask] = tensor
    state.queue_pages[queue, end & mask] = pages
    state.queue_setup[queue, end & mask] = -1
    state.queue_ends[queue, 1] = end + 1


@generic_kernel
def shift_queue(state: Any, queue: int, pages: int) -> None:
    """Take pages from the front of a queue."""
    row = state.queue_ends[queue, 0] & (QUEUE_ROWS - 1)
    state.queue_pages[queue, row] -= pages
    state.scalars[QUEUED] -= pages
    if state.queue_pages[queue, row] <= 0:
        state.queue_ends[queue, 0] += 1


@generic_kernel
def add_run(state: Any, tensor: int, pages: int) -> None:
    """Append pages of a tensor to tier 0's order of arrival."""
    s, links = state.scalars, state.run_links
    tail = s[TAIL]
    recent = tail
    for _ in range(MERGED_RUNS):
        if recent < 0 or (recent == s[HEAD] and recent != tail):
            # The oldest run leaves first: what joins it would leave again.
            break
        if state.run_tensor[recent] == tensor:
            state.run_pages[recent] += pages
            return
        recent = links[recent, 0]
    run = s[UNUSED]
    if run < 0:
        # No rows are left: the tensor's newest run grows instead.
        run = state.tensor_run[tensor]
        if run < 0:
            s[ERROR] = RUNS_OVERFLOW
            return
        state.run_pages[run] += pages
        return
    s[UNUSED] = links[run, 1]
    state.run_tensor[run] = tensor
    state.run_pages[run] = pages
    links[run, 0], links[run, 1] = tail, -1
    if tail >= 0:
        links[tail, 1] = run
    else:
        s[HEAD] = run
    s[TAIL] = run
    other = state.tensor_run[tensor]
    links[run, 2], links[run, 3] = -1, other
    if other >= 0:
        links[other, 2] = run
    state.tensor_run[tensor] = run


@generic_kernel
def remove_run(state: Any, run: int) -> None:
    """Remove an empty run from both lists that it is in."""
    s, links = state.scalars, state.run_links
    before, after = links[run, 0], links[run, 1]
    if before >= 0:
        links[before, 1] = after
    else:
        s[HEAD] = after
    if after >= 0:
        links[after, 0] = before
    else:
        s[TAIL] = before
    newer, older = links[run, 2], links[run, 3]
    if newer >= 0:
        links[newer, 3] = older
    else:
        state.tensor_run[state.run_tensor[run]] = older
    if older >= 0:
        links[older, 2] = newer
    links[run, 1] = s[UNUSED]
    s[UNUSED] = run


@generic_kernel
def take_runs(state: Any, tensor: int, pages: int) -> None:
    """Remove pages of a tensor from the order of arrival, the newest first."""
    while pages > 0:
        run = state.tensor_run[tensor]
        if run < 0:
            return
        taken = min(pages, state.run_pages[run])
        state.run_pages[run] -= taken
        pages -= taken
        if state.run_pages[run] == 0:
            remove_run(state, run)


@generic_kernel
def _available(given: Any, state: Any, tier: int, way: int) -> int:
    """Return how many pages the links between a tier and tier 0 still take in this slot."""
    least = np.int64(1 << 40)
    for link in given.paths[tier]:
        if link < 0:
            break
        column = 0 if given.link_half[link] else way
        least = min(least, state.budget[link, column])
    return int(least)


@generic_kernel
def _spend(given: Any, state: Any, tier: int, way: int, pages: int) -> None:
    for link in given.paths[tier]:
        if link < 0:
            break
        state.budget[link, 0 if given.link_half[link] else way] -= pages
    state.log_moved[state.scalars[KERNEL], tier, way] += pages


@generic_kernel
def _set_up(given: Any, state: Any, queue: int, tier: int, way: int) -> bool:
    """Spend the latency of the transaction at a queue's front; returns whether pages can follow.

    The links of the path carry nothing else meanwhile.
    """
    row = state.queue_ends[queue, 0] & (QUEUE_ROWS - 1)
    if state.queue_setup[queue, row] < 0:
        state.queue_setup[queue, row] = given.setup[tier, way]
    left = state.queue_setup[queue, row]
    if left == 0:
        return True
    spent = min(left, _available(given, state, tier, way))
    for link in given.paths[tier]:
        if link < 0:
            break
        state.budget[link, 0 if given.link_half[link] else way] -= spent
    state.queue_setup[queue, row] = left - spent
    state.scalars[SET_UP] += spent
    return bool(left == spent)


@generic_kernel
def _overflow_tier(given: Any, state: Any, first: int) -> int:
    """Return the first tier with room, from ``first`` on; 0 if there is none."""
    for tier in range(first, len(given.capacity)):
        if state.occupied[tier] < given.capacity[tier]:
            return tier
    return 0


@generic_kernel
def _land(given: Any, state: Any, tensor: int, tier: int, pages: int) -> None:
    """Put pages that left tier 0 into a lower tier; those that the kernel needs fault again."""
    state.occupied[0] -= pages
    state.occupied[tier] += pages
    if state.needed[tensor] and not given.rules[IN_PLACE]:
        state.inbound[tensor, tier] += pages
        append_pages(state, tier - 1, tensor, pages)
    else:
        state.rest[tensor, tier] += pages


@generic_kernel
def _arrive(given: Any, state: Any, tensor: int, source: int, pages: int) -> None:
    state.inbound[tensor, source] -= pages
    if source < len(given.capacity):
        state.occupied[source] -= pages
    state.occupied[0] += pages
    state.rest[tensor, 0] += pages
    add_run(state, tensor, pages)
    if state.needed[tensor]:
        state.scalars[MISSING] -= pages


@generic_kernel
def _evict(given: Any, state: Any, tier: int) -> None:
    """Process the queue of planned evictions to a tier."""
    tiers = len(given.capacity)
    queue = 2 * tiers + tier - 1
    while state.queue_ends[queue, 0] < state.queue_ends[queue, 1]:
        row = state.queue_ends[queue, 0] & (QUEUE_ROWS - 1)
        tensor, count = state.queue_tensor[queue, row], state.queue_pages[queue, row]
        if state.leaving[tensor] < count:
            # Cancelled or dropped since.
            shift_queue(state, queue, count - state.leaving[tensor])
            if state.leaving[tensor] == 0:
                continue
            count = state.leaving[tensor]
        target = _overflow_tier(given, state, tier)
        if target == 0:
            return
        if not _set_up(given, state, queue, target, OUT):
            return
        room = given.capacity[target] - state.occupied[target]
        pages = min(count, room, _available(given, state, target, OUT))
        if pages <= 0:
            return
        shift_queue(state, queue, pages)
        _spend(given, state, target, OUT, pages)
        state.leaving[tensor] -= pages
        _land(given, state, tensor, target, pages)


@generic_kernel
def _victim(given: Any, state: Any) -> int:
    """Return the run that arrived first and may be pushed out, -1 for none."""
    run = state.scalars[HEAD]
    if given.rules[KEEP_RUNNING]:
        while run >= 0 and state.needed[state.run_tensor[run]]:
            run = state.run_links[run, 1]
    return int(run)


@generic_kernel
def _fetch(given: Any, state: Any, queue: int, source: int, allocations: int) -> int:
    """Process a queue of pages that come to tier 0; returns the allocations left in the slot."""
    tiers = len(given.capacity)
    while allocations > 0 and state.queue_ends[queue, 0] < state.queue_ends[queue, 1]:
        row = state.queue_ends[queue, 0] & (QUEUE_ROWS - 1)
        tensor, count = state.queue_tensor[queue, row], state.queue_pages[queue, row]
        if state.inbound[tensor, source] < count:
            shift_queue(state, queue, count - state.inbound[tensor, source])
            if state.inbound[tensor, source] == 0:
                continue
            count = state.inbound[tensor, source]
        if source < tiers and not _set_up(given, state, queue, source, IN):
            return allocations
        pages = min(count, allocations)
        if source < tiers:
            pages = min(pages, _available(given, state, source, IN))
        room = given.capacity[0] - state.occupied[0]
        if room > 0:
            pages = min(pages, room)
        elif given.rules[IN_PLACE]:
            return allocations
        else:
            run = _victim(given, state)
            target = _overflow_tier(given, state, 1)
            if run < 0:
                return allocations
            if target == 0:
                # Every lower tier is full: the page that comes in makes room for the victim.
                if source >= tiers:
                    state.scalars[ERROR] = NO_ROOM
                    state.scalars[ERROR_TENSOR] = tensor
                    return allocations
                target = source
            elif target > source:
                # What comes in leaves room in its tier for the next page that is pushed out.
                pages = 1
            elif target != source:
                pages = min(pages, given.capacity[target] - state.occupied[target])
            pages = min(pages, state.run_pages[run], _available(given, state, target, OUT))
            if pages <= 0:
                return allocations
            out = state.run_tensor[run]
            state.run_pages[run] -= pages
            if state.run_pages[run] == 0:
                remove_run(state, run)
            state.rest[out, 0] -= pages
            if state.needed[out]:
                state.scalars[MISSING] += pages
            _spend(given, state, target, OUT, pages)
            _land(given, state, out, target, pages)
        if pages <= 0:
            return allocations
        shift_queue(state, queue, pages)
        if source < tiers:
            _spend(given, state, source, IN, pages)
        _arrive(given, state, tensor, source, pages)
        allocations -= pages
    return allocations


@generic_kernel
def move_slots(given: Any, state: Any, slots: int) -> None:
    """Move pages for some slots: evictions, faults, allocations, then what comes ahead."""
    tiers = len(given.capacity)
    for link in range(len(given.link_rate)):
        for way in range(2):
            rate = given.link_rate[link, way] * slots
            if not given.rules[WHOLE_PAGES]:
                rate += state.credit[link, way]
                state.credit[link, way] = rate - np.floor(rate)
            state.budget[link, way] = np.int64(rate)
    for tier in range(tiers - 1, 0, -1):
        _evict(given, state, tier)
    allocations = given.numbers[ALLOCATED_PER_SLOT] * slots
    for tier in range(tiers - 1, 0, -1):
        allocations = _fetch(given, state, tier - 1, tier, allocations)
    allocations = _fetch(given, state, tiers - 1, tiers, allocations)
    for tier in range(tiers - 1, 0, -1):
        allocations = _fetch(given, state, tiers + tier - 1, tier, allocations)
    _fetch(given, state, 2 * tiers - 1, tiers, allocations)
    state.scalars[SLOT] += slots
