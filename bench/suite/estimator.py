"""The estimator on the suite: errors on every program, preset and layout; build/estimator.json.

    python -m bench.suite.estimator                  all programs (what `make bench-estimator` runs)
    python -m bench.suite.estimator gups,redis       these, printed with the committed figures

Each program's misses are recorded once in the emulated machine. The true runtime of each of about
sixty layouts on three presets is a replay by the same timing model; the estimator has two sampled
runs. Results are stored in build/suite, so that an interrupted run continues. The first run takes
an hour or more on two CPUs, later ones minutes.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bench.documents.measured_commit import commit
from bench.suite.estimator_errors import (
    Errors,
    EstimatorCase,
    case_of,
    ends_of,
    heat_of,
    judge_model,
    judge_published,
    traces_of,
)
from bench.suite.estimator_plot import draw
from bench.suite.ground_truth import (
    RecordedStream,
    recorded,
    require_same_cache,
    runtimes,
)
from bench.suite.large_trace import SIZES, cold_start_s, measure
from bench.suite.layouts import mixed_layouts
from bench.suite.program import program_names
from bench.suite.replay_check import Verified, verified
from bench.suite.sampled_trace import TraceSampling
from hmd.emulate.preset import Preset, load
from hmd.emulate.recordings.isolated_run import RECORDED_ON
from hmd.errors import HmdError
from hmd.estimate.capacity_sweep import sweep
from hmd.estimate.runtime_model import Coefficients, Terms, build_model

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "build" / "estimator.json"
COMMITTED = ROOT / "docs" / "results" / "estimator.json"
FOLDER = ROOT / "build" / "suite"

PRESETS = ("dram-pm", "dram-cxl", "hbm-dram")
VERIFIED = ("betweenness", "cg", "gups", "stream", "xslookup")
"""Programs whose replays are compared with runs in the guest: short, of different behaviour."""
PERIODS = (67, 199, 997, 4999)
SEEDS = (2, 3)
LOSS = 0.2
PUBLISHED_WINDOWS = (1, 20, 200)
"""The paper's windows are 50 ms of runs of half a minute. These runs are shorter, so all three are
reported, and hmd is compared with the best."""

GRID = tuple(
    Coefficients(power, streams)
    for power, streams in product((1.0, 1.5, 2.0, 3.0), (1.5, 2.0, 3.0))
)
ABLATIONS = {
    "without overlap": Terms(overlap=False),
    "without correlation": Terms(correlation=False),
    "without structures": Terms(structures=False),
    "without core": Terms(core=False),
    "without load": Terms(load=False),
    "without streams": Terms(streams=False),
}


@dataclass(frozen=True, slots=True)
class Judged:
    """All errors of a program on a preset."""

    program: str
    preset: str
    slow_s: float
    fast_s: float
    layouts: int
    samples: int
    pairs: int
    published: Mapping[int, Errors]
    grid: Sequence[Errors]
    ablated: Mapping[str, Errors]
    sampled: Mapping[str, Errors]
    estimate_s: float
    sweep_s: float
    host_s: float


def main() -> int:
    """Evaluate the requested programs; write and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="?", default="", help="programs, separated by commas")
    names = [name for name in parser.parse_args().cases.split(",") if name] or program_names()
    began = time.monotonic()

    def say(line: str) -> None:
        passed = int(time.monotonic() - began)
        print(f"[{passed // 60}:{passed % 60:02}] {line}", file=sys.stderr, flush=True)

    judged: list[Judged] = []
    shown: list[Verified] = []
    failed: dict[str, str] = {}
    for number, name in enumerate(names, 1):
        say(f"{name} ({number} of {len(names)})")
        try:
            program = recorded(name, FOLDER, say)
            judged += [judge(program, load(preset), say) for preset in PRESETS]
            if name in VERIFIED:
                shown += verified(program, load(RECORDED_ON), FOLDER, say)
        except (HmdError, subprocess.TimeoutExpired) as error:
            say(f"{name}: {error}")
            failed[name] = str(error)
    if not judged:
        return 1
    say(f"traces of up to {SIZES[-1]:,} samples")
    large = [measure(samples) for samples in SIZES]
    document = summary(judged, failed) | {
        "samples_per_second": min(each["samples_per_second"] for each in large),
        "large_traces": large,
        "cold_start_s": cold_start_s(),
        "verified": [asdict(each) | {"error": each.error} for each in shown],
        "verified_worst": max((abs(each.error) for each in shown), default=None),
    }
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(document, indent=1) + "\n")
    draw(document, OUTPUT.with_suffix(".png"))
    show(document, json.loads(COMMITTED.read_text()) if COMMITTED.exists() else None)
    return 1 if failed else 0


def judge(program: RecordedStream, preset: Preset, say: Any) -> Judged:
    """Evaluate the estimator for a program on a preset."""
    require_same_cache(preset)
    stream = program.stream
    ends = ends_of(stream, preset)
    layouts = mixed_layouts(stream.page_address[: stream.user_pages], heat_of(stream, ends, preset))
    truth = runtimes(program, preset, layouts, FOLDER, say)

    def case(sampling: TraceSampling) -> EstimatorCase:
        traces = traces_of(stream, ends, preset, sampling)
        return case_of(stream, preset, traces, layouts, truth)

    usual = case(TraceSampling())
    say(f"{program.name} on {preset.name}: estimating {len(layouts)} layouts")
    estimate_s, sweep_s = timed(usual)
    others = {f"period {p}": TraceSampling(p, second_period(p)) for p in PERIODS if p != 199}
    others |= {f"seed {seed}": TraceSampling(seed=seed) for seed in SEEDS}
    others[f"loss {LOSS:.0%}"] = TraceSampling(loss=LOSS)
    return Judged(
        program.name,
        preset.name,
        ends.slow_ps * 1e-12,
        ends.fast_ps * 1e-12,
        len(layouts),
        int(usual.runs.slow.samples.sum()),
        len(usual.runs.slow.pair_window),
        {windows: judge_published(usual, windows) for windows in PUBLISHED_WINDOWS},
        [judge_model(usual, coefficients) for coefficients in GRID],
        {name: judge_model(usual, terms=terms) for name, terms in ABLATIONS.items()},
        {name: judge_model(case(sampling)) for name, sampling in others.items()},
        estimate_s,
        sweep_s,
        program.host_s,
    )


def second_period(period: int) -> int:
    """Return the second counter's period: about 6 % more, and odd."""
    return int(period * 1.06) | 1


def timed(case: EstimatorCase) -> tuple[float, float]:
    """Return the seconds of one estimate by a built model, and of one step of a sweep of 100."""
    model = build_model(case.runs)
    layouts = list(case.layouts.values())
    best = min(_elapsed(lambda: [model.estimate(layout) for layout in layouts]) for _ in range(3))
    order = np.argsort(-case.runs.pages.accesses, kind="stable")
    return best / len(layouts), min(_elapsed(lambda: sweep(model, order)) for _ in range(3)) / 101


def _elapsed(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def left_out(judged: Sequence[Judged]) -> dict[str, int]:
    """Return for each program the index in GRID that is best for all other programs."""
    programs = sorted({each.program for each in judged})
    mean = {
        name: np.mean(
            [[e.mean for e in each.grid] for each in judged if each.program == name], axis=0
        )
        for name in programs
    }
    chosen = {}
    for name in programs:
        others = [mean[other] for other in programs if other != name] or [mean[name]]
        chosen[name] = int(np.argmin(np.mean(others, axis=0)))
    return chosen


def summary(judged: Sequence[Judged], failed: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON document."""
    chosen = left_out(judged)
    own = [each.grid[chosen[each.program]] for each in judged]
    published = {
        windows: float(np.mean([each.published[windows].mean for each in judged]))
        for windows in PUBLISHED_WINDOWS
    }
    best = min(published, key=lambda windows: published[windows])
    return {
        "programs": sorted({each.program for each in judged}),
        "layouts": sum(each.layouts for each in judged),
        "mean_error": float(np.mean([errors.mean for errors in own])),
        "max_error": max(errors.worst for errors in own),
        "isc22_mean_error": published[best],
        "isc22_max_error": max(each.published[best].worst for each in judged),
        "isc22_by_windows": {str(k): v for k, v in published.items()},
        "best_layout_regret_max": max(errors.regret for errors in own),
        "isc22_regret_max": max(each.published[best].regret for each in judged),
        "speedup_over_run": float(np.median([e.host_s / e.estimate_s for e in judged])),
        "speedup_over_run_in_a_sweep": float(np.median([e.host_s / e.sweep_s for e in judged])),
        "ablations": {
            name: {
                "mean_error": float(np.mean([each.ablated[name].mean for each in judged])),
                "max_error": max(each.ablated[name].worst for each in judged),
            }
            for name in ABLATIONS
        },
        "samplings": {
            name: {
                "mean_error": float(np.mean([each.sampled[name].mean for each in judged])),
                "max_error": max(each.sampled[name].worst for each in judged),
            }
            for name in judged[0].sampled
        },
        "coefficients": {name: asdict(GRID[place]) for name, place in chosen.items()},
        "cases": [
            {
                "program": each.program,
                "preset": each.preset,
                "slow_s": each.slow_s,
                "fast_s": each.fast_s,
                "layouts": each.layouts,
                "samples": each.samples,
                "pairs": each.pairs,
                "mean_error": errors.mean,
                "max_error": errors.worst,
                "regret": errors.regret,
                "isc22_mean_error": each.published[best].mean,
                "isc22_max_error": each.published[best].worst,
                "estimate_ms": each.estimate_s * 1e3,
                "emulated_run_s": each.host_s,
            }
            for each, errors in zip(judged, own, strict=True)
        ],
        "failed": dict(failed),
        "commit": commit(),
        "machine": f"{platform.machine()}, {platform.release()}",
        "command": "make bench-estimator",
    }


def show(document: Mapping[str, Any], committed: Mapping[str, Any] | None) -> None:
    """Print the table, with the committed figures if there are any."""
    before = {
        (case["program"], case["preset"]): case for case in (committed or {}).get("cases", [])
    }
    print(
        f"{'program':12} {'preset':9} {'slow/fast':>9} {'error':>6} {'worst':>6} "
        f"{'regret':>6} {'ISC 22':>6} {'worst':>6} {'committed':>9}"
    )
    for case in document["cases"]:
        known = before.get((case["program"], case["preset"]))
        before_error = f"{known['mean_error']:9.2%}" if known else f"{'-':>9}"
        print(
            f"{case['program']:12} {case['preset']:9} {case['slow_s'] / case['fast_s']:9.2f} "
            f"{case['mean_error']:6.2%} {case['max_error']:6.2%} {case['regret']:6.2%} "
            f"{case['isc22_mean_error']:6.2%} {case['isc22_max_error']:6.2%} {before_error}"
        )
    for key in ("mean_error", "max_error", "isc22_mean_error", "best_layout_regret_max"):
        versus = f" (committed {committed[key]:.2%})" if committed else ""
        print(f"{key:24} {document[key]:8.2%}{versus}")
    for each in document["verified"]:
        print(
            f"replay and guest: {each['program']:12} {each['placement']:20} "
            f"{each['guest_s']:.4f} s {each['replay_s']:.4f} s {each['error']:+.2%}"
        )
    for each in document["large_traces"]:
        print(
            f"{each['samples']:,} samples: read in {each['read_s']:.1f} s, {each['rows']:,} rows, "
            f"a layout in {each['layout_s'] * 1e3:.1f} ms, {each['peak_mib']:,.0f} MiB"
        )
    print(f"samples per second       {document['samples_per_second']:,.0f}")
    print(f"kernels' cold start      {document['cold_start_s']:.2f} s")
    print(
        f"over the emulated run    {document['speedup_over_run']:,.0f} x, "
        f"in a sweep {document['speedup_over_run_in_a_sweep']:,.0f} x"
    )
    print(f"written: {OUTPUT}")


if __name__ == "__main__":
    sys.exit(main())
