"""The moves that carry a residency out: pieces of tensors per kernel, births and frees."""

from __future__ import annotations

import numpy as np

from hmd.tensors.gap_windows import MoveWindow
from hmd.tensors.move_plan import ANY, WHOLE, Move
from hmd.tensors.planner import StepProblem
from hmd.tensors.residency_model import Residency


def residency_moves(residency: Residency, problem: StepProblem) -> list[Move]:
    """Return the moves that carry a residency out, frees of dead tensors included."""
    trace, system, life = problem.trace, problem.system, problem.life
    spans = residency.spans
    none = problem.none
    moves: list[Move] = [
        (death, tensor, ANY, none, WHOLE)
        for tensor, death in enumerate(life.death.tolist())
        if 0 <= death < trace.kernels
    ]
    for gap, (out, back) in enumerate(residency.windows):
        before, after = int(spans.before[gap]), int(spans.after[gap])
        tensor = int(spans.tensor[before])
        size = int(trace.tensor_bytes[tensor])
        page = system.granularity_bytes
        leaving = residency.away[gap]
        for tier, share in enumerate(leaving.tolist(), 1):
            moves += _pieces(out, tensor, (0, tier), share * size, page)
        if system.in_place:
            coming = float(residency.fast[after] - residency.fast[before] + leaving[0])
        else:
            coming = float(leaving.sum())
        moves += _pieces(back, tensor, (ANY, 0), coming * size, page)
    if system.in_place:
        moves += _births(residency, problem)
        moves += _first_fetches(residency, problem)
    elif problem.rules.overlap:
        moves += _allocations(problem)
    return moves


def _births(residency: Residency, problem: StepProblem) -> list[Move]:
    """Return the moves that allocate tensors in the second tier when they are born."""
    spans, life, size = residency.spans, problem.life, problem.trace.tensor_bytes
    moves: list[Move] = []
    for row in range(len(spans)):
        tensor = int(spans.tensor[row])
        slow = (1 - float(residency.fast[row])) * float(size[tensor])
        if life.birth[tensor] == spans.first[row] and slow >= 1:
            moves.append((int(spans.first[row]), tensor, problem.none, 1, round(slow)))
    return moves


def _allocations(problem: StepProblem) -> list[Move]:
    """Return the moves that allocate tensors so early that their first kernel does not fault."""
    trace, system, life = problem.trace, problem.system, problem.life
    begins = np.concatenate([[0.0], np.cumsum(trace.kernel_seconds)])
    moves: list[Move] = []
    for tensor in np.flatnonzero(life.birth > 0).tolist():
        birth = int(life.birth[tensor])
        needed = float(trace.tensor_bytes[tensor]) * system.allocation_seconds_per_byte
        kernel = int(np.searchsorted(begins[:birth], begins[birth] - needed, "right")) - 1
        moves.append((max(kernel, 0), tensor, problem.none, 0, WHOLE))
    return moves


def _first_fetches(residency: Residency, problem: StepProblem) -> list[Move]:
    """Return the fetches of persistent tensors that are in the fastest tier in one of their spans.

    Parts that never leave it have no other fetch. From the second step on, these find nothing to
    fetch.
    """
    spans, life = residency.spans, problem.life
    gone = np.ones(len(spans), np.bool_)
    gone[spans.before[residency.away.sum(axis=1) < 1 - 1e-6]] = False
    whole = (residency.fast > 1 - 1e-6) & problem.trace.tensor_persistent[spans.tensor] & ~gone
    rows = np.flatnonzero(whole)
    tensors, at = np.unique(spans.tensor[rows], return_index=True)
    first = np.maximum(spans.first[rows[at]], life.first[tensors])
    return [
        (int(kernel), int(tensor), ANY, 0, WHOLE)
        for kernel, tensor in zip(first.tolist(), tensors.tolist(), strict=True)
    ]


def _pieces(
    window: MoveWindow, tensor: int, ends: tuple[int, int], size: float, page: int
) -> list[Move]:
    """Return the moves of ``size`` bytes in a window, in whole pages per kernel."""
    pages = round(size / page)
    if pages <= 0:
        return []
    done = np.rint(np.cumsum(window.shares) * pages).astype(np.int64)
    counts = np.diff(done, prepend=0)
    return [
        (kernel, tensor, *ends, count * page)
        for kernel, count in zip(window.kernels.tolist(), counts.tolist(), strict=True)
        if count > 0
    ]
