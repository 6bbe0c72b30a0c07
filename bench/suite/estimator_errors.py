"""Errors of an estimator: predicted versus true runtimes of many layouts.

Takes a program's miss recording, a preset and sampling parameters; returns errors and regret (the
loss from the layout with the best estimate), for hmd's model and for the published formula.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.suite.sampled_trace import TraceSampling, sampled_run
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.layout_replay import Layout, replayed
from hmd.emulate.recordings.miss_stream import MissOutcomes, MissStream
from hmd.estimate import isc22
from hmd.estimate.aligned_runs import AlignedRuns, side_by_side
from hmd.estimate.runtime_model import Coefficients, RuntimeModel, Terms, build_model
from hmd.estimate.windows import CutBy
from hmd.sample.cpu_model import Core
from hmd.trace.trace import Trace
from hmd.units import PAGE_BYTES

HEAT_SEED = 977
"""Seed of the samples behind layouts by heat; estimates use others, as with a daemon's heat."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The all-slow and the all-fast run of a program: outcomes of each miss, and busy time."""

    slow: MissOutcomes
    slow_ps: int
    fast: MissOutcomes
    fast_ps: int


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors by layout, as shares of the true runtime, and the regret of the best estimate."""

    by_layout: Mapping[str, float]
    regret: float

    @property
    def mean(self) -> float:
        """Mean of the absolute errors."""
        return float(np.mean(np.abs(list(self.by_layout.values()))))

    @property
    def worst(self) -> float:
        """Largest absolute error."""
        return float(np.max(np.abs(list(self.by_layout.values()))))


def ends_of(stream: MissStream, preset: Preset) -> Ends:
    """Replay the two runs that a user records."""
    slow, fast = MissOutcomes.empty(len(stream)), MissOutcomes.empty(len(stream))
    none = np.zeros(stream.user_pages, np.bool_)
    return Ends(
        slow, replayed(stream, preset, none, slow), fast, replayed(stream, preset, ~none, fast)
    )


def traces_of(
    stream: MissStream, ends: Ends, preset: Preset, sampling: TraceSampling
) -> tuple[Trace, Trace]:
    """Return the traces of the slow and the fast run, whose samples are independent."""
    both = (ends.slow, ends.slow_ps), (ends.fast, ends.fast_ps)
    slow, fast = (
        sampled_run(
            stream,
            outcomes,
            busy_ps,
            preset,
            TraceSampling(
                sampling.period, sampling.pair_period, 2 * sampling.seed + number, sampling.loss
            ),
        )
        for number, (outcomes, busy_ps) in enumerate(both)
    )
    return slow, fast


def heat_of(stream: MissStream, ends: Ends, preset: Preset) -> npt.NDArray[np.float64]:
    """Return the pages' heat, shape ``(user_pages,)``, from samples of a separate run."""
    trace = sampled_run(stream, ends.slow, ends.slow_ps, preset, TraceSampling(seed=HEAT_SEED))
    address = stream.page_address[: stream.user_pages]
    start = trace.samples.address // np.uint64(PAGE_BYTES) * np.uint64(PAGE_BYTES)
    page = np.searchsorted(address, start)
    return np.bincount(page, minlength=len(address)).astype(np.float64)


@dataclass(frozen=True, slots=True)
class EstimatorCase:
    """A program on a preset: its sampled runs, its layouts (over sampled pages), true runtimes."""

    runs: AlignedRuns
    slow: Trace
    fast: Trace
    layouts: Mapping[str, Layout]
    truth: Mapping[str, float]


def case_of(
    stream: MissStream,
    preset: Preset,
    traces: tuple[Trace, Trace],
    layouts: Mapping[str, Layout],
    truth: Mapping[str, float],
) -> EstimatorCase:
    """Return the case; ``layouts`` are over the stream's pages."""
    slow, fast = traces
    core = Core(preset.core.reorder_window, preset.core.line_fill_buffers)
    runs = side_by_side(slow, fast, core=core)
    address = stream.page_address[: stream.user_pages]
    place = np.minimum(np.searchsorted(address, runs.pages.address), len(address) - 1)
    return EstimatorCase(
        runs, slow, fast, {name: each[place] for name, each in layouts.items()}, truth
    )


def judge_model(
    case: EstimatorCase, coefficients: Coefficients | None = None, terms: Terms | None = None
) -> Errors:
    """Return the errors of hmd's model."""
    model: RuntimeModel = build_model(case.runs, coefficients, terms)
    found = {
        name: model.estimate(layout).runtime_ns * 1e-9 for name, layout in case.layouts.items()
    }
    return _errors(found, case.truth)


def judge_published(case: EstimatorCase, windows: int) -> Errors:
    """Return the errors of the formula of ISC 2022 with ``windows`` windows of equal time."""
    runs = side_by_side(case.slow, case.fast, windows=windows, cut_by=CutBy.TIME)
    found = {
        name: isc22.estimate(runs, layout).runtime_ns * 1e-9
        for name, layout in case.layouts.items()
    }
    return _errors(found, case.truth)


def _errors(found: Mapping[str, float], truth: Mapping[str, float]) -> Errors:
    best = min(found, key=lambda name: found[name])
    return Errors(
        {name: value / truth[name] - 1 for name, value in found.items()},
        truth[best] / min(truth[name] for name in found) - 1,
    )
