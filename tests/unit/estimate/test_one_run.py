# SPDX-License-Identifier: MIT
"""A run predicted from one on the other tier: by hand where misses overlap in a known way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hmd.base.errors import UsageError
from hmd.estimate import TierSpeeds, build_model, interval, layout
from hmd.estimate.one_run import loaded_latency, predict_runs
from hmd.sample.access_batch import Kind
from hmd.trace.trace import InstructionProgress, Trace

RunOf = Callable[..., Trace]
SPEEDS = TierSpeeds(300.0, 100.0)


def chase(run_of: RunOf, latency_ns: int, runtime_ms: float) -> Trace:
    """A run of loads, each of which waits for the one before: no two are close to each other."""
    run = run_of(latency_ns, runtime_ms, seed=3, samples=20_000)
    count = len(run.samples)
    samples = replace(
        run.samples,
        kind=np.full(count, Kind.LOAD, np.uint8),
        latency_ns=np.full(count, latency_ns, np.uint32),
        period=np.full(count, 50, np.uint32),
        instructions=np.arange(1, count + 1, dtype=np.uint64) * np.uint64(20_000)
        + np.where(np.arange(count) % 200 == 1, np.uint64(0), np.uint64(100)),
    )
    return replace(run, samples=samples)


@pytest.mark.parametrize(("tier", "here", "there"), [("slow", 300, 100), ("fast", 100, 300)])
def test_predicted_run_waits_as_much_longer_as_the_latencies_differ(
    run_of: RunOf, tier: str, here: int, there: int
) -> None:
    # A million loads, a fifth of which wait (three others overlap with each, as without pairs).
    run = chase(run_of, here, 400.0)
    assert tier in ("slow", "fast")
    runs = predict_runs(run, "slow" if tier == "slow" else "fast", speeds=SPEEDS)
    recorded, predicted = (runs.slow, runs.fast) if tier == "slow" else (runs.fast, runs.slow)
    assert recorded.ns.sum() == pytest.approx(400e6)
    assert predicted.ns.sum() == pytest.approx(400e6 + 1e6 / 4 * (there - here), rel=0.02)


def with_stalls(run: Trace, stalled_ms: float) -> Trace:
    """A run whose only thread waited for memory for so long, evenly."""
    time_ns = np.linspace(run.begin_ns, run.begin_ns + run.runtime_ns, 400).astype(np.uint64)
    executed = np.linspace(0, int(run.samples.instructions.max()), 400).astype(np.uint64)
    waited = np.linspace(0, stalled_ms * 1e6, 400).astype(np.uint64)
    process = np.zeros(400, np.uint16)
    return replace(
        run,
        about={**run.about, "instructions": "emulated"},
        progress=InstructionProgress(time_ns, process, time_ns, executed, waited),
    )


@pytest.mark.parametrize(("tier", "here", "there"), [("slow", 300, 100), ("fast", 100, 300)])
def test_predicted_run_with_counted_stalls_knows_that_every_load_waits(
    run_of: RunOf, tier: str, here: int, there: int
) -> None:
    # A million loads that wait for one another: 300 or 100 ms beside 100 ms of computation.
    run = with_stalls(chase(run_of, here, 100.0 + here), here)
    assert tier in ("slow", "fast")
    runs = predict_runs(run, "slow" if tier == "slow" else "fast", speeds=SPEEDS)
    predicted = runs.fast if tier == "slow" else runs.slow
    assert predicted.ns.sum() == pytest.approx((100 + there) * 1e6, rel=0.15)
    uncounted = predict_runs(
        with_stalls(run, 0.0), "slow" if tier == "slow" else "fast", speeds=SPEEDS
    )
    worse = uncounted.fast if tier == "slow" else uncounted.slow
    assert worse.ns.sum() != pytest.approx((100 + there) * 1e6, rel=0.3)


def test_predicted_run_without_stalls_gains_nothing(run_of: RunOf) -> None:
    run = with_stalls(chase(run_of, 300, 400.0), 0.001)
    runs = predict_runs(run, "slow", speeds=SPEEDS)
    assert runs.fast.ns.sum() == pytest.approx(400e6, rel=0.2)


def test_predicted_run_is_no_faster_than_its_traffic(run_of: RunOf) -> None:
    run = chase(run_of, 100, 200.0)
    # A million lines of 64 bytes at 0.1 bytes per ns take 640 ms.
    speeds = replace(SPEEDS, slow_read_bytes_per_ns=0.1, slow_write_bytes_per_ns=0.1)
    runs = predict_runs(run, "fast", speeds=speeds)
    assert runs.slow.ns.sum() >= 640e6
    # None of them is prefetched, so that each moves a block.
    blocks = predict_runs(run, "fast", speeds=replace(speeds, slow_block_bytes=256))
    assert blocks.slow.ns.sum() >= 4 * 640e6


def test_predicted_run_widens_the_interval_of_that_end_alone(run_of: RunOf) -> None:
    runs = predict_runs(chase(run_of, 300, 400.0), "slow", speeds=SPEEDS)
    model = build_model(runs)
    slow, fast = (
        interval(model, choose(runs.pages)) for choose in (layout.all_slow, layout.all_fast)
    )
    assert slow.high_ns - slow.low_ns < 1e-6 * slow.runtime_ns
    assert fast.high_ns - fast.low_ns > 0.3 * (slow.runtime_ns - fast.runtime_ns)
    assert any("fast is predicted" in doubt.reason for doubt in model.doubts)


def test_predicted_run_without_latencies_of_tiers_refused(run_of: RunOf) -> None:
    with pytest.raises(UsageError, match="--latencies FAST,SLOW"):
        predict_runs(chase(run_of, 300, 400.0), "slow")


def test_loaded_latency_rises_from_one() -> None:
    found = loaded_latency(np.array([0.0, 0.25, 0.5, 0.75, 1.0, 9.0]))
    assert found == pytest.approx([1.0, 1.1, 1.22, 1.5, 2.5, 2.5], abs=0.01)
