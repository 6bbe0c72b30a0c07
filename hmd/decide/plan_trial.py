"""Trials: what a plan that is not made would have saved, by the samples of the ticks after it.

Takes a plan and the page views of the ticks that follow; gives seconds. The plan's pages stay where
they are. An access to one counts as the latency of its node less that of the node in the plan,
which is a loss for pages that are to be demoted. A trial ends after ``TRIAL_TICKS``. Of a long plan
every n-th move is followed, ``ROWS_MOST`` at most. A tick costs what
:meth:`hmd.heat.view.page_view.PageView.tick_share_at` does for these moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.decide.cost_benefit.loaded_latency import loaded_latency_ns
from hmd.decide.cost_benefit.parallelism import parallelism
from hmd.decide.node_arrays import nodes_of

if TYPE_CHECKING:
    from hmd.decide.plan import MachineView, Plan
    from hmd.heat.view.page_view import PageView

TRIAL_TICKS: Final = 8
"""Ticks for which a plan is followed."""
ROWS_MOST: Final = 16_384
"""Most moves that are followed."""


class PlanTrial:
    """One plan that is not made, and what it would have brought so far."""

    def __init__(self, plan: Plan, move_s: float) -> None:
        """Begin with the plan's cost: ``move_s`` for each page of 4 KiB."""
        step = -(-len(plan) // ROWS_MOST)
        self._plan, self._ticks = plan.take(np.arange(0, len(plan), max(step, 1))), 0
        self.net_s = -float(self._plan.pages.sum()) * move_s
        """Seconds that the moves would have saved their programs, less what they cost."""

    @property
    def ended(self) -> bool:
        """Whether the plan has been followed for long enough."""
        return self._ticks >= TRIAL_TICKS

    def follow(self, pages: PageView, machine: MachineView, elapsed_s: float) -> None:
        """Add what the plan would have saved in the tick of ``elapsed_s`` that ended."""
        self._ticks += 1
        plan, process = self._plan, self._processes(pages)
        there = process >= 0
        if not there.any():
            return
        process, address = process[there], plan.address[there]
        nodes = nodes_of(machine, 0.0, 0)
        latency = loaded_latency_ns(pages, machine.topology, nodes)
        here, beyond = nodes.tier[plan.from_node[there]], nodes.tier[plan.to_node[there]]
        share = pages.tick_share_at(process, address)
        each_s = pages.process_rate * elapsed_s * 1e-9 / parallelism(pages, machine)
        self.net_s += float((share * each_s[process] * (latency[here] - latency[beyond])).sum())

    def _processes(self, pages: PageView) -> npt.NDArray[np.int32]:
        """Return the process of each move by the slots of a view, -1 where it has ended."""
        plan = self._plan
        if plan.processes == pages.processes:
            return plan.process
        slots = {one: slot for slot, one in enumerate(pages.processes)}
        now = np.array([slots.get(one, -1) for one in plan.processes], np.int32)
        return now[plan.process]
