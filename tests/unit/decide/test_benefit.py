"""The benefit policy: it moves what pays, and keeps still where nothing does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hmd.decide.benefit import Benefit, Settings, tier_latency_ns
from hmd.decide.nodes import nodes_of
from hmd.decide.plan import MachineView
from hmd.decide.rehearsal import Rehearsal, Tier, hot_blocks
from hmd.heat.layout import CHUNK_PAGES, PAGE_BYTES
from hmd.machine.topology import Node, NodeMemory, Topology

PAGES, FAST = 8192, 2048
HEADROOM = 16


def rehearsal(
    weights: npt.NDArray[np.float64],
    *,
    samples: int = 20_000,
    huge: npt.NDArray[np.bool_] | None = None,
    **settings: float,
) -> Rehearsal:
    """A program that fills the fast tier with its first pages."""
    kept = Settings(headroom_fraction=0.0, headroom_bytes=HEADROOM * PAGE_BYTES)
    policy = Benefit(
        Settings(kept.headroom_fraction, kept.headroom_bytes, **settings)  # type: ignore[arg-type]
    )
    node = (np.arange(len(weights)) >= FAST).astype(np.int8)
    tiers = (Tier(FAST + HEADROOM), Tier(2 * PAGES))
    return Rehearsal(policy, tiers, weights, node, samples_per_tick=samples, huge=huge)


def test_the_hot_set_comes_and_then_hardly_anything_moves() -> None:
    run = rehearsal(hot_blocks(PAGES, 1536, 16, seed=3))
    for _ in range(12):
        run.tick()
    assert run.fast_share > 0.9
    # What moves are cold pages that fill the rest of the room.
    assert sum(run.tick().moved_pages for _ in range(5)) < PAGES // 25
    assert run.fast_share > 0.9


def test_a_hot_set_that_moves_is_followed() -> None:
    run = rehearsal(hot_blocks(PAGES, 1536, 16, seed=3))
    for _ in range(12):
        run.tick()
    run.weights = hot_blocks(PAGES, 1536, 16, seed=4)
    for _ in range(8):
        run.tick()
    assert run.fast_share > 0.85


def test_where_moves_cost_more_than_they_save_nothing_moves() -> None:
    run = rehearsal(hot_blocks(PAGES, 1536, 16, seed=3), move_ns=1e9)
    assert sum(run.tick().moved_pages for _ in range(10)) == 0


def test_cheaper_moves_are_made_sooner() -> None:
    weights = hot_blocks(PAGES, 1536, 16, seed=3)
    dear, cheap = (rehearsal(weights, samples=400, move_ns=cost) for cost in (200_000.0, 200.0))
    assert sum(cheap.tick().moved_pages for _ in range(3)) > sum(
        dear.tick().moved_pages for _ in range(3)
    )


def test_pages_that_are_all_alike_are_left_alone() -> None:
    run = rehearsal(np.ones(PAGES))
    for _ in range(20):
        run.tick()
    assert sum(run.tick().moved_pages for _ in range(10)) < PAGES // 50


def test_a_hot_set_that_flees_is_given_up() -> None:
    """Each tick other pages are hot: what was promoted has cooled when it arrives."""
    fleeing, settled = (rehearsal(hot_blocks(PAGES, 512, 16, seed=0)) for _ in range(2))
    moved = np.zeros((2, 30), np.int64)
    for tick in range(30):
        fleeing.weights = hot_blocks(PAGES, 512, 16, seed=tick)
        moved[0, tick] = fleeing.tick().moved_pages
        moved[1, tick] = settled.tick().moved_pages
    horizons = [
        float(policy._persistence.horizon(run.heat, run.heat.rates())[0])
        for run, policy in ((fleeing, fleeing.policy), (settled, settled.policy))
        if isinstance(policy, Benefit)
    ]
    assert horizons[0] < horizons[1] / 2


def test_a_huge_page_comes_whole_and_sends_as_much_away() -> None:
    weights = np.full(PAGES, 1e-6)
    weights[12 * CHUNK_PAGES : 13 * CHUNK_PAGES] = 1.0
    run = rehearsal(weights, huge=np.ones(PAGES // CHUNK_PAGES, np.bool_))
    ticks = [run.tick() for _ in range(3)]
    assert sum(tick.promoted_pages for tick in ticks) == CHUNK_PAGES
    assert sum(tick.demoted_pages for tick in ticks) == CHUNK_PAGES
    assert run.fast_share > 0.99


def machine(*nodes: Node) -> MachineView:
    memory = tuple(NodeMemory(node.id, node.total_bytes, node.total_bytes) for node in nodes)
    return MachineView(Topology(nodes), memory, 0.0, 1.0, 1 << 40)


def node(number: int, tier: int, latency: int | None, bandwidth: int | None) -> Node:
    return Node(number, (0,), 1 << 30, (10, 20, 30), tier, latency, latency, bandwidth, bandwidth)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node(0, 0, 90, 100_000), node(1, 1, 350, 50_000)], [90, 350]),
        # HBM answers no sooner, but is four times as wide.
        ([node(0, 0, 120, 400_000), node(1, 1, 100, 100_000)], [120, 480]),
        ([node(0, 0, None, None), node(1, 1, None, None)], [90, 180]),
        ([node(0, 0, 80, None), node(1, 0, 120, None), node(2, 1, 300, None)], [100, 300]),
    ],
)
def test_what_a_line_takes_from_each_tier(nodes: list[Node], expected: list[float]) -> None:
    view = machine(*nodes)
    assert tier_latency_ns(view.topology, nodes_of(view, 0.0, 0)).tolist() == expected
