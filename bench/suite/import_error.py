# SPDX-License-Identifier: MIT
"""What sampling costs results from imported recordings; writes build/import_error.json.

    python -m bench.suite.import_error [PROGRAM,...]    programs of one CPU (PROGRAMS)

Each program's misses are recorded once in the emulated machine, as for the estimator. Of a run they
are sampled as ``perf mem record`` does: one counter for loads and one for stores, with times and
latencies, without instruction counts and without speeds of the tiers. Compared with all misses:

- recall: the share of the truly hottest quarter of pages among as many of the most sampled ones;
- estimate: the error of ``hmd estimate`` from two such runs, in the mean of five layouts;
- simulate: the error of ``hmd simulate`` from one such run (its memory fast), of the default
  policy's speed relative to first touch with a quarter of the pages fast.

The means by period are hmd/trace/sampling_error.yaml, which commands print. Results are kept in
build/suite/import_error, so that an interrupted run continues; 2 minutes for a program.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.documents.markdown import measured_with
from bench.suite.ground_truth import recorded, replay_digest
from bench.suite.sampled_trace import TraceSampling, sampled_run
from bench.suite.samplers import hottest
from bench.suite.two_runs import Ends, ends_of
from hmd.base.units import PAGE_BYTES
from hmd.emulate.preset import Preset, load
from hmd.emulate.recordings.misses import MissStream
from hmd.emulate.recordings.replay import replayed
from hmd.estimate import build_model, layout, side_by_side
from hmd.policy import registry
from hmd.sample.cpu_models import Core
from hmd.simulate.pmu import PmuSettings
from hmd.simulate.sampled_program import program_of
from hmd.simulate.simulation import SimulationSettings, baselines, simulate
from hmd.trace.trace import Trace

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/suite"
OUTPUT = ROOT / "build/import_error.json"
MEANS = ROOT / "hmd/trace/sampling_error.yaml"
MEANS_HEAD = (
    "# Means of docs/results/import_error.json; python -m bench.suite.import_error writes both."
)
PROGRAMS = (
    "bfs", "drift", "gups", "hydro", "index", "phases", "sat", "stream", "transpose",
    "updates_moving", "updates_scattered", "xslookup",
)  # fmt: skip
PRESET = "dram-pm"
PERIODS = (17, 67, 199, 997, 4999)
HOT_SHARE = 0.25
SHARES = (0.1, 0.25, 0.5, 0.75)
_NO_SECOND_COUNTER = 10**12


@dataclass(frozen=True, slots=True)
class SamplingError:
    """A program's errors at one period; ``samples_per_page`` of pages with samples."""

    program: str
    period: int
    samples: int
    samples_per_page: float
    recall: float
    estimate_error: float
    simulate_error: float


def as_imported(trace: Trace) -> Trace:
    """Return a trace with what an import of perf's recordings has."""
    samples = replace(trace.samples, instructions=np.zeros(len(trace.samples), np.uint64))
    return replace(
        trace, about={"clock": trace.clock}, progress=None, traffic=None, samples=samples
    )


def sampled(ends: Ends, period: int) -> tuple[Trace, Trace]:
    """Return the imported traces of the slow and the fast run."""
    slow, fast = (
        as_imported(sampled_run(run, TraceSampling(period, _NO_SECOND_COUNTER, seed)))
        for seed, run in enumerate((ends.slow, ends.fast), 1)
    )
    return slow, fast


def recall(stream: MissStream, trace: Trace) -> float:
    """Return the share of the hottest quarter of the missed pages that samples find."""
    address = stream.page_address[: stream.user_pages]
    counted = stream.page[stream.sampled() & (stream.page < stream.user_pages)]
    true = np.bincount(counted, minlength=len(address)).astype(np.float64)
    place = np.searchsorted(address, trace.samples.address & ~np.uint64(PAGE_BYTES - 1))
    found = np.bincount(place, trace.samples.period, len(address)).astype(np.float64)
    return hottest(found[true > 0], true[true > 0], HOT_SHARE)[0]


def estimate_error(stream: MissStream, preset: Preset, slow: Trace, fast: Trace) -> float:
    """Return the mean error of estimated runtimes of layouts by heat, and of one by turns."""
    core = Core(preset.core.reorder_window, preset.core.line_fill_buffers)
    runs = side_by_side(slow, fast, core=core)
    address = stream.page_address[: stream.user_pages]
    place = np.searchsorted(address, runs.pages.address)
    chosen = [
        (True, layout.by_heat(runs.pages, round(share * len(runs.pages)))) for share in SHARES
    ] + [(False, layout.interleaved(runs.pages, 0.5))]
    errors = []
    for by_heat, fast_pages in chosen:
        model = build_model(runs, fast_samples=by_heat)
        whole = np.zeros(stream.user_pages, np.bool_)
        whole[place[fast_pages]] = True
        errors.append(model.estimate(fast_pages).runtime_ns * 1e3 / replayed(stream, preset, whole))
    return float(np.mean(np.abs(np.array(errors) - 1)))


def speed(stream: MissStream, preset: Preset) -> float:
    """Return the default policy's speed relative to first touch."""
    fast_pages = max(1, round(HOT_SHARE * stream.user_pages))
    settings = SimulationSettings(sampling=PmuSettings(overhead=0.01))
    policy = registry.create(registry.DEFAULT, {})
    run = simulate(stream, preset, fast_pages, policy, settings)
    return baselines(stream, preset, fast_pages)["first touch"] / run.runtime_s


def judge(name: str) -> list[dict[str, Any]]:
    """Return the errors of a program at each period."""
    kept = FOLDER / f"import_error/{name}-{replay_digest(name)}.json"
    if kept.exists():
        return list(json.loads(kept.read_text()))
    stream, preset = recorded(name, FOLDER, say).stream, load(PRESET)
    ends, true_speed, rows = ends_of(stream, preset), speed(stream, preset), []
    for period in PERIODS:
        slow, fast = sampled(ends, period)
        page = np.unique(fast.samples.address // np.uint64(PAGE_BYTES))
        rows.append(
            asdict(
                SamplingError(
                    name,
                    period,
                    len(fast.samples),
                    len(fast.samples) / len(page),
                    recall(stream, fast),
                    estimate_error(stream, preset, slow, fast),
                    abs(speed(program_of(fast, preset).stream, preset) / true_speed - 1),
                )
            )
        )
        say(str(rows[-1]))
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(rows))
    return rows


def means(rows: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """Return the means over programs by period, from few samples per page to many."""
    found = []
    for period in sorted(PERIODS, reverse=True):
        of = [row for row in rows if row["period"] == period]
        density = np.exp(np.mean(np.log([row["samples_per_page"] for row in of])))
        errors = ("recall", "estimate_error", "simulate_error")
        mean = {name: round(float(np.mean([row[name] for row in of])), 3) for name in errors}
        found.append({"samples_per_page": round(float(density), 2), **mean})
    return found


def say(line: str) -> None:
    """Print progress."""
    print(line, file=sys.stderr, flush=True)


def main(names: Sequence[str]) -> None:
    """Measure, write and print."""
    rows = [row for name in names for row in judge(name)]
    document = {
        "programs": list(names),
        "preset": PRESET,
        "means": means(rows),
        "cases": rows,
        **measured_with(),
    }
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(document, indent=1) + "\n")
    lines = [json.dumps(row).replace('"', "") for row in document["means"]]
    MEANS.write_text(f"{MEANS_HEAD}\n" + "".join(f"- {line}\n" for line in lines))
    print("\n".join(lines))
    print(f"wrote {OUTPUT} and {MEANS}")


if __name__ == "__main__":
    main([name for name in "".join(sys.argv[1:]).split(",") if name] or PROGRAMS)
