# SPDX-License-Identifier: MIT
"""What all planners of a step share: the problem, and the CPU time of planning.

:mod:`hmd.tensors.planners` has the planners.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from numba.core import event

from hmd.tensors.lifetimes import Vitality, vitality
from hmd.tensors.lower_bound import lower_bound_seconds
from hmd.tensors.memory_system import MemorySystem, PricingRules
from hmd.tensors.move_plan import MovePlan
from hmd.tensors.simulator import StepResult, simulate_step
from hmd.tensors.trace import TensorTrace


@dataclass(frozen=True)
class StepProblem:
    """A step to plan: its trace, the memory system, and the rules of its price."""

    trace: TensorTrace
    system: MemorySystem
    rules: PricingRules

    @cached_property
    def life(self) -> Vitality:
        """The lives of the trace's tensors."""
        return vitality(self.trace)

    @cached_property
    def bound_seconds(self) -> float:
        """A time that no plan undercuts."""
        return lower_bound_seconds(self.trace, self.system, self.rules)

    @property
    def none(self) -> int:
        """The number that stands for "not allocated" in moves."""
        return len(self.system.tiers)

    def price(
        self, plan: MovePlan, *, steps: int = 2, limit_seconds: float = math.inf
    ) -> StepResult:
        """Simulate a plan; raises MovePlanError for one that cannot be carried out.

        With ``limit_seconds`` also for one that takes longer, without simulating it to its end.
        """
        return simulate_step(
            self.trace, self.system, self.rules, plan, steps=steps, limit_seconds=limit_seconds
        )


class _Compiling(event.Listener):
    """Sums the CPU time between the outermost start and end of compilations, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0
        self._begin = 0.0

    def on_start(self, event: event.Event) -> None:
        """Note the begin of a compilation; a function compiles those that it calls."""
        if self._depth == 0:
            self._begin = time.process_time()
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        """Note the end of a compilation."""
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.process_time() - self._begin


@dataclass
class PlanningTime:
    """The CPU time of this process in a block, without compilations.

    Kernels are compiled when they are first called, once per installation: about a minute for all,
    which says nothing about a planner.
    """

    begin: float
    compiling: _Compiling
    seconds: float = 0.0
    """The time of the whole block, known at its end."""

    def elapsed(self) -> float:
        """Return the seconds since the block began."""
        return time.process_time() - self.begin - self.compiling.seconds


@contextmanager
def planning_time() -> Iterator[PlanningTime]:
    """Measure a block."""
    spent = PlanningTime(time.process_time(), _Compiling())
    try:
        with event.install_listener("numba:compile", spent.compiling):
            yield spent
    finally:
        spent.seconds = spent.elapsed()
