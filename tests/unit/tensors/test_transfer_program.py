# SPDX-License-Identifier: MIT
from __future__ import annotations

import numpy as np
import pytest

from bench.tensors.training_shapes import scaled_system, training_trace
from hmd.base.units import MIB
from hmd.tensors.eviction import step_uses
from hmd.tensors.lower_bound import lower_bound_seconds
from hmd.tensors.memory_system import STRICT, TierLink
from hmd.tensors.planner import StepProblem
from hmd.tensors.trace import Floats, Ints
from hmd.tensors.transfers import (
    TransferDraft,
    TransferSchedule,
    schedule_transfers,
    scheduled_pieces,
)

pytest.importorskip("highspy")

ALL = (1.0, 1.0, 1.0)


def problem_of(shape: str, *, fast: float = 0.3, links: float = 0.7) -> StepProblem:
    trace = training_trace(shape, 20)
    return StepProblem(trace, scaled_system(trace, fast=fast, host=0.6, links=links), STRICT)


def away(problem: StepProblem, schedule: TransferSchedule) -> Floats:
    """Return the bytes per kernel that have left and not returned, (K,)."""
    kernels = problem.trace.kernels
    change = np.zeros(3 * kernels + 1)
    np.add.at(change, schedule.parts.start + 1, schedule.parts.size)
    np.add.at(change, schedule.fetched + 1, -schedule.parts.size)
    return np.cumsum(change)[:-1].reshape(3, kernels).sum(axis=0)


@pytest.mark.parametrize("shape", ["chain", "nested", "recurrent"])
def test_schedule_leaves_no_more_than_the_fastest_tier_takes(shape: str) -> None:
    problem = problem_of(shape)
    schedule = schedule_transfers(problem, ALL, 10.0, interior=False)
    inside = problem.life.live_bytes - away(problem, schedule)
    # Parts are whole pages of 4 KiB.
    assert inside.max() <= problem.system.tiers[0].capacity + MIB
    assert problem.life.peak_bytes > problem.system.tiers[0].capacity


@pytest.mark.parametrize("shape", ["chain", "nested", "recurrent"])
def test_schedule_returns_parts_before_their_next_use(shape: str) -> None:
    schedule = schedule_transfers(problem_of(shape), ALL, 10.0, interior=False)
    assert len(schedule.fetched)
    assert (schedule.fetched > schedule.parts.start).all()
    assert (schedule.fetched <= schedule.parts.end).all()


def test_schedule_waits_as_the_plan_of_it_does() -> None:
    problem = problem_of("nested")
    schedule = schedule_transfers(problem, ALL, 10.0, interior=False)
    uses = step_uses(problem.trace, problem.life)
    draft = TransferDraft(problem, uses, schedule.seconds, 1.0)
    found = problem.price(draft.scheduled(schedule.parts, schedule.to_last, schedule.fetched))
    bound = lower_bound_seconds(problem.trace, problem.system, problem.rules)
    assert bound <= found.seconds <= 1.2 * float(schedule.seconds.sum())


def test_schedule_with_idle_links_waits_for_nothing() -> None:
    problem = problem_of("chain", links=8.0)
    schedule = schedule_transfers(problem, ALL, 10.0, interior=False)
    assert float(schedule.seconds.sum()) == pytest.approx(problem.trace.ideal_seconds, rel=1e-3)


def test_schedule_over_half_duplex_link_waits_longer() -> None:
    problem = problem_of("nested")
    links = tuple(
        TierLink.model_validate({**link.model_dump(by_alias=True), "half_duplex": True})
        for link in problem.system.links
    )
    shared = StepProblem(problem.trace, problem.system.model_copy(update={"links": links}), STRICT)
    times = [
        schedule_transfers(each, ALL, 10.0, interior=False).seconds.sum()
        for each in (problem, shared)
    ]
    assert times[1] > 1.02 * times[0]


def flow(*pages: float) -> Floats:
    return np.array(pages)


def pieces(start: Ints, end: Ints, pages: Floats, out: Floats, back: Floats) -> list[list[int]]:
    found = scheduled_pieces((start, end), pages, (out, back))
    return sorted(found.T.tolist())


def test_pieces_follow_the_flow_per_slot() -> None:
    found = pieces(
        np.array([1]), np.array([5]), flow(6), flow(0, 4, 2, 0, 0, 0), flow(0, 0, 0, 1, 5, 0)
    )
    # Gap, slot of leaving, slot of returning, end, pages.
    assert found == [[0, 1, 3, 5, 1], [0, 1, 4, 5, 3], [0, 2, 4, 5, 2]]


def test_pieces_that_end_first_return_first() -> None:
    found = pieces(
        np.array([0, 0]),
        np.array([5, 4]),
        flow(2, 2),
        flow(4, 0, 0, 0, 0, 0),
        flow(0, 0, 2, 2, 0, 0),
    )
    assert found == [[0, 0, 3, 5, 2], [1, 0, 2, 4, 2]]


def test_pieces_of_wrapping_gap_return_in_the_next_step() -> None:
    found = pieces(np.array([3]), np.array([1]), flow(2), flow(0, 0, 0, 2), flow(2, 0, 0, 0))
    assert found == [[0, 3, 4, 5, 2]]


def test_pieces_that_do_not_leave_in_time_stay() -> None:
    assert pieces(np.array([0]), np.array([2]), flow(3), flow(0, 0, 3), flow(0, 0, 0)) == []
