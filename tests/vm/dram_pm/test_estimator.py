# SPDX-License-Identifier: MIT
"""The estimator compared with replayed runtimes: two programs recorded in the guest.

One boot per program: the machine that records has no ticks on the program's CPU and is
not paced. The whole suite is evaluated by `make bench-estimator`.
"""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest

from bench.suite.estimator import (
    EstimatorCase,
    case_of,
    judge_model,
    judge_published,
)
from bench.suite.ground_truth import RecordedStream
from bench.suite.inputs import prepare
from bench.suite.layouts import mixed_layouts
from bench.suite.program import load_program
from bench.suite.replay_check import placed
from bench.suite.sampled_trace import TraceSampling
from bench.suite.two_runs import ends_of, heat_of, traces_of
from hmd.emulate.preset import load
from hmd.emulate.recordings.recorder import (
    RECORDED_ON,
    Placement,
    guest,
    run_in,
    widest_core,
)
from hmd.emulate.recordings.replay import replayed

PROGRAMS = ("gups", pytest.param("xslookup", marks=pytest.mark.slow))
PARTS = (20, 50, 80)
SEEDS = range(1, 6)
INTERLEAVED = Placement("interleave", (0, 1))


@pytest.fixture(scope="module", params=PROGRAMS)
def program(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> RecordedStream:
    """A program's recorded stream, whose replayed runtime is that of the guest."""
    folder = tmp_path_factory.mktemp("suite")
    command = prepare(load_program(request.param), folder)
    preset = load(RECORDED_ON)
    with guest(widest_core(preset), command) as machine:
        run = run_in(machine, command, INTERLEAVED)
        found = RecordedStream(request.param, run.recording.stream, run.host_s)
        layout = placed(found, run.recording, preset)
        assert 0.4 < layout.mean() < 0.6
        replay_s = replayed(found.stream, widest_core(preset), layout) * 1e-12
        assert replay_s == pytest.approx(run.busy_s, rel=0.02)
    return found


@pytest.mark.timeout(600)
def test_estimator_mixed_layouts_error_below_published_formula(
    program: RecordedStream,
) -> None:
    """Not half of the published error, as before page walks were charged.

    The truth contains walks, which no sample shows, and both models lack them: on xslookup they
    raise our mean error from 0.75 to 1.0 %, where the published formula has 1.9 %. One sampling of
    xslookup has 0.7 to 1.5 %, by its seed, so that the mean of several is compared.
    """
    preset, stream = load("dram-pm"), program.stream
    ends = ends_of(stream, preset)
    assert ends.slow.busy_ps > 1.5 * ends.fast.busy_ps
    address = stream.page_address[: stream.user_pages]
    layouts = mixed_layouts(address, heat_of(ends), parts=PARTS)
    truth = {name: replayed(stream, preset, each) * 1e-12 for name, each in layouts.items()}

    def case(sampling: TraceSampling) -> EstimatorCase:
        return case_of(address, preset, traces_of(ends, sampling), layouts, truth)

    usual = [case(TraceSampling(seed=seed)) for seed in SEEDS]
    ours = [judge_model(each) for each in usual]
    published = [min(judge_published(each, windows).mean for windows in (1, 20)) for each in usual]
    assert max(each.mean for each in ours) < 0.05
    assert fmean(each.mean for each in ours) < fmean(published) / 1.4
    assert max(each.regret for each in ours) < 0.01
    # Records that are lost, in bursts, are known to be lost.
    assert judge_model(case(TraceSampling(loss=0.2))).mean < 0.06


def test_estimator_all_slow_and_all_fast_runtimes_reproduced(program: RecordedStream) -> None:
    preset, stream = load("dram-pm"), program.stream
    ends = ends_of(stream, preset)
    none = np.zeros(stream.user_pages, np.bool_)
    layouts = {"slow": none, "fast": ~none}
    truth = {"slow": ends.slow.busy_ps * 1e-12, "fast": ends.fast.busy_ps * 1e-12}
    met = judge_model(
        case_of(
            stream.page_address[: stream.user_pages],
            preset,
            traces_of(ends, TraceSampling()),
            layouts,
            truth,
        )
    )
    assert met.worst < 0.005
