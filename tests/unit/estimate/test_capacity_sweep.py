# SPDX-License-Identifier: MIT
"""Runtime against capacity, its knee, and the confidence interval of an estimate."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hmd.base.errors import MissingError
from hmd.cli.plots import draw_capacity_sweep
from hmd.estimate import (
    CapacitySweep,
    Interval,
    RuntimeModel,
    build_model,
    find_knee,
    interval,
    layout,
    side_by_side,
    sweep,
)
from hmd.trace.trace import Trace


@pytest.mark.parametrize("fast_samples", [False, True])
@pytest.mark.parametrize("steps", [1, 3, 20, 300])
def test_sweep_each_step_equals_estimate_of_its_layout(
    slow_run: Trace, fast_run: Trace, fast_samples: bool, steps: int
) -> None:
    runs = side_by_side(slow_run, fast_run)
    model = build_model(runs, fast_samples=fast_samples)
    curve = sweep(model, layout.heat_order(runs.pages), steps)
    assert len(curve.fast_pages) == steps + 1
    for count, runtime_ns in zip(curve.fast_pages, curve.runtime_ns, strict=True):
        alone = model.estimate(layout.by_heat(runs.pages, int(count)))
        assert runtime_ns == pytest.approx(alone.runtime_ns, rel=1e-6)
    assert curve.runtime_ns[[0, -1]] == pytest.approx([400e6, 200e6])
    assert curve.fast_bytes[-1] == len(runs.pages) * 4096


def test_find_knee_known_curves_known_knees() -> None:
    x = np.arange(11.0)
    # Falls by 40 a step, then by 2: farthest below its chord where that changes.
    broken = np.concatenate([[100, 60, 20], 20 - 2 * np.arange(1, 9.0)])
    assert find_knee(x, broken) == 2
    assert find_knee(x, 10 - x) is None
    assert find_knee(x, np.full(11, 7.0)) is None
    # One that falls late has no knee below its chord.
    assert find_knee(x, np.array([10.0] * 9 + [9, 0])) is None
    assert find_knee(np.zeros(11), 10 - x) is None


def test_sweep_within_returns_smallest_sufficient_capacity() -> None:
    runtime = np.array([200.0, 150, 104, 103, 100])
    curve = CapacitySweep(
        np.arange(5), runtime, runtime - 3, runtime + np.array([0, 3, 3, 2, 1]), None
    )
    # By the estimates, and by their upper bounds; all fast is recorded.
    assert curve.within(0.05) == (2, 3)
    assert curve.within(0.0) == (4, 4)
    assert curve.within(1.0) == (0, 0)


def test_interval_contains_estimate_and_shrinks_with_samples(
    run_of: Callable[..., Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    # That of the model does not.
    for error in ("GAIN_ERROR", "RUNTIME_ERROR"):
        monkeypatch.setattr(sys.modules[Interval.__module__], error, 0.0)
    monkeypatch.setattr(sys.modules[RuntimeModel.__module__], "BEHIND_SHARE", 1.0)

    def width(samples: int) -> float:
        slow, fast = (run_of(ns, ms, 3, samples) for ns, ms in ((300, 400), (100, 200)))
        runs = side_by_side(slow, fast, windows=5)
        model = build_model(runs)
        chosen = layout.interleaved(runs.pages, 0.5)
        found = interval(model, chosen)
        assert found.runtime_ns == model.estimate(chosen).runtime_ns
        assert found.low_ns < found.runtime_ns < found.high_ns
        return found.high_ns - found.low_ns

    assert width(300) > 3 * width(30_000)


def test_interval_recorded_layout_zero_width(slow_run: Trace, fast_run: Trace) -> None:
    runs = side_by_side(slow_run, fast_run)
    model: RuntimeModel = build_model(runs)
    for chosen in (layout.all_slow(runs.pages), layout.all_fast(runs.pages)):
        found = interval(model, chosen)
        assert found.high_ns - found.low_ns < 1e-6 * found.runtime_ns


@pytest.mark.parametrize("knee", [None, 1])
def test_draw_sweep_writes_png_or_reports_missing_folder(tmp_path: Path, knee: int | None) -> None:
    runtime = np.array([2e9, 1e9, 0.9e9])
    curve = CapacitySweep(np.arange(3) * 256, runtime, runtime, runtime, knee)
    draw_capacity_sweep(curve, tmp_path / "p.png", "a program")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(MissingError, match="cannot write"):
        draw_capacity_sweep(curve, tmp_path / "no" / "p.png")
