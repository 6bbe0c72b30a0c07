"""A policy against a program of known heat, over the daemon's tick: page moves take no time.

Takes a policy and a program; gives, tick by tick, the share of accesses that the fast tier served
and how many pages moved. For tests of policies and bench/stages/policy.py. Samples are drawn at
random from the program's access rates. The machine checks every move: the page is where the plan
expects it, and the target node has room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.synthetic.modelled_stages import modelled_stages
from bench.synthetic.synthetic_memory import BASE, PROCESS, SyntheticMemory, Tier, page_number
from hmd.decide.plan import MachineView, Plan, Policy
from hmd.heat.heat_settings import HeatSettings
from hmd.heat.heat_table import HeatTable
from hmd.migrate import MoverSettings, MoveStatus
from hmd.observe.tick_record import TickRecord
from hmd.pipeline.stage_guard import StageTimer
from hmd.pipeline.tick import run_tick
from hmd.residency.residency_sweep import ResidencySweep, SweepSettings
from hmd.residency.swept_memory import ModelledMemory
from hmd.sample.access_batch import AccessBatch
from hmd.sample.capabilities import CAPABILITIES
from hmd.units import PAGE_BYTES

_TICK_S = 1.0
_ALL_PAGES = SweepSettings(pages_per_step=1 << 40)


@dataclass(frozen=True, slots=True)
class SyntheticTick:
    """A tick: share of accesses on the fastest tier after it, and 4 KiB pages that moved."""

    fast_share: float
    promoted_pages: int
    demoted_pages: int

    @property
    def moved_pages(self) -> int:
        """All 4 KiB pages that moved."""
        return self.promoted_pages + self.demoted_pages


class SyntheticRun:
    """One program on a machine of one node per tier, or with tiers of ``ranks``, under one policy.

    ``weights``, shape ``(pages,)``, is how often each page is accessed, in any unit, and may be
    replaced between ticks; ``node`` says where each page starts. Chunks that are ``huge`` move
    whole. ``latency_ns`` gives how long a load waits for each node where the fastest serves this
    share of all; None: not known. ``record`` is that of the last tick.
    """

    name = "synthetic"
    capabilities = CAPABILITIES["pmu"]

    def __init__(
        self,
        policy: Policy,
        tiers: tuple[Tier, ...],
        weights: npt.NDArray[np.float64],
        node: npt.NDArray[np.int8],
        *,
        samples_per_tick: int,
        huge: npt.NDArray[np.bool_] | None = None,
        heat: HeatSettings | None = None,
        budget_bytes: int = 1 << 40,
        seed: int = 1,
        latency_ns: Callable[[float], Sequence[float]] | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self.weights = weights
        self.samples_per_tick = samples_per_tick
        self.policy = policy
        self.record: TickRecord | None = None
        self._latency_ns = latency_ns
        self._random = np.random.default_rng(seed)
        self._now_s, self._timer = 0.0, StageTimer()
        self._memory = memory = SyntheticMemory(tiers, node, huge, ranks)
        table = HeatTable(heat, latency_ns(0.0) if latency_ns else ())
        table.track([PROCESS])
        self._stages = modelled_stages(
            memory,
            self,
            table,
            ResidencySweep(_ALL_PAGES, ModelledMemory(memory), clock=lambda: 0.0),
            policy,
            # A bucket that holds one tick's budget and is full at each.
            MoverSettings(rate_bytes_per_s=budget_bytes, burst_s=_TICK_S),
            target=self.name,
            tick_s=_TICK_S,
            clock=lambda: self._now_s,  # stands still while pages move
        )
        self._stages.sweep.step(table)

    @property
    def heat(self) -> HeatTable:
        """The heat table."""
        return self._stages.heat

    @property
    def node(self) -> npt.NDArray[np.int8]:
        """The node of each page, shape ``(pages,)``."""
        return self._memory.node

    @property
    def plan(self) -> Plan:
        """The plan of the last tick."""
        return self.record.plan if self.record else Plan.empty()

    @property
    def machine(self) -> MachineView:
        """The machine as a policy sees it now."""
        budget = self._stages.mover.plan_bytes(self._now_s)
        memory = self._memory.memory()
        return MachineView(self._stages.topology, memory, self._now_s, _TICK_S, budget)

    def free_pages(self, node: int) -> int:
        """Return the free 4 KiB pages of a node."""
        return self._memory.free_pages(node)

    @property
    def fast_share(self) -> float:
        """Share of the program's accesses that go to the fastest tier."""
        return float(self.weights[self.node == 0].sum() / self.weights.sum())

    def read(self) -> AccessBatch:
        """Draw a tick's samples."""
        n = self.samples_per_tick
        ladder = np.cumsum(self.weights)
        page = np.searchsorted(ladder, self._random.random(n) * ladder[-1], side="right")
        waits = np.zeros(len(self._stages.topology.nodes))
        if self._latency_ns is not None:
            waits[:] = self._latency_ns(self.fast_share)
        address = BASE + page.astype(np.uint64) * np.uint64(PAGE_BYTES)
        return AccessBatch.of(
            address, weight_ns=waits[self.node[page]].astype(np.uint32), period=101
        )

    def tick(self) -> SyntheticTick:
        """Run one tick; raises ``ValueError`` where a planned move could not be made."""
        before = self.node.copy()
        self._now_s += _TICK_S
        self._memory.run(_TICK_S)
        self._timer.begin()
        self.record = record = run_tick(self._stages, self._timer, self._now_s)
        if record.outcome is None:
            return SyntheticTick(self.fast_share, 0, 0)
        _check_sources(record.plan, before)
        if (record.outcome.status != MoveStatus.MOVED).any():
            raise ValueError(f"pages could not be moved: {record.outcome.pages}")
        moved = record.outcome.moved
        up = sum(pages for (source, target), pages in moved.items() if target < source)
        return SyntheticTick(self.fast_share, up, sum(moved.values()) - up)


def hot_blocks(
    pages: int, hot_pages: int, block_pages: int, seed: int, hot_share: float = 0.9
) -> npt.NDArray[np.float64]:
    """Return weights: ``hot_share`` of accesses to random blocks, the rest over all pages."""
    blocks = pages // block_pages
    hot = np.random.default_rng(seed).permutation(blocks)[: hot_pages // block_pages]
    weights = np.full(pages, (1 - hot_share) / pages)
    for block in hot.tolist():
        weights[block * block_pages : (block + 1) * block_pages] += hot_share / hot_pages
    return weights


def _check_sources(plan: Plan, node: npt.NDArray[np.int8]) -> None:
    """Raise ``ValueError`` where a plan expects a page elsewhere than on its ``node``."""
    first = page_number(plan.address)
    last = first + plan.pages.astype(np.int64) - 1
    wrong = (node[first] != plan.from_node) | (node[last] != plan.from_node)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(f"page {first[row]} is not on node {plan.from_node[row]}")
