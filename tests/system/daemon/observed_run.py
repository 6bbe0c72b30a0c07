# SPDX-License-Identifier: MIT
"""A simulated policy on two tiers, published by an observer: for hosts with one memory node."""

from __future__ import annotations

import numpy as np

from bench.synthetic.synthetic_run import SyntheticRun, Tier, hot_blocks
from hmd.metrics.demand import measure_demand
from hmd.metrics.observer import (
    ObservedConfig,
    Observer,
    ResidencyCounts,
    heat_pages,
    resident_pages,
)
from hmd.metrics.status import Status
from hmd.policy.builtin.histogram import Histogram, HistogramSettings
from hmd.sample.sampler import Sampler


class ObservedRun(SyntheticRun):
    """A policy that follows a hot set, under an observer; ``latest`` runs a tick first.

    The hot set is one of two in turn, so that pages go up, down, and up again.
    """

    FAST, PAGES, HOT, TICKS_EACH = 700, 2048, 512, 4

    def __init__(self, sampler: Sampler) -> None:
        tiers = (Tier(self.FAST, latency_ns=90), Tier(2 * self.PAGES, latency_ns=305))
        self.hot_sets = [hot_blocks(self.PAGES, self.HOT, 16, seed) for seed in (1, 2)]
        node = np.ones(self.PAGES, np.int8)
        node[: self.FAST // 2] = 0
        policy = Histogram(HistogramSettings(headroom_min=0))
        super().__init__(policy, tiers, self.hot_sets[0], node, samples_per_tick=20_000)
        setting = ObservedConfig("synthetic", False, 1.0, 0.01, 0.01, policy.name, (self.name,))
        self.topology = self.machine.topology
        self.observer = Observer(setting, self.topology, sampler)
        self.tick_count = 0

    def latest(self) -> Status:
        """Run a tick and return what is published then."""
        self.tick_count += 1
        self.weights = self.hot_sets[self.tick_count // self.TICKS_EACH % 2]
        self.tick()
        assert self.record is not None
        resident = resident_pages(self.heat, self.topology)
        heat = heat_pages(self.heat, self.topology)
        demand = measure_demand(self.heat, self.topology, [self.name], np.ones(1), {})
        self.observer.demand = demand
        self.observer.observe(self.record, ResidencyCounts(resident, heat, self.heat.stats))
        return self.observer.latest
