"""A policy at work on two tiers, as an observer tells of it: for hosts with one memory node."""

from __future__ import annotations

import numpy as np

from hmd.decide.histogram import Histogram, HistogramSettings
from hmd.decide.rehearsal import BASE, Rehearsal, Tier, hot_blocks
from hmd.machine.topology import Node, Topology
from hmd.migrate.move_status import MoveStatus
from hmd.migrate.outcome import MoveOutcome
from hmd.observe.observer import ObservedConfig, Observer, Places
from hmd.observe.residency_counts import heat_pages
from hmd.observe.snapshot import Snapshot
from hmd.observe.tick_record import Stage
from hmd.observe.tick_record import TickRecord as ObservedTick
from hmd.sample.access_batch import AccessBatch
from hmd.sample.sampler import Sampler


class Rehearsed(Rehearsal):
    """A policy that follows a hot set, told of by an observer; ``latest`` does a tick first.

    The hot set is one of two in turn, so that pages go up, down, and up again.
    """

    FAST, PAGES, HOT, TICKS_EACH = 700, 2048, 512, 4

    def __init__(self, sampler: Sampler) -> None:
        tiers = (Tier(self.FAST), Tier(2 * self.PAGES))
        self.hot_sets = [hot_blocks(self.PAGES, self.HOT, 16, seed) for seed in (1, 2)]
        node = np.ones(self.PAGES, np.int8)
        node[: self.FAST // 2] = 0
        settings = HistogramSettings(headroom_bytes=0)
        policy = Histogram(settings)
        super().__init__(policy, tiers, self.hot_sets[0], node, samples_per_tick=20_000)
        self.topology = Topology(
            (
                Node(0, (0,), self.FAST * 4096, (10, 20), tier=0, read_latency_ns=90),
                Node(1, (), 2 * self.PAGES * 4096, (20, 10), tier=1, read_latency_ns=305),
            )
        )
        setting = ObservedConfig("rehearsed", False, 1.0, 0.01, policy.name, ("rehearsed",))
        self.observer = Observer(setting, self.topology, sampler)
        self.ticks = 0

    def sample(self) -> AccessBatch:
        """Draw samples, and keep them and where their pages lie."""
        self.batch = super().sample()
        page = (self.batch.address - np.uint64(BASE)) // np.uint64(4096)
        self.places = self.node[page.astype(np.int64)].astype(np.int16)
        return self.batch

    def latest(self) -> Snapshot:
        self.ticks += 1
        self.weights = self.hot_sets[self.ticks // self.TICKS_EACH % 2]
        self.tick()
        plan, pages = self.plan, int(self.plan.pages.sum())
        up = int(plan.pages[plan.to_node == 0].sum())
        outcome = MoveOutcome(
            np.full(len(plan), MoveStatus.MOVED, np.int16),
            plan.to_node,
            plan.pages,
            {(1, 0): up, (0, 1): pages - up},
            {MoveStatus.MOVED: pages},
            calls=2,
            seconds=0.01,
        )
        tick = ObservedTick(
            float(self.ticks),
            plan.processes,
            ("rehearsed",),
            self.batch,
            self.places,
            plan,
            outcome,
            stage_s=dict.fromkeys(Stage, 0.01),
        )
        resident = np.bincount(self.node, minlength=2).reshape(1, 2)
        heat = heat_pages(self.heat, self.topology)
        self.observer.observe(tick, Places(resident, heat, self.heat.stats.bytes))
        return self.observer.latest
