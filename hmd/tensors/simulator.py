# SPDX-License-Identifier: MIT
"""The step simulator: what a plan costs on a memory system, under one of the sets of rules.

Pages flow through queues in slots of time (:mod:`hmd.tensors.step_kernels`); a slot is the time in
which the fastest path carries ``SLOT_PAGES``. The step is run several times in a row, because the
first starts cold: persistent tensors in the slowest tier, nothing else allocated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hmd.tensors import step_kernels as compiled
from hmd.tensors.lifetimes import Vitality, vitality
from hmd.tensors.memory_system import MemorySystem, PricingRules
from hmd.tensors.move_plan import MovePlan, MovePlanError, check_plan
from hmd.tensors.trace import Floats, Ints, TensorTrace

SLOT_PAGES: Final = 50
"""Pages of a slot on the fastest path, as in G10's simulator."""

_NEVER: Final = 1 << 62
_RUNS: Final = 1 << 18
_FREE_PAGES: Final = 1 << 40  # pages per slot where allocation takes no time
_PROBLEMS: Final = {
    compiled.NO_ROOM: "no tier has room for it",
    compiled.STUCK: "its tensors do not fit the fastest tier",
    compiled.QUEUE_OVERFLOW: "the plan queues too many moves",
    compiled.RUNS_OVERFLOW: "the plan splits tensors into too many parts",
}


class SlowPlanError(MovePlanError):
    """A plan takes longer than the limit of its simulation."""


@dataclass(frozen=True)
class StepResult:
    """The price of a plan, from the last of the simulated steps.

    ``step_ticks`` has the duration of each step. ``begin`` and ``end`` (K,) are times from the
    start of the last step; ``occupied`` (K, N) bytes per tier at each kernel's start of computing;
    ``moved`` (K, N, 2) bytes from and to each lower tier during each kernel.
    """

    step_ticks: tuple[int, ...]
    ticks_per_second: int
    begin: Ints
    end: Ints
    stall: Ints
    occupied: Ints
    moved: Ints

    @property
    def seconds(self) -> float:
        """Duration of the fastest step: the published figures of G10 are such minima."""
        return min(self.step_ticks) / self.ticks_per_second

    @property
    def moved_bytes(self) -> int:
        """Bytes that crossed links during the last step."""
        return int(self.moved.sum())


def simulate_step(
    trace: TensorTrace,
    system: MemorySystem,
    rules: PricingRules,
    plan: MovePlan,
    *,
    steps: int = 2,
    limit_seconds: float = np.inf,
) -> StepResult:
    """Price a plan; raises MovePlanError for one that cannot be carried out.

    With ``limit_seconds``, a plan that no step carries out in less raises SlowPlanError, and its
    last step is simulated no further than to there.
    """
    life = vitality(trace)
    check_plan(trace, life, system, rules, plan)
    given = _input(trace, life, system, rules, plan)
    state = _state(trace, system, given)
    times = [0]
    limit = min(limit_seconds * trace.ticks_per_second, float(_NEVER))
    for step in range(steps):
        if step == steps - 1 and all(duration >= limit for duration in np.diff(times)):
            state.scalars[compiled.LIMIT] = min(times[-1] + int(limit), _NEVER)
        compiled.run_step(given, state)
        _raise(trace, state)
        times.append(int(state.scalars[compiled.NOW]))
    page = system.granularity_bytes
    begin, end = state.log_times[:, 0] - times[-2], state.log_times[:, 1] - times[-2]
    return StepResult(
        tuple(np.diff(times).tolist()),
        trace.ticks_per_second,
        begin,
        end,
        end - begin - trace.kernel_ticks,
        state.log_occupied * page,
        state.log_moved * page,
    )


def _raise(trace: TensorTrace, state: compiled.StepState) -> None:
    error = int(state.scalars[compiled.ERROR])
    if error == compiled.FINE:
        return
    if error == compiled.TOO_SLOW:
        raise SlowPlanError(f"{trace.name}: the plan takes longer than the limit")
    kernel, tensor = int(state.scalars[compiled.KERNEL]), int(state.scalars[compiled.ERROR_TENSOR])
    what = f", tensor {tensor}" if error == compiled.NO_ROOM else ""
    raise MovePlanError(f"{trace.name}: kernel {kernel}{what}: {_PROBLEMS[error]}")


def slot_ticks(trace: TensorTrace, system: MemorySystem) -> tuple[int, float]:
    """Return the length of a slot in ticks, and the fastest path's bytes per second."""
    fastest = max(
        system.bandwidth(tier, inwards=inwards)
        for tier in range(1, len(system.tiers))
        for inwards in (True, False)
    )
    ticks = int(SLOT_PAGES * system.granularity_bytes / fastest * trace.ticks_per_second)
    return max(ticks, 1), fastest


def _input(
    trace: TensorTrace,
    life: Vitality,
    system: MemorySystem,
    rules: PricingRules,
    plan: MovePlan,
) -> compiled.StepInput:
    page, tiers = system.granularity_bytes, len(system.tiers)
    ticks, fastest = slot_ticks(trace, system)
    paths = np.full((tiers, len(system.links) + 1), -1, np.int64)
    for tier in range(1, tiers):
        paths[tier, : len(system.path(tier))] = system.path(tier)
    rates = np.array([[link.inwards, link.outwards] for link in system.links]) * 1e9
    rates *= SLOT_PAGES / fastest
    if rules.whole_pages:
        rates = np.maximum(np.floor(rates + 1e-9), 1)
    price = np.zeros((tiers, 2))
    if system.in_place:
        speed = np.array([[tier.read, tier.write] for tier in system.tiers], np.float64) * 1e9
        price = page * (1 / speed - 1 / speed[0]) * trace.ticks_per_second
    cost = system.allocation_seconds_per_byte * page * trace.ticks_per_second
    dying = np.flatnonzero(life.death >= 0)
    dying = dying[np.argsort(life.death[dying], kind="stable")]
    per_kernel = np.bincount(life.death[dying], minlength=trace.kernels + 1)
    moves = np.bincount(plan.kernel, minlength=trace.kernels)
    return compiled.StepInput(
        trace.kernel_ticks,
        trace.fault_ticks if rules.overlap else np.zeros((0, 0), np.int64),
        trace.use_start,
        trace.use_tensor,
        trace.use_mode,
        -(-trace.tensor_bytes // page),
        np.concatenate([[0], np.cumsum(per_kernel)]),
        dying,
        np.array([tier.capacity // page for tier in system.tiers]),
        paths,
        rates,
        np.array([link.half_duplex for link in system.links]),
        _setup_pages(system, rates, ticks / trace.ticks_per_second),
        np.array([system.bandwidth(tier, inwards=True) / 1000 for tier in (1, tiers - 1)]),
        price,
        np.array([tier.access_us for tier in system.tiers]) / 1e6 * trace.ticks_per_second,
        np.concatenate([[0], np.cumsum(moves)]),
        plan.tensor,
        plan.target,
        -(-plan.size // page),
        rules.overlap,
        rules.keep_running,
        rules.drop_dead,
        rules.whole_pages,
        system.in_place,
        ticks,
        ticks // round(cost) if round(cost) else _FREE_PAGES,
        round(rules.fault_seconds * trace.ticks_per_second),
        round(rules.slow_fault_seconds * trace.ticks_per_second),
        trace.ticks_per_second,
        page,
    )


def _setup_pages(system: MemorySystem, rates: Floats, slot_seconds: float) -> Ints:
    """Return the latency of a transaction in pages that its path carries meanwhile, (N, 2).

    ``rates`` (L, 2) are pages per slot of each link, in and out.
    """
    pages = np.zeros((len(system.tiers), 2), np.int64)
    for tier in range(1, len(system.tiers)):
        path = system.path(tier)
        slots = system.latency_seconds(tier) / slot_seconds
        for way in (compiled.IN, compiled.OUT):
            rate = min(rates[link, 0 if system.links[link].half_duplex else way] for link in path)
            pages[tier, way] = np.ceil(slots * rate)
    return pages


def _state(
    trace: TensorTrace, system: MemorySystem, given: compiled.StepInput
) -> compiled.StepState:
    tiers, tensors, links = len(system.tiers), trace.tensors, len(system.links)
    rest = np.zeros((tensors, tiers + 1), np.int64)
    persistent = trace.tensor_persistent
    start = tiers - 1
    rest[persistent, start] = given.pages[persistent]
    rest[~persistent, tiers] = given.pages[~persistent]
    occupied = rest[:, :tiers].sum(axis=0)
    if occupied[start] > given.capacity[start]:
        raise MovePlanError(f"{trace.name}: the weights do not fit tier {system.names[start]}")
    queues = 3 * tiers
    run_links = np.full((_RUNS, 4), -1, np.int64)
    run_links[:-1, 1] = np.arange(1, _RUNS)
    scalars = np.zeros(compiled.LIMIT + 1, np.int64)
    scalars[[compiled.HEAD, compiled.TAIL]] = -1
    scalars[compiled.LIMIT] = _NEVER
    return compiled.StepState(
        rest,
        np.zeros_like(rest),
        np.zeros(tensors, np.int64),
        occupied,
        np.zeros(tensors, np.bool_),
        np.zeros((queues, compiled.QUEUE_ROWS), np.int64),
        np.zeros((queues, compiled.QUEUE_ROWS), np.int64),
        np.zeros((queues, compiled.QUEUE_ROWS), np.int64),
        np.zeros((queues, 2), np.int64),
        np.zeros(_RUNS, np.int64),
        np.zeros(_RUNS, np.int64),
        run_links,
        np.full(tensors, -1, np.int64),
        np.zeros((links, 2)),
        np.zeros((links, 2), np.int64),
        scalars,
        np.zeros((trace.kernels, 2), np.int64),
        np.zeros((trace.kernels, tiers), np.int64),
        np.zeros((trace.kernels, tiers, 2), np.int64),
    )
