"""Compiled: queues of moves, and the order of arrival in the fastest tier, as runs of pages."""

from __future__ import annotations

from typing import Any

from hmd.tensors.step_state import (
    ERROR,
    HEAD,
    MERGED_RUNS,
    QUEUE_OVERFLOW,
    QUEUE_ROWS,
    QUEUED,
    RUNS_OVERFLOW,
    TAIL,
    UNUSED,
    compiled,
)


@compiled
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


@compiled
def shift_queue(state: Any, queue: int, pages: int) -> None:
    """Take pages from the front of a queue."""
    row = state.queue_ends[queue, 0] & (QUEUE_ROWS - 1)
    state.queue_pages[queue, row] -= pages
    state.scalars[QUEUED] -= pages
    if state.queue_pages[queue, row] <= 0:
        state.queue_ends[queue, 0] += 1


@compiled
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


@compiled
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


@compiled
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
