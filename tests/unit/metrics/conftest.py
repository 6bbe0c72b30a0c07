# SPDX-License-Identifier: MIT
"""A two-tier machine and ticks on it."""

import numpy as np
import pytest

from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Node, Topology
from hmd.metrics.observer import ObservedConfig, Observer
from hmd.metrics.status import Stage
from hmd.metrics.tick_record import TickRecord
from hmd.migrate.status import MoveOutcome, MoveStatus
from hmd.policy.plan import Plan
from hmd.sample.access_batch import AccessBatch
from hmd.sample.periods import RecordTime
from hmd.sample.sampler import CAPABILITIES, SamplerStats

REDIS, BATCH = ProcessId(101, 1), ProcessId(102, 2)


class QuietSampler:
    """Samples nothing; only its statistics are read here."""

    name = "pmu"
    capabilities = CAPABILITIES["pmu"]
    detail = "loads"
    period = 1009
    periods: tuple[int, ...] = (1009,)
    pair_period: int | None = None
    outside_cpu_s = 1.5
    record_time = RecordTime()

    def __init__(self) -> None:
        self.stats = SamplerStats(samples=5, lost=1)

    def set_period(self, period: int) -> int:
        return period

    def track(self, processes: object) -> None: ...

    def read(self) -> AccessBatch:
        return AccessBatch.empty()

    def close(self) -> None: ...


@pytest.fixture
def topology() -> Topology:
    return Topology(
        (
            Node(0, (0, 1), 1 << 30, (10, 20, 20), tier=0),
            Node(2, (), 4 << 30, (20, 10, 20), tier=1),
            Node(3, (), 4 << 30, (20, 20, 10), tier=1),
        )
    )


@pytest.fixture
def observer(topology: Topology) -> Observer:
    setting = ObservedConfig(
        "/etc/hmd/hmd.yaml", False, 1.0, 0.01, 0.01, "histogram", ("redis", "batch")
    )
    return Observer(setting, topology, QuietSampler())


def batch(process: list[int], period: int = 10) -> AccessBatch:
    n = len(process)
    return AccessBatch.of(
        np.arange(n, dtype=np.uint64) * np.uint64(4096), np.array(process, np.int32), period=period
    )


@pytest.fixture
def tick() -> TickRecord:
    """Redis: 3 samples on node 0, 1 on node 2; batch: 1 on node 3, 1 nowhere known.

    Of Redis a huge page is promoted and a page fails; of batch a page is demoted.
    """
    plan = Plan(
        (REDIS, BATCH),
        np.array([1, 0, 0], np.int32),
        np.array([4096, 1 << 21, 1 << 22], np.uint64),
        np.array([1, 512, 1], np.uint32),
        np.array([0, 2, 3], np.int16),
        np.array([2, 0, 0], np.int16),
        np.array([0, 9, 8], np.float32),
        np.array([0, 1, 1], np.int32),
    )
    outcome = MoveOutcome(
        status=np.array([MoveStatus.MOVED, MoveStatus.MOVED, MoveStatus.BUSY], np.int16),
        node=np.array([2, 0, 3], np.int16),
        moved_pages=np.array([1, 512, 0], np.uint32),
        moved={(0, 2): 1, (2, 0): 512},
        pages={MoveStatus.MOVED: 513, MoveStatus.BUSY: 1},
        calls=3,
        seconds=0.01,
    )
    return TickRecord(
        now_s=1.0,
        processes=(REDIS, BATCH),
        targets=("redis", "batch"),
        batch=batch([0, 0, 0, 0, 1, 1]),
        node=np.array([0, 0, 0, 2, 3, -1], np.int16),
        plan=plan,
        outcome=outcome,
        stage_s={Stage.SAMPLE: 0.001, Stage.MIGRATE: 0.02},
        failed=frozenset({Stage.DECIDE}),
    )
