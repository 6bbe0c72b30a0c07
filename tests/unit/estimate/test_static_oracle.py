# SPDX-License-Identifier: MIT
"""The static oracle: knapsacks of known solutions, and layouts priced by the model."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.suite.static_oracle import best_static, greedy, oracle, savings
from hmd.base.errors import MissingError
from hmd.estimate import SampleSelection, Terms, build_model, side_by_side
from hmd.estimate.model import RuntimeModel
from tests.unit.estimate.conftest import make_model, make_run

HUGE = 512


def arrays(
    saving: list[float], size: list[int]
) -> tuple[
    np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.int64]]
]:
    return np.array(saving, np.float64), np.array(size, np.int64)


def test_greedy_limited_room_densest_pages_chosen() -> None:
    saving, size = arrays([6, 10, 12, 0], [1, 2, 3, 1])
    assert greedy(saving, size, 5).tolist() == [True, True, False, False]
    assert greedy(saving, size, 4).tolist() == [True, True, False, False]
    assert greedy(saving, size, 100).tolist() == [True, True, True, False]
    assert not greedy(saving, size, 0).any()


def test_best_static_limited_room_filled_completely() -> None:
    saving, size = arrays([6, 10, 12, 0], [1, 2, 3, 1])
    assert best_static(saving, size, 5).tolist() == [False, True, True, False]


def test_best_static_one_page_size_no_solver_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    saving, size = arrays([3, 1, 2, -1], [4096] * 4)
    assert best_static(saving, size, 2 * 4096 + 100).tolist() == [True, False, True, False]
    with pytest.raises(MissingError, match=r"pip install 'hmd-tiering\[ilp\]'"):
        best_static(saving, np.array([1, 2, 3, 4]), 5)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1, 2, 5, 7])), min_size=1, max_size=10),
    st.integers(0, 30),
)
def test_best_static_small_knapsack_optimal(pages: list[tuple[int, int]], room: int) -> None:
    saving, size = arrays([float(s) for s, _ in pages], [z for _, z in pages])
    best = max(
        sum(saving[list(some)])
        for n in range(len(pages) + 1)
        for some in itertools.combinations(range(len(pages)), n)
        if size[list(some)].sum() <= room
    )
    chosen = best_static(saving, size, room)
    assert size[chosen].sum() <= room
    assert saving[chosen].sum() == pytest.approx(best)
    first = greedy(saving, size, room)
    assert size[first].sum() <= room
    assert saving[first].sum() <= best


def test_best_static_4000_pages_of_two_sizes_near_optimal() -> None:
    random = np.random.default_rng(4)
    size = np.where(random.random(4000) < 0.05, HUGE, 1).astype(np.int64)
    saving = np.round(random.gamma(0.5, 1.0, 4000) * size, 1)
    room = int(size.sum() // 3)
    chosen, first = best_static(saving, size, room), greedy(saving, size, room)
    assert size[chosen].sum() <= room
    assert saving[chosen].sum() >= saving[first].sum()
    # Two sizes can be tried out: so many huge pages, and the rest small ones.
    small, huge = (np.sort(saving[size == one])[::-1] for one in (1, HUGE))
    of_small = np.concatenate([[0], np.cumsum(small)])
    of_huge = np.concatenate([[0], np.cumsum(huge)])
    best = max(
        of_huge[n] + of_small[min(len(small), room - HUGE * n)]
        for n in range(len(huge) + 1)
        if HUGE * n <= room
    )
    assert saving[chosen].sum() >= best * (1 - 1e-5)


def test_savings_page_equal_model_difference() -> None:
    accesses = [1000.0, 10.0, 500.0, 200.0]
    model = make_model(accesses, k=1.0)
    layout = np.array([False, False, True, False])
    found = savings(model, layout)
    for page in (0, 1, 3):
        one = layout.copy()
        one[page] = True
        gained = model.estimate(layout).runtime_ns - model.estimate(one).runtime_ns
        assert found[page] == pytest.approx(gained, rel=0.05)


@pytest.fixture(scope="module")
def model() -> RuntimeModel:
    slow, fast = make_run(400, 60.0, seed=1), make_run(100, 30.0, seed=2)
    return build_model(side_by_side(slow, fast), terms=Terms(rows=SampleSelection.BOTH))


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 1.0])
def test_oracle_any_room_at_least_as_good_as_greedy(model: RuntimeModel, share: float) -> None:
    heat = np.bincount(model.page, model.accesses, model.pages).astype(np.float64)
    size = np.full(model.pages, 4096, np.int64)
    room = int(model.pages * share) * 4096
    found = oracle(model, size, room, heat)
    assert size[found.layout].sum() <= room
    assert found.runtime_ns <= found.greedy_ns
    assert found.runtime_ns == model.estimate(found.layout).runtime_ns
    assert found.greedy_ns == model.estimate(found.greedy).runtime_ns
    assert (found.greedy == greedy(heat, size, room)).all()


def test_oracle_inverted_heat_improves_on_greedy(model: RuntimeModel) -> None:
    heat = np.bincount(model.page, model.accesses, model.pages).astype(np.float64)
    size = np.full(model.pages, 4096, np.int64)
    found = oracle(model, size, model.pages // 4 * 4096, heat.max() - heat + 1)
    assert found.runtime_ns < 0.99 * found.greedy_ns
