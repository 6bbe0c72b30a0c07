# SPDX-License-Identifier: MIT
"""The policy tensors moves pages ahead of the uses that a program announces."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.synthetic.synthetic_run import BASE, PROCESS, SyntheticRun, Tier
from hmd.base.units import PAGE_BYTES
from hmd.policy import registry
from hmd.policy.plan import MachineView, Plan, Policy
from hmd.policy.use_hints import STEP_PARTS, HintTable

if TYPE_CHECKING:
    from hmd.heat.view import PageView

PARTS, PART_PAGES, PART_TICKS = 8, 512, 3
PAGES, STEP_TICKS = PARTS * PART_PAGES, PARTS * PART_TICKS
FAST = PAGES // 3
KEPT = {"headroom": 0.0, "headroom_min": 16 * PAGE_BYTES}


class Told:
    """A policy with the hints of a program that uses its parts one after the other."""

    name = "told"

    def __init__(self, policy: Policy, step_s: float = STEP_TICKS, size: int = PART_PAGES) -> None:
        self._policy, self._table = policy, HintTable()
        self._step_s = step_s
        self._uses = [
            [
                BASE + part * PART_PAGES * PAGE_BYTES,
                size * PAGE_BYTES,
                part * STEP_PARTS // PARTS,
                (part + 1) * STEP_PARTS // PARTS,
                64,
            ]
            for part in range(PARTS)
        ]

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        begun_s = machine.now_s // self._step_s * self._step_s
        self._table.accept(
            PROCESS,
            {
                "plan": 1,
                "first": 0,
                "uses": self._uses,
                "begun_ns": int(begun_s * 1e9),
                "step_ns": int(self._step_s * 1e9),
            },
        )
        hints = self._table.at(pages.processes, machine.now_s)
        return self._policy.plan(pages, replace(machine, hints=hints))


def fast_share(policy: Policy, steps: int = 4, *, budget_pages: int = 1 << 28) -> float:
    """Return the mean share of accesses that the fast tier served in the last step."""
    run = SyntheticRun(
        policy,
        (Tier(FAST + 16), Tier(2 * PAGES)),
        np.ones(PAGES),
        (np.arange(PAGES) >= FAST).astype(np.int8),
        samples_per_tick=20_000,
        budget_bytes=budget_pages * PAGE_BYTES,
    )
    shares = []
    for tick in range(steps * STEP_TICKS):
        # Samples are of the time before a plan, which is made for the time after.
        part = tick // PART_TICKS % PARTS
        run.weights = np.full(PAGES, 1e-6)
        run.weights[part * PART_PAGES : (part + 1) * PART_PAGES] = 1.0
        shares.append(float(run.weights[run.node == 0].sum() / run.weights.sum()))
        run.tick()
    return float(np.mean(shares[-STEP_TICKS:]))


@pytest.fixture(scope="module")
def by_heat() -> float:
    return fast_share(registry.create("benefit", KEPT))


def test_tensors_parts_are_fast_before_their_use(by_heat: float) -> None:
    told = fast_share(Told(registry.create("tensors", KEPT)))
    assert told > 0.9
    assert told > by_heat + 0.3


def test_tensors_moves_keep_to_bandwidth() -> None:
    budget_pages = PART_PAGES // PART_TICKS
    told = fast_share(Told(registry.create("tensors", KEPT)), budget_pages=2 * budget_pages + 64)
    assert told > 0.8


def test_tensors_without_hints_decides_as_benefit(by_heat: float) -> None:
    assert fast_share(registry.create("tensors", KEPT)) == by_heat


def test_tensors_step_shorter_than_ticks_moves_little() -> None:
    """All parts are as hot as each other: nothing to move."""
    run = SyntheticRun(
        Told(registry.create("tensors", KEPT), step_s=1.0),
        (Tier(FAST + 16), Tier(2 * PAGES)),
        np.ones(PAGES),
        (np.arange(PAGES) >= FAST).astype(np.int8),
        samples_per_tick=20_000,
    )
    assert sum(run.tick().moved_pages for _ in range(12)) < PAGES // 50


def test_tensors_hints_of_absent_memory_ignored(by_heat: float) -> None:
    class Elsewhere(Told):
        def __init__(self, policy: Policy) -> None:
            super().__init__(policy)
            for use in self._uses:
                use[0] += 1 << 40

    assert fast_share(Elsewhere(registry.create("tensors", KEPT))) == by_heat
