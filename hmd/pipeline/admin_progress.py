"""How far administrators' moves and drains have come, noted after each tick's moves.

Takes the stages, the tick's plan and its outcome; ends moves that are done and counts the ticks in
which drains got no further. About 1 ns per page while a node is drained, else microseconds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import Plan
from hmd.migrate import MoveOutcome, MoveStatus
from hmd.pipeline.tick_stages import TickStages
from hmd.units import HUGE_PAGE_BYTES


def note_progress(stages: TickStages, plan: Plan, outcome: MoveOutcome | None) -> None:
    """Record what a tick's plan did for the moves and drains that administrators requested.

    For ticks that made their plan: a decision that failed says nothing of what is left to move.
    """
    admin = stages.admin
    if admin.paused:
        return
    if admin.moves:
        _end_moves(stages, plan, outcome)
    if not admin.drained:
        return
    leaving = np.isin(plan.from_node, sorted(admin.drained))
    moved = int(outcome.moved_pages[leaving].sum()) if outcome is not None else 0
    if moved and outcome is not None and not outcome.dry_run:
        admin.stalled_ticks = 0
    elif movable_on(stages, admin.drained).any():
        admin.stalled_ticks += 1


def movable_on(stages: TickStages, nodes: frozenset[int]) -> npt.NDArray[np.int64]:
    """Return how many pages each process of the heat table has there that ticks may move."""
    heat, admin = stages.heat, stages.admin
    movable, _ = heat.resident_pages(max(nodes) + 1)
    pages: npt.NDArray[np.int64] = movable[:, sorted(nodes)].sum(axis=1)
    return np.where(admin.pinned_mask(heat.processes, stages.targets), 0, pages)


def _end_moves(stages: TickStages, plan: Plan, outcome: MoveOutcome | None) -> None:
    """End the moves of those processes of which nothing more could be moved.

    A process whose pages are not known yet is not done. What a later sweep finds stays where it is.
    """
    admin, heat = stages.admin, stages.heat
    nodes = max(node.id for node in stages.topology.nodes) + 1
    known = heat.resident_pages(nodes)[0].sum(axis=1)
    busy: set[int] = set()
    if outcome is not None and not outcome.dry_run:
        going = (outcome.moved_pages > 0) | (outcome.status == MoveStatus.DEFERRED)
        busy = set(plan.process[going].tolist())
    if stages.mover.budget_bytes() >= HUGE_PAGE_BYTES:
        admin.end_moves(
            process
            for slot, process in enumerate(heat.processes)
            if known[slot] and slot not in busy
        )
