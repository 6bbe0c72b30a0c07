# SPDX-License-Identifier: MIT
"""Compiled: one training step, kernel by kernel; :func:`run_step` advances the state by one step.

A kernel begins with the moves of the plan, requests what it misses, waits and computes, while the
slots of time in between carry pages over links, in order of priority. Out: planned evictions, the
slowest tier first. In: faults, allocations, then what the plan moves ahead. What comes into a full
fastest tier pushes out the pages that arrived first.

Pages of one tensor are interchangeable: a tensor is a row of counts, by where its pages are. The
fastest tier additionally keeps them in order of arrival, as runs of pages of one tensor.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import generic_kernel

Array = npt.NDArray[Any]

QUEUE_ROWS: Final = 1 << 15
"""Rows of one queue of moves; a power of two."""

MERGED_RUNS: Final = 4
"""Arrivals join a run of their tensor among so many newest: streams that alternate stay runs."""

MOST_SLOTS: Final = 64
"""Slots that are processed at once, where no page that a kernel waits for can arrive earlier."""

IDLE_SLOTS: Final = 1000
"""Slots without a page moved after which a kernel waits without end."""

IN: Final = 0
OUT: Final = 1

# Indices of StepState.scalars.
NOW, SLOT, MISSING, KERNEL, HEAD, TAIL, UNUSED, ERROR, ERROR_TENSOR, QUEUED, SET_UP = range(11)
LIMIT: Final = SET_UP + 1
# Values of scalars[ERROR].
FINE, NO_ROOM, STUCK, QUEUE_OVERFLOW, RUNS_OVERFLOW, TOO_SLOW = range(6)


class StepInput(NamedTuple):
    """What a step consists of: K kernels, U uses, T tensors, N tiers, L links, M moves.

    ``paths`` (N, L) has the links between a tier and tier 0, padded by -1; ``link_rate`` (L, 2) is
    in pages per slot, in and out; ``link_half`` (L,) marks links that share one rate. ``setup``
    (N, 2) has the latency of a transaction between a tier and tier 0, in pages that its path
    carries meanwhile. ``fault_rate`` (2,) is in bytes per ms, from the second and from the last
    tier. ``price`` (N, 2) has ticks per page that a kernel reads and writes in place, and
    ``access`` (N,) ticks per operand.
    """

    ticks: Array
    profiled_faults: Array
    use_start: Array
    use_tensor: Array
    use_mode: Array
    pages: Array
    death_start: Array
    death_tensor: Array
    capacity: Array
    paths: Array
    link_rate: Array
    link_half: Array
    setup: Array
    fault_rate: Array
    price: Array
    access: Array
    move_start: Array
    move_tensor: Array
    move_to: Array
    move_pages: Array
    overlap: bool
    keep_running: bool
    drop_dead: bool
    whole_pages: bool
    in_place: bool
    slot_ticks: int
    allocated_per_slot: int
    fault_ticks: int
    slow_fault_ticks: int
    hertz: int
    page_bytes: int


class StepState(NamedTuple):
    """Where pages are. Location N is "not allocated".

    ``rest`` (T, N+1) and ``inbound`` (T, N+1) count pages at rest, and on the way to tier 0 by
    source; ``leaving`` (T,) those of tier 0 that wait to leave. Queues: faults by source (1 to N),
    then moves ahead by source, then evictions by destination. ``queue_setup`` is what is left of
    the latency of each row, -1 before its first page.
    """

    rest: Array
    inbound: Array
    leaving: Array
    occupied: Array
    needed: Array
    queue_tensor: Array
    queue_pages: Array
    queue_setup: Array
    queue_ends: Array
    run_tensor: Array
    run_pages: Array
    run_links: Array
    tensor_run: Array
    credit: Array
    budget: Array
    scalars: Array
    log_times: Array
    log_occupied: Array
    log_moved: Array


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
    if state.needed[tensor] and not given.in_place:
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
    if given.keep_running:
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
        elif given.in_place:
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
            if not given.whole_pages:
                rate += state.credit[link, way]
                state.credit[link, way] = rate - np.floor(rate)
            state.budget[link, way] = np.int64(rate)
    for tier in range(tiers - 1, 0, -1):
        _evict(given, state, tier)
    allocations = given.allocated_per_slot * slots
    for tier in range(tiers - 1, 0, -1):
        allocations = _fetch(given, state, tier - 1, tier, allocations)
    allocations = _fetch(given, state, tiers - 1, tiers, allocations)
    for tier in range(tiers - 1, 0, -1):
        allocations = _fetch(given, state, tiers + tier - 1, tier, allocations)
    _fetch(given, state, 2 * tiers - 1, tiers, allocations)
    state.scalars[SLOT] += slots


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
    if given.in_place:
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
    if given.in_place and pages > 0:
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
    seconds, page = given.hertz, given.page_bytes
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
    length = given.slot_ticks
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
def _wait(given: Any, state: Any) -> None:
    """Advance the slots until nothing is missing."""
    s = state.scalars
    tiers = len(given.capacity)
    came = left = 0.0
    for link in range(len(given.link_rate)):
        came = max(came, given.link_rate[link, IN])
        left += given.link_rate[link, IN if given.link_half[link] else OUT]
    idle = 0
    limit = IDLE_SLOTS if given.keep_running else 1000 * IDLE_SLOTS
    while s[MISSING] > 0 and s[ERROR] == FINE:
        before, missing, set_up = s[QUEUED], s[MISSING], s[SET_UP]
        # Never so many slots that the last missing page could arrive before their end: it waits
        # for the links and for room.
        speed = came
        for queue in (tiers - 1, 2 * tiers - 1):
            if state.queue_ends[queue, 0] < state.queue_ends[queue, 1]:
                speed += given.allocated_per_slot
        least = min(missing, before)
        room = given.capacity[0] - state.occupied[0]
        earliest = max(least / speed, (least - room) / left)
        if earliest < MOST_SLOTS:
            earliest = max(earliest, _slots_to_arrive(given, state))
        slots = max(1, min(MOST_SLOTS, int(earliest)))
        s[NOW] = max(s[NOW], (s[SLOT] + slots - 1) * given.slot_ticks)
        move_slots(given, state, slots)
        still = s[QUEUED] == before and s[MISSING] == missing and s[SET_UP] == set_up
        idle = idle + slots if still else 0
        if idle > limit:
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
            if given.keep_running and state.leaving[tensor] > 0:
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
    if given.drop_dead:
        for row in range(given.death_start[kernel], given.death_start[kernel + 1]):
            _kill(given, state, given.death_tensor[row])
    for move in range(given.move_start[kernel], given.move_start[kernel + 1]):
        _order(given, state, given.move_tensor[move], given.move_to[move], given.move_pages[move])
    ticks = given.ticks[kernel]
    if given.in_place:
        end = s[NOW] + ticks + _in_place_ticks(given, state, kernel)
    else:
        counts = np.zeros((2, 4), np.int64)
        _begin_faults(given, state, kernel, counts)
        faulted = counts[0, 3] + counts[1, 3]
        if s[MISSING] == 0:
            end = begin + ticks
        elif given.overlap:
            end = begin + ticks + _stall_ticks(given, kernel, counts)
            _wait(given, state)
            end = max(end, s[NOW])
        else:
            _wait(given, state)
            end = s[NOW] + ticks
            if faulted:
                end += given.fault_ticks
            if counts[0, 1] + counts[1, 1]:
                end += given.slow_fault_ticks
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
    if given.drop_dead:
        last = len(given.ticks)
        for row in range(given.death_start[last], given.death_start[last + 1]):
            _kill(given, state, given.death_tensor[row])
