# SPDX-License-Identifier: MIT
"""The estimator on the suite: errors on every program, preset and layout; build/estimator.json.

    python -m bench.suite.estimator                  all programs (what `make bench-estimator` runs)
    python -m bench.suite.estimator gups,redis       these, printed with the committed figures

Each program's misses are recorded once in the emulated machine. The true runtime of each of about
sixty layouts on three presets is a replay by the same timing model; the estimator has two sampled
runs, or one. Its errors are those of the predicted runtimes; the regret is the loss from the layout
with the best estimate. Programs that are held out have no part in the choice of coefficients.

Recordings, true runtimes, sampled traces and errors are stored in build/suite, so that an
interrupted run continues and two commands can share the programs. The first run takes two hours or
more on two CPUs, one after a change of the estimator a quarter of an hour.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from bench.documents.markdown import measured_with
from bench.source_closure import closure_digest
from bench.suite import published
from bench.suite.ground_truth import RecordedStream, recorded, replay_digest, runtimes
from bench.suite.large_trace import SIZES, cold_start_s, measure
from bench.suite.program import load_program, program_names
from bench.suite.replay_check import Verified, verified
from bench.suite.sampled_trace import TraceSampling
from bench.suite.two_runs import two_runs
from hmd.base.errors import HmdError
from hmd.emulate.preset import Preset, load
from hmd.emulate.recordings.recorder import RECORDED_ON
from hmd.emulate.recordings.replay import Layout, tiers_of
from hmd.estimate.breakdown import interval, resample, sweep
from hmd.estimate.model import Coefficients, RuntimeModel, build_model
from hmd.estimate.one_run import predict_runs
from hmd.estimate.overlap import Pairs
from hmd.estimate.runs import AlignedRuns, TierSpeeds, side_by_side
from hmd.estimate.windows import CutBy
from hmd.sample.cpu_models import Core
from hmd.trace.trace import Trace

LARGE = ("updates_large_moving", "updates_large_scattered")
"""Programs that are others of the suite on more memory, and are evaluated only if named."""

PRESETS = ("dram-pm", "dram-cxl", "hbm-dram")

VERIFIED = ("betweenness", "cg", "gups", "stream", "xslookup")
"""Programs whose replays are compared with runs in the guest: short, of different behaviour."""

PERIODS = (67, 199, 997, 4999)
SEEDS = (2, 3)
LOSS = 0.2


def second_period(period: int) -> int:
    """Return the second counter's period: about 6 % more, and odd."""
    return int(period * 1.06) | 1


SAMPLINGS: Mapping[str, TraceSampling] = {
    "usual": TraceSampling(),
    **{f"period {p}": TraceSampling(p, second_period(p)) for p in PERIODS if p != 199},
    **{f"seed {seed}": TraceSampling(seed=seed) for seed in SEEDS},
    f"loss {LOSS:.0%}": TraceSampling(loss=LOSS),
}

PUBLISHED_WINDOWS = (1, 20, 200)
"""The paper's windows are 50 ms of runs of half a minute. These runs are shorter, so all three are
reported, and hmd is compared with the best."""

GRID = tuple(
    Coefficients(streams, power)
    for streams, power in product((1.5, 2.0, 3.0), (3.0, 4.0, 6.0, 12.0))
)


def _figures(model: RuntimeModel, **of_all: float) -> RuntimeModel:
    """Return the model with these figures of all parts."""
    changed = {name: np.full_like(getattr(model.figures, name), of_all[name]) for name in of_all}
    return replace(model, figures=model.figures._replace(**changed))


def _numbers(model: RuntimeModel, **numbers: Any) -> RuntimeModel:
    return replace(model, numbers=model.numbers._replace(**numbers))


_NONE = np.empty(0, np.int32)
_NO_PAIRS = Pairs(_NONE, _NONE, _NONE)

ABLATIONS: Mapping[str, Callable[[RuntimeModel], RuntimeModel]] = {
    "without overlap": lambda model: _figures(model, alone=1.0, overlapping=0.0),
    "without correlation": lambda model: _numbers(
        replace(model, pairs=_NO_PAIRS), pairs_known=True
    ),
    "without core": lambda model: _figures(model, core_factor=1.0),
    "without load": lambda model: _numbers(model, load_known=False),
}
"""The model without one of its terms."""


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


@dataclass(frozen=True, slots=True)
class EstimatorCase:
    """A program on a preset: its sampled runs, its layouts (over sampled pages), true runtimes."""

    core: Core
    block_bytes: int
    runs: AlignedRuns
    slow: Trace
    fast: Trace
    layouts: Mapping[str, Layout]
    truth: Mapping[str, float]


def case_of(
    address: npt.NDArray[np.uint64],
    preset: Preset,
    traces: tuple[Trace, Trace],
    layouts: Mapping[str, Layout],
    truth: Mapping[str, float],
) -> EstimatorCase:
    """Return the case; ``layouts`` are over the pages at ``address``."""
    slow, fast = traces
    core = Core(preset.core.reorder_window, preset.core.line_fill_buffers)
    runs = side_by_side(slow, fast, core=core)
    place = np.minimum(np.searchsorted(address, runs.pages.address), len(address) - 1)
    sampled = {name: each[place] for name, each in layouts.items()}
    block_bytes = preset.nodes[tiers_of(preset)[1]].granularity_bytes
    return EstimatorCase(core, block_bytes, runs, slow, fast, sampled, truth)


def judge_model(case: EstimatorCase, model: RuntimeModel | None = None) -> Errors:
    """Return the errors of hmd's model of a case, or of one that is made from it."""
    used = build_model(case.runs) if model is None else model
    found = {name: used.estimate(layout).runtime_ns * 1e-9 for name, layout in case.layouts.items()}
    return _errors(found, case.truth)


@dataclass(frozen=True, slots=True)
class Intervals:
    """Layouts whose true runtime is within the interval, and the mean half width of it."""

    covered: int
    half_width: float


def judge_intervals(case: EstimatorCase) -> Intervals:
    """Return how many layouts are within the intervals that ``hmd estimate`` gives."""
    model = build_model(case.runs)
    drawn = list(resample(model))
    found = {name: interval(model, layout, drawn) for name, layout in case.layouts.items()}
    covered = sum(
        each.low_ns <= case.truth[name] * 1e9 <= each.high_ns for name, each in found.items()
    )
    widths = [(each.high_ns - each.runtime_ns) / each.runtime_ns for each in found.values()]
    return Intervals(covered, float(np.mean(widths)))


def judge_one_run(case: EstimatorCase) -> dict[str, float]:
    """Return the error of the other run's predicted runtime by the tier of the one recorded."""
    speeds = replace(TierSpeeds.of(case.slow.about), slow_block_bytes=case.block_bytes)
    slow, fast = (
        predict_runs(case.slow, "slow", speeds=speeds, core=case.core).fast,
        predict_runs(case.fast, "fast", speeds=speeds, core=case.core).slow,
    )
    return {
        "slow": float(slow.ns.sum() / case.runs.fast.ns.sum()) - 1,
        "fast": float(fast.ns.sum() / case.runs.slow.ns.sum()) - 1,
    }


def judge_published(case: EstimatorCase, windows: int) -> Errors:
    """Return the errors of the formula of ISC 2022 with ``windows`` windows of equal time."""
    runs = side_by_side(case.slow, case.fast, windows=windows, cut_by=CutBy.TIME)
    found = {
        name: published.estimate(runs, layout).runtime_ns * 1e-9
        for name, layout in case.layouts.items()
    }
    return _errors(found, case.truth)


def _errors(found: Mapping[str, float], truth: Mapping[str, float]) -> Errors:
    best = min(found, key=lambda name: found[name])
    return Errors(
        {name: value / truth[name] - 1 for name, value in found.items()},
        truth[best] / min(truth[name] for name in found) - 1,
    )


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Write a PNG file with the mean and the worst error of each program on each preset."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    presets = list(dict.fromkeys(case["preset"] for case in document["cases"]))
    figure, axes = plt.subplots(
        1, len(presets), figsize=(4.2 * len(presets), 0.6 + 0.3 * len(document["programs"]))
    )
    for place, preset in zip(axes if len(presets) > 1 else [axes], presets, strict=True):
        cases = [case for case in document["cases"] if case["preset"] == preset]
        cases.sort(key=lambda case: case["program"], reverse=True)
        rows = range(len(cases))
        for key, label, colour, offset in (
            ("isc22_", "published formula", "tab:grey", 0.2),
            ("", "hmd", "tab:blue", -0.2),
        ):
            mean = [100 * case[f"{key}mean_error"] for case in cases]
            worst = [100 * case[f"{key}max_error"] for case in cases]
            at = [row + offset for row in rows]
            place.barh(at, mean, 0.36, color=colour, label=f"{label}, mean")
            place.plot(worst, at, "|", color=colour, markersize=8, label=f"{label}, worst")
        place.set_yticks(list(rows), [case["program"] for case in cases])
        place.set_ylim(-0.7, len(cases) - 0.3)
        place.set_xlabel("error of the runtime, %")
        place.set_title(preset)
    (axes[0] if len(presets) > 1 else axes).legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "build" / "estimator.json"
COMMITTED = ROOT / "docs" / "results" / "estimator.json"
FOLDER = ROOT / "build" / "suite"
_THIS = "bench.suite.estimator"


@dataclass(frozen=True, slots=True)
class Judged:
    """All errors of a program on a preset; ``one_run`` by the tier of the run that is known."""

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
    intervals: Intervals
    one_run: Mapping[str, float]
    estimate_s: float
    sweep_s: float
    host_s: float


def main() -> int:
    """Evaluate the requested programs; write and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="?", default="", help="programs, separated by commas")
    asked = [name for name in parser.parse_args().cases.split(",") if name]
    names = asked or [name for name in program_names() if name not in LARGE]
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
            judged += [judged_once(program, load(preset), say) for preset in PRESETS]
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


def judged_once(program: RecordedStream, preset: Preset, say: Any) -> Judged:
    """As ``judge``; keeps the errors until the program, the preset or the code changes."""
    depends = [replay_digest(program.name), preset.model_dump_json(), closure_digest(_THIS)]
    key = hashlib.sha256("\0".join(depends).encode()).hexdigest()[:12]
    path, adapter = FOLDER / f"judged/{program.name}-{preset.name}-{key}.json", TypeAdapter(Judged)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_bytes(adapter.dump_json(judge(program, preset, say)))
        partial.replace(path)
    return adapter.validate_json(path.read_bytes())


def judge(program: RecordedStream, preset: Preset, say: Any) -> Judged:
    """Evaluate the estimator for a program on a preset."""
    runs = two_runs(program, preset, list(SAMPLINGS.values()), FOLDER, say)
    truth = runtimes(program, preset, runs.layouts, FOLDER, say)

    def case(sampling: TraceSampling) -> EstimatorCase:
        return case_of(runs.address, preset, runs.traces[sampling], runs.layouts, truth)

    usual = case(TraceSampling())
    say(f"{program.name} on {preset.name}: estimating {len(runs.layouts)} layouts")
    estimate_s, sweep_s = timed(usual)
    model = build_model(usual.runs)
    return Judged(
        program.name,
        preset.name,
        runs.slow_ps * 1e-12,
        runs.fast_ps * 1e-12,
        len(runs.layouts),
        int(usual.runs.slow.samples.sum()),
        len(usual.runs.slow.pair_part),
        {windows: judge_published(usual, windows) for windows in PUBLISHED_WINDOWS},
        [judge_model(usual, _numbers(model, **asdict(each))) for each in GRID],
        {name: judge_model(usual, ablate(model)) for name, ablate in ABLATIONS.items()},
        {name: judge_model(case(each)) for name, each in SAMPLINGS.items() if name != "usual"},
        judge_intervals(usual),
        judge_one_run(usual),
        estimate_s,
        sweep_s,
        program.host_s,
    )


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
    """Return for each program the index in GRID that is best for all others not held out."""
    programs = sorted({each.program for each in judged})
    mean = {
        name: np.mean(
            [[e.mean for e in each.grid] for each in judged if each.program == name], axis=0
        )
        for name in programs
    }
    known = [name for name in programs if not load_program(name).held_out]
    chosen = {}
    for name in programs:
        others = [mean[other] for other in known if other != name] or [mean[name]]
        chosen[name] = int(np.argmin(np.mean(others, axis=0)))
    return chosen


def of_errors(judged: Sequence[Judged], own: Sequence[Errors]) -> dict[str, Any]:
    """Return the errors of these cases, and the share of layouts within their intervals."""
    covered = sum(each.intervals.covered for each in judged)
    return {
        "mean_error": float(np.mean([errors.mean for errors in own])),
        "max_error": max(errors.worst for errors in own),
        "best_layout_regret_max": max(errors.regret for errors in own),
        "coverage_95": covered / sum(each.layouts for each in judged),
        "half_width": float(np.mean([each.intervals.half_width for each in judged])),
        "one_run": of_one_run([each.one_run[tier] for each in judged for tier in each.one_run])
        | {tier: of_one_run([each.one_run[tier] for each in judged]) for tier in ("slow", "fast")},
    }


def of_one_run(errors: Sequence[float]) -> dict[str, float]:
    """Return the mean error of predicted runs, and the shares of them within 5 and 10 %."""
    size = np.abs(errors)
    return {
        "mean_error": float(size.mean()),
        "within_5": float((size <= 0.05).mean()),
        "within_10": float((size <= 0.10).mean()),
    }


def summary(judged: Sequence[Judged], failed: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON document."""
    chosen = left_out(judged)
    own = [each.grid[chosen[each.program]] for each in judged]
    published = {
        windows: float(np.mean([each.published[windows].mean for each in judged]))
        for windows in PUBLISHED_WINDOWS
    }
    best = min(published, key=lambda windows: published[windows])
    held_out = [n for n, each in enumerate(judged) if load_program(each.program).held_out]
    return {
        "programs": sorted({each.program for each in judged}),
        "layouts": sum(each.layouts for each in judged),
        **of_errors(judged, own),
        "heldout": of_errors([judged[n] for n in held_out], [own[n] for n in held_out])
        | {"programs": sorted({judged[n].program for n in held_out})}
        if held_out
        else None,
        "isc22_mean_error": published[best],
        "isc22_max_error": max(each.published[best].worst for each in judged),
        "isc22_by_windows": {str(k): v for k, v in published.items()},
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
                "covered": each.intervals.covered,
                "half_width": each.intervals.half_width,
                "one_run": dict(each.one_run),
                "isc22_mean_error": each.published[best].mean,
                "isc22_max_error": each.published[best].worst,
                "estimate_ms": each.estimate_s * 1e3,
                "emulated_run_s": each.host_s,
            }
            for each, errors in zip(judged, own, strict=True)
        ],
        "failed": dict(failed),
        **measured_with(),
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
    print(f"{'within their intervals':24} {document['coverage_95']:8.2%}")
    for tier in ("slow", "fast"):
        one = document["one_run"][tier]
        print(
            f"from the {tier} run alone   {one['mean_error']:9.2%}, within 5 %: "
            f"{one['within_5']:.0%}, within 10 %: {one['within_10']:.0%}"
        )
    if held := document["heldout"]:
        print(
            f"held out ({', '.join(held['programs'])}): mean {held['mean_error']:.2%}, worst "
            f"{held['max_error']:.2%}, within their intervals {held['coverage_95']:.1%}"
        )
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
