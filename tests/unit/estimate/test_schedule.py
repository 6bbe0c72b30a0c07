# SPDX-License-Identifier: MIT
"""Schedules of migrations, compared with static layouts and a window computed by hand."""

from collections.abc import Callable

import numpy as np
import pytest

from hmd.estimate import RuntimeModel, Schedule, build_model, layout, price_schedule, side_by_side
from hmd.trace.trace import Trace

ModelOf = Callable[..., RuntimeModel]


def moves(rows: list[tuple[float, int, bool]]) -> Schedule:
    """Moves as (ns, page, to fast memory)."""
    return Schedule(
        np.array([t for t, _, _ in rows], np.float64),
        np.array([page for _, page, _ in rows], np.int32),
        np.array([fast for _, _, fast in rows], np.bool_),
    )


def promote_all(model: RuntimeModel, at_ns: float, chosen: layout.Layout) -> Schedule:
    return moves([(at_ns, int(page), True) for page in np.flatnonzero(chosen)])


def test_price_schedule_moves_at_start_equal_final_layout(slow_run: Trace, fast_run: Trace) -> None:
    runs = side_by_side(slow_run, fast_run)
    model = build_model(runs)
    chosen = layout.interleaved(runs.pages, 0.4)
    start = layout.all_slow(runs.pages)
    priced = price_schedule(model, start, promote_all(model, 0.0, chosen), move_ns=0.0)
    assert priced.estimate.window_ns == pytest.approx(model.estimate(chosen).window_ns, rel=1e-5)
    assert priced.moved == chosen.sum()
    assert priced.moving_ns == 0
    # What the moves take comes on top, in the window in which they are.
    costly = price_schedule(model, start, promote_all(model, 0.0, chosen), move_ns=1000.0)
    assert costly.moving_ns == 1000 * chosen.sum()
    more = costly.estimate.window_ns - priced.estimate.window_ns
    assert more[0] == pytest.approx(costly.moving_ns)
    assert more[1:] == pytest.approx(np.zeros(59), abs=1e-3)


def test_price_schedule_moves_after_end_equal_initial_layout(
    slow_run: Trace, fast_run: Trace
) -> None:
    runs = side_by_side(slow_run, fast_run)
    model = build_model(runs)
    start = layout.interleaved(runs.pages, 0.4)
    late = promote_all(model, 1e12, layout.all_fast(runs.pages))
    priced = price_schedule(model, start, late)
    assert priced.estimate.window_ns == pytest.approx(model.estimate(start).window_ns, rel=1e-5)
    assert (priced.moved, priced.moving_ns) == (0, 0.0)


def test_price_schedule_move_within_window_equals_hand_computation(model_of: ModelOf) -> None:
    # A chain of misses, K = 1, linear: 100 ns, and 300 ns for what is slow. Its one page moves at
    # 150 ns. With x of the window slow: x = 150 / (100 + 300 x), so 300 x^2 + 100 x - 150 = 0.
    model = model_of([100.0], k=1.0)
    x = (-100 + np.sqrt(100**2 + 4 * 300 * 150)) / 600
    schedule = moves([(150.0, 0, True)])
    priced = price_schedule(model, np.array([False]), schedule, move_ns=0.0)
    assert priced.estimate.runtime_ns == pytest.approx(100 + 300 * x, rel=1e-3)
    assert priced.moved == 1


def test_price_schedule_move_between_windows_applies_to_second(
    slow_run: Trace, fast_run: Trace
) -> None:
    runs = side_by_side(slow_run, fast_run, windows=2)
    model = build_model(runs)
    half_ns = float(runs.slow.ns[0])
    every = layout.all_fast(runs.pages)
    schedule = promote_all(model, half_ns, every)
    priced = price_schedule(model, layout.all_slow(runs.pages), schedule, move_ns=0.0)
    assert priced.estimate.window_ns == pytest.approx([runs.slow.ns[0], runs.fast.ns[1]], rel=1e-6)


def test_price_schedule_move_and_return_both_moves_charged(model_of: ModelOf) -> None:
    model = model_of([100.0], k=1.0)
    schedule = moves([(0.0, 0, True), (0.0, 0, False)])
    priced = price_schedule(model, np.array([False]), schedule, move_ns=5.0)
    assert priced.moved == 2
    assert priced.estimate.runtime_ns == pytest.approx(400 + 2 * 5.0)


def test_price_schedule_move_to_current_tier_free(model_of: ModelOf) -> None:
    model = model_of([50.0, 50.0], k=1.0)
    schedule = moves([(0.0, 0, False), (10.0, 1, True), (20.0, 1, True)])
    start = np.array([False, True])
    priced = price_schedule(model, start, schedule)
    assert (priced.moved, priced.moving_ns) == (0, 0.0)
    assert priced.estimate.runtime_ns == pytest.approx(model.estimate(start).runtime_ns)


def test_price_schedule_unsampled_page_only_move_charged(model_of: ModelOf) -> None:
    model = model_of([50.0, 50.0], k=1.0)
    start = np.array([False, True, False])
    priced = price_schedule(model, start, moves([(0.0, 2, True)]), move_ns=7.0)
    assert priced.estimate.runtime_ns == pytest.approx(250 + 7)
    with pytest.raises(ValueError, match="page 3"):
        price_schedule(model, start, moves([(0.0, 3, True)]))


def test_schedule_unordered_or_ragged_refused() -> None:
    with pytest.raises(ValueError, match="in order"):
        moves([(2.0, 0, True), (1.0, 0, True)])
    with pytest.raises(ValueError, match="same length"):
        Schedule(np.zeros(2), np.zeros(1, np.int32), np.zeros(2, np.bool_))
