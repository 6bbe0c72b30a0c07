"""Past heat: pages that were hot keep a part of it where heat returns, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from bench.rehearsal import Rehearsal
from bench.rehearsed_memory import BASE, Tier
from hmd.decide.past_heat import PastHeat
from hmd.decide.policies.benefit import Benefit, BenefitSettings
from hmd.decide.policies.none import NonePolicy
from hmd.units import PAGE_BYTES

PAGES, PHASE_TICKS = 4096, 4
Weights = npt.NDArray[np.float64]


def returning(tick: int) -> Weights:
    """Three phases take turns; their pages differ."""
    weights = np.full(PAGES, 1e-6)
    weights[phase(tick)] = 1.0
    return weights


def phase(tick: int) -> npt.NDArray[np.int64]:
    """The pages of a tick's phase, in blocks of 16 all over the memory."""
    block = np.random.default_rng(1).permutation(PAGES // 16)
    own = block[tick // PHASE_TICKS % 3 :: 8]
    return np.ravel(own[:, None] * 16 + np.arange(16))


def moving(tick: int) -> Weights:
    """What was hot is never hot again, but by chance."""
    weights = np.full(PAGES, 1e-6)
    weights[(np.arange(128) + tick // PHASE_TICKS * 128) % PAGES] = 1.0
    return weights


def program(policy: NonePolicy | Benefit, fast: int, node: int = 1) -> Rehearsal:
    tiers = (Tier(fast), Tier(2 * PAGES))
    place = np.full(PAGES, node, np.int8)
    return Rehearsal(
        policy,
        tiers,
        returning(0),
        place,
        samples_per_tick=4000,
        latency_ns=lambda share: (80.0, 300.0),
    )


def address_of(page: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    return np.uint64(BASE) + page.astype(np.uint64) * np.uint64(PAGE_BYTES)


def watched(weights: Callable[[int], Weights], ticks: int, node: int = 1) -> PastHeat:
    """Return what was learnt from so many ticks of a program that stays where it is."""
    past, run = PastHeat(), program(NonePolicy(), PAGES, node)
    for tick in range(ticks):
        run.weights = weights(tick)
        run.tick()
        pages = run.heat.view(run.machine.topology)
        past.least(pages, 2)
    return past


def test_part_phases_return_is_near_their_share_of_time() -> None:
    # A page that waits is hot for a part of the next 16 ticks: two in twelve to four in eight.
    assert 0.15 < watched(returning, 90).part[0] < 0.6


def test_part_heat_never_returns_is_near_zero() -> None:
    assert watched(moving, 90).part[0] < 0.02


def test_part_before_anything_was_cold_is_zero() -> None:
    assert watched(returning, PHASE_TICKS).part[0] == 0.0


def test_least_past_pages_on_the_fast_tier_are_worth_more_than_those_never_hot() -> None:
    past, run = PastHeat(), program(NonePolicy(), PAGES, node=0)
    for tick in range(90):
        run.weights = returning(tick)
        run.tick()
        pages = run.heat.view(run.machine.topology)
        least = past.least(pages, 2)
    waiting = pages.find(0, address_of(np.concatenate([phase(89 + 4), phase(89 + 8)])))
    never = np.setdiff1d(
        np.arange(len(pages)), np.append(waiting, pages.find(0, address_of(phase(89))))
    )
    assert least[waiting].mean() > 10 * least[never].mean()
    assert (least[waiting] > pages.rate[waiting]).mean() > 0.9


def test_least_on_the_slowest_tier_is_zero() -> None:
    past, run = PastHeat(), program(NonePolicy(), PAGES)
    for tick in range(90):
        run.weights = returning(tick)
        run.tick()
        pages = run.heat.view(run.machine.topology)
        least = past.least(pages, 2)
    assert past.part[0] > 0.1
    assert not least.any()


def test_least_twice_in_a_tick_learns_once() -> None:
    past, run = PastHeat(), program(NonePolicy(), PAGES)
    for tick in range(60):
        run.weights = returning(tick)
        run.tick()
        pages = run.heat.view(run.machine.topology)
        first = past.least(pages, 2)
        part = past.part.copy()
        assert (past.least(pages, 2) == first).all()
        assert (past.part == part).all()


def test_least_a_new_table_begins_anew() -> None:
    past = watched(returning, 90)
    run = program(NonePolicy(), PAGES)
    run.tick()
    pages = run.heat.view(run.machine.topology)
    assert not past.least(pages, 2).any()
    assert past.part[0] == 0.0


def test_benefit_two_of_three_phases_fit_moves_less_than_a_phase_at_a_time() -> None:
    each = len(phase(0))
    settings = BenefitSettings(headroom_fraction=0.0, headroom_bytes=0)
    run = program(Benefit(settings), 2 * each)
    ever = np.concatenate([phase(tick) for tick in (0, 4, 8)])
    run.node[np.setdiff1d(np.arange(PAGES), ever)[: 2 * each]] = 0
    moved, served = [], []
    for tick in range(160):
        run.weights = returning(tick)
        found = run.tick()
        moved.append(found.moved_pages)
        served.append(found.fast_share)
    # By the order of their last use, every phase comes in whole, and another leaves for it.
    assert sum(moved[40:]) < 0.85 * (120 // PHASE_TICKS) * 2 * each
    assert np.mean(served[40:]) > 0.99
