# SPDX-License-Identifier: MIT
"""What all planners of a step share: the problem, and the CPU time of planning.

:mod:`hmd.tensors.planners` has the planners.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from numba.core import event

from hmd.tensors.lifetimes import Vitality, vitality
from hmd.tensors.lower_bound import lower_bound_seconds
from hmd.tensors.memory_system import MemorySystem, PricingRules
from hmd.tensors.move_plan import MovePlan, MovePlanError
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

    def cheapest(self, plans: Iterable[MovePlan]) -> MovePlan:
        """Return the plan of the lowest price; MovePlanError where none can be carried out."""
        best, fastest_s = None, math.inf
        failure = MovePlanError(f"{self.trace.name}: there is no plan")
        for plan in plans:
            try:
                seconds = self.price(plan, limit_seconds=fastest_s).seconds
            except MovePlanError as error:  # or slower
                failure = error
                continue
            if seconds < fastest_s:
                best, fastest_s = plan, seconds
        if best is None:
            raise failure
        return best


class PlanningTime(event.Listener):
    """The CPU time of this process in a block, without compilations.

    Kernels are compiled when they are first called, once per installation: about a minute for all,
    which says nothing about a planner.
    """

    seconds = 0.0
    """The time of the whole block, known at its end."""

    def __init__(self) -> None:
        self._begin = time.process_time()
        self._compiling_s = self._compiling_since = 0.0
        self._depth = 0

    def elapsed(self) -> float:
        """Return the seconds since the block began."""
        return time.process_time() - self._begin - self._compiling_s

    def on_start(self, event: event.Event) -> None:
        """Note the begin of a compilation; a function compiles those that it calls."""
        if self._depth == 0:
            self._compiling_since = time.process_time()
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        """Note the end of a compilation."""
        self._depth -= 1
        if self._depth == 0:
            self._compiling_s += time.process_time() - self._compiling_since


@contextmanager
def planning_time() -> Iterator[PlanningTime]:
    """Measure a block."""
    spent = PlanningTime()
    try:
        with event.install_listener("numba:compile", spent):
            yield spent
    finally:
        spent.seconds = spent.elapsed()
