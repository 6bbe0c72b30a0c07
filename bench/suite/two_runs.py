# SPDX-License-Identifier: MIT
"""The two runs that an estimator has of a program, replayed, sampled in several ways, and stored.

Takes a miss recording and a preset; gives the traces of the run with all pages slow and of the one
with all pages fast, and the layouts to estimate. They depend on no code of the estimator, and are
stored by a digest of what they do depend on, so that a change of the estimator is evaluated without
replaying anything.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.source_closure import closure_digest
from bench.suite.ground_truth import (
    RecordedStream,
    code_of,
    replay_digest,
    require_same_cache,
)
from bench.suite.layouts import mixed_layouts
from bench.suite.sampled_trace import (
    ReplayedRun,
    TierBytes,
    TraceSampling,
    replayed_run,
    sampled_run,
)
from hmd.base.units import PAGE_BYTES
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.misses import MissOutcomes, MissStream
from hmd.emulate.recordings.replay import Layout, TimingModel, frames, tiers_of
from hmd.emulate.timing_params import timing_params
from hmd.trace.trace import Trace

HEAT_SEED = 977
"""Seed of the samples behind layouts by heat; estimates use others, as with a daemon's heat."""

_MADE_BY = ("bench.suite.sampled_trace", "bench.suite.layouts")
"""Modules whose code, with all that they import, stored runs depend on, beside this one's."""

_BYTES = ("read_bytes", "write_bytes")


@dataclass(frozen=True, slots=True)
class Ends:
    """The all-slow and the all-fast run of a program."""

    slow: ReplayedRun
    fast: ReplayedRun


def ends_of(stream: MissStream, preset: Preset) -> Ends:
    """Replay the two runs that a user records."""
    none = np.zeros(stream.user_pages, np.bool_)
    return Ends(_replayed(stream, preset, none), _replayed(stream, preset, ~none))


def _replayed(stream: MissStream, preset: Preset, layout: Layout) -> ReplayedRun:
    """Return a run, with what the memory of each tier moved, and how long CPUs waited."""
    params = timing_params(preset)
    params = replace(params, vcpus=max(params.vcpus, stream.cpus))
    outcomes = MissOutcomes.empty(len(stream))
    with TimingModel(params) as model:
        ps = model.replay_misses(stream, frames(stream, preset, layout), outcomes)
        counted = [model.counters(vcpu).nodes for vcpu in range(stream.cpus)]
    moved: TierBytes = np.array(
        [
            [sum(getattr(nodes[node], name) for nodes in counted) for name in _BYTES]
            for node in tiers_of(preset)
        ],
        np.float64,
    )
    stalled_ps = sum(node.stall_ps for nodes in counted for node in nodes)
    return replayed_run(stream, outcomes, ps, preset, moved, stalled_ps)


def traces_of(ends: Ends, sampling: TraceSampling) -> tuple[Trace, Trace]:
    """Return the traces of the slow and the fast run, whose samples are independent."""
    slow, fast = (
        sampled_run(run, replace(sampling, seed=2 * sampling.seed + number))
        for number, run in enumerate((ends.slow, ends.fast))
    )
    return slow, fast


def heat_of(ends: Ends) -> npt.NDArray[np.float64]:
    """Return the pages' heat, shape ``(user_pages,)``, from samples of a separate run."""
    trace, stream = sampled_run(ends.slow, TraceSampling(seed=HEAT_SEED)), ends.slow.stream
    address = stream.page_address[: stream.user_pages]
    start = trace.samples.address // np.uint64(PAGE_BYTES) * np.uint64(PAGE_BYTES)
    page = np.searchsorted(address, start)
    return np.bincount(page, minlength=len(address)).astype(np.float64)


@dataclass(frozen=True, slots=True)
class TwoRuns:
    """A program's two runs: their times, traces by sampling, and layouts to estimate.

    Layouts are over the pages at ``address``.
    """

    slow_ps: int
    fast_ps: int
    address: npt.NDArray[np.uint64]
    layouts: Mapping[str, Layout]
    traces: Mapping[TraceSampling, tuple[Trace, Trace]]


def two_runs(
    program: RecordedStream,
    preset: Preset,
    samplings: Sequence[TraceSampling],
    folder: Path,
    say: Callable[[str], None],
) -> TwoRuns:
    """Return a program's two runs on a preset; replays and samples them if they are not stored."""
    require_same_cache(preset)
    depends = [replay_digest(program.name), preset.model_dump_json(), repr(samplings)]
    depends += [code_of(Path(__file__)), closure_digest(*_MADE_BY)]
    key = hashlib.sha256("\0".join(depends).encode()).hexdigest()[:12]
    path = folder / f"two_runs/{program.name}-{preset.name}-{key}.pickle"
    if not path.exists():
        say(f"{program.name} on {preset.name}: replaying its two runs")
        stream = program.stream
        ends = ends_of(stream, preset)
        address = stream.page_address[: stream.user_pages]
        found = TwoRuns(
            ends.slow.busy_ps,
            ends.fast.busy_ps,
            address,
            mixed_layouts(address, heat_of(ends)),
            {sampling: traces_of(ends, sampling) for sampling in samplings},
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_bytes(pickle.dumps(found))
        for outdated in path.parent.glob(f"{program.name}-{preset.name}-*.pickle"):
            outdated.unlink()
        partial.replace(path)
    loaded: TwoRuns = pickle.loads(path.read_bytes())
    return loaded
