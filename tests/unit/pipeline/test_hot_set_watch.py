"""Ticks in which a hot set moves, over a synthetic program and over made samples."""

from __future__ import annotations

import numpy as np
import pytest

from bench.synthetic.synthetic_run import SyntheticRun, hot_blocks
from hmd.decide.plan import Plan
from hmd.machine.nodes.topology import Topology
from hmd.observe.tick_record import TickRecord
from hmd.pipeline.hot_set_watch import HotSetWatch
from hmd.sample.access_batch import AccessBatch
from hmd.units import PAGE_BYTES
from tests.unit.pipeline.conftest import PAGES


def served(faster: int, slower: int, unknown: int = 0) -> TickRecord:
    """A tick without moves whose samples have these places."""
    node = np.repeat(np.array([0, 1, -1], np.int16), [faster, slower, unknown])
    batch = AccessBatch.of(np.zeros(len(node), np.uint64))
    return TickRecord(0.0, (), (), batch, node, Plan.empty(), None)


def test_hot_set_moves_until_it_is_on_the_faster_tier_again(synthetic: SyntheticRun) -> None:
    watch = HotSetWatch()
    topology = synthetic.machine.topology

    def moves() -> bool:
        synthetic.tick()
        assert synthetic.record is not None
        faster_bytes = int((synthetic.node == 0).sum()) * PAGE_BYTES
        return watch.moves(synthetic.record, topology, faster_bytes)

    assert moves()
    settled = [moves() for _ in range(12)]
    assert not any(settled[4:])
    assert synthetic.fast_share > 0.8
    synthetic.weights = hot_blocks(PAGES, 512, 16, seed=2)
    assert moves()
    settled = [moves() for _ in range(20)]
    assert not any(settled[12:])
    assert synthetic.fast_share > 0.8


@pytest.fixture
def topology(synthetic: SyntheticRun) -> Topology:
    return synthetic.machine.topology


@pytest.mark.parametrize(
    ("before", "now", "moves"),
    [
        ((900, 100), (700, 300), True),
        ((900, 100), (700, 300, 5000), True),
        ((900, 100), (800, 200), False),  # a fall of less than an eighth
        ((9, 1), (5, 5), False),  # too few samples to show it
        ((100, 900), (700, 300), False),  # a rise
        ((900, 100), (0, 0), False),
        ((0, 0, 100), (100, 900), False),
    ],
)
def test_fall_of_the_share_of_the_faster_tiers(
    topology: Topology, before: tuple[int, ...], now: tuple[int, ...], moves: bool
) -> None:
    watch = HotSetWatch()
    assert not watch.moves(served(*before), topology, PAGE_BYTES)
    assert watch.moves(served(*now), topology, PAGE_BYTES) == moves
    assert not watch.moves(served(*now), topology, PAGE_BYTES)
