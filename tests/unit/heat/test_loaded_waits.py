# SPDX-License-Identifier: MIT
"""Measured latencies: nodes are compared within ticks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hmd.heat.counting import LoadedLatencies

IDLE_NS = (100.0, 300.0)


def measured(*ticks: Sequence[tuple[int, float]]) -> list[float]:
    """Means after ticks, in each of which so many loads waited so long on average, by node."""
    waits = LoadedLatencies(IDLE_NS)
    for tick in ticks:
        for node, (loads, mean_ns) in enumerate(tick):
            waits.sums[node] = loads, loads * mean_ns
        waits.close_tick()
    means: list[float] = waits.mean_ns.tolist()
    return means


def test_mean_of_the_loads_of_a_tick() -> None:
    assert measured([(100, 150), (200, 350)]) == pytest.approx([150, 350])


def test_loads_of_several_ticks_give_a_mean_together() -> None:
    assert measured(*[[(0, 0), (20, 400)]] * 3)[1] == pytest.approx(400)


def test_few_loads_of_a_tick_that_is_past_say_how_far_nodes_are_apart() -> None:
    # All loads waited 500 ns more while pages moved; few of the fast node have come since.
    moving, calm = [(60, 600.0), (300, 800.0)], [(3, 100.0), (300, 300.0)]
    assert measured(moving, calm, calm) == pytest.approx([100, 300])


def test_node_that_is_saturated_is_slower_than_the_one_below() -> None:
    assert measured([(500, 450), (50, 310)]) == pytest.approx([450, 310])


def test_no_node_answers_sooner_than_when_idle() -> None:
    assert measured([(50, 400), (500, 900)], [(0, 0), (500, 310)])[0] == 100


def test_node_without_loads_is_not_measured() -> None:
    assert measured([(0, 0), (500, 700)]) == pytest.approx([0, 700])


def test_what_was_measured_fades() -> None:
    quiet = [(0, 0), (0, 0)]
    means = measured([(100, 200), (100, 400)], *[quiet] * 40)
    assert max(means) < 1


def test_no_nodes() -> None:
    waits = LoadedLatencies()
    waits.close_tick()
    assert waits.mean_ns.tolist() == []
