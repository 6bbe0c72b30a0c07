"""The learned policy on programs that its training never saw.

    python -m bench.learned [--recordings FOLDER] [--programs NAME,...] [--ratios 1:2,...]

Takes recorded programs of the suite; gives runtimes of first touch, of no moves with samples at
their cost, of the default policy and of the learned one, with the guard that the daemon has and
without. The programs are in five folds, and the
network that runs a program was fitted to rows of the other folds. Rows are collected once for each
program and round: in the first round rules move its pages, in the second the network of its own
fold. So another fold's rows of the second round depend on where a network that knows the program
moved their pages, and on nothing else of it. Prints a table and writes build/learned.json. Rows and
networks are kept in build/learned/. Takes about 40 minutes of CPU, and a minute per program for the
recordings the first time. With all programs the summary compares with the bounds of
docs/results/bounds.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

import numpy as np

from bench.compare.bounds import COMMITTED as BOUNDS
from bench.compare.bounds import LONG_PERIOD, SETTINGS
from bench.compare.policies import ROOT, SUITE
from bench.compare.testbed import PRESET
from bench.suite.ground_truth import recorded
from hmd.decide import registry
from hmd.decide.plan import Policy
from hmd.emulate.miss_stream import MissStream
from hmd.emulate.preset import load
from hmd.errors import HmdError
from hmd.learn.perceptron import fit_network
from hmd.learn.training import make_policy, weights_of
from hmd.learn.training_rows import HEADROOM_BYTES, RowRequest, TrainingRows, collect_rows
from hmd.simulate.known_misses import MissValues
from hmd.simulate.simulated_pmu import PmuSettings
from hmd.simulate.simulation import SimulationSettings, simulate

OUTPUT = ROOT / "build" / "learned.json"
FOLDER = ROOT / "build" / "learned"

PROGRAMS: Final = (
    "betweenness", "bfs", "btree", "cg", "compress", "drift", "gups", "hydro", "index", "pagerank",
    "phases", "sat", "stream", "transpose", "updates_moving", "updates_scattered", "xslookup",
)  # fmt: skip
RATIOS: Final = ("1:2", "1:8", "1:16")
FOLDS: Final = 5
HORIZON_TICKS: Final = 8
_ROWS_MOST: Final = 25_000  # of a program and round
_EPOCHS: Final = 4
_HIDDEN: Final = (32, 16)
_TESTED: Final = 0.1


@dataclass(frozen=True, slots=True)
class RowRun:
    """A run that rows are collected from: policy, its margin, misses per sample and ratio."""

    policy: str
    margin: float
    period: int
    ratio: str


RUNS: Final = (
    (
        RowRun("histogram", 0, 83, "1:2"),
        RowRun("none", 0, 332, "1:8"),
        RowRun("histogram", 0, 332, "1:8"),
    ),
    (RowRun("learned", 1, 332, "1:2"), RowRun("learned", 2, 199, "1:8")),
)
"""The runs of each round."""


class HeldOutStudy:
    """Rows, networks and runtimes of all programs; ``recordings`` has their files, or is None."""

    def __init__(self, recordings: Path | None) -> None:
        self._recordings, self._preset = recordings, load(PRESET)
        FOLDER.mkdir(parents=True, exist_ok=True)

    def network(self, rounds: int, fold: int) -> Path:
        """Return the file of the network of a fold, which saw no program of it; -1 saw all."""
        path = FOLDER / f"round-{rounds}-fold-{fold}.npz"
        if not path.exists():
            _say(f"fitting round {rounds + 1}, fold {fold}")
            seen = [name for n, name in enumerate(PROGRAMS) if n % FOLDS != fold]
            rows = TrainingRows.joined(
                [self._rows(name, number) for name in seen for number in range(rounds + 1)]
            )
            tested = np.random.default_rng(1).random(len(rows)) < _TESTED
            fitted = fit_network(
                rows.take(np.flatnonzero(~tested)),
                rows.take(np.flatnonzero(tested)),
                _HIDDEN,
                _EPOCHS,
                seed=1,
            )
            about = f"{len(rows):,} rows of {len(seen)} programs of the suite, {rounds + 1} rounds"
            weights_of(fitted, HORIZON_TICKS, rows, about).write(path)
        return path

    def seconds(self, name: str, ratios: Sequence[str]) -> list[dict[str, Any]]:
        """Return a program's cases: seconds and MiB moved by policy."""
        stream = self._stream(name)
        fold = PROGRAMS.index(name) % FOLDS
        weights = str(self.network(len(RUNS) - 1, fold))
        charged = _settings(LONG_PERIOD, 1)
        free = replace(charged.sampling, free=True)
        policies = {
            "first touch": ("none", replace(charged, sampling=free)),
            "none": ("none", charged),
            registry.DEFAULT: (registry.DEFAULT, charged),
        }
        found = []
        for ratio in ratios:
            _say(f"{name} {ratio}")
            pages = _fast_pages(stream, ratio)
            runs = {
                label: simulate(stream, self._preset, pages, make_policy(policy), settings)
                for label, (policy, settings) in policies.items()
            }
            for label, guard in (("learned", True), ("learned, unguarded", False)):
                policy = _learned(weights, guard)
                runs[label] = simulate(stream, self._preset, pages, policy, charged)
            found.append(
                {
                    "program": name,
                    "ratio": ratio,
                    "preset": PRESET,
                    "seconds": {label: run.runtime_s for label, run in runs.items()},
                    "moved_mib": {label: run.moved_bytes >> 20 for label, run in runs.items()},
                }
            )
        return found

    def _rows(self, name: str, number: int) -> TrainingRows:
        """Return a program's rows of a round."""
        path = FOLDER / f"rows-{name}-{number}.npz"
        if not path.exists():
            stream, program = self._stream(name), PROGRAMS.index(name)
            values = MissValues(stream, self._preset)
            parts = []
            for position, run in enumerate(RUNS[number]):
                _say(f"round {number + 1}: {name}, {run.policy} {run.ratio}")
                given: dict[str, float | str] = {}
                if run.policy == "learned":
                    weights = self.network(number - 1, program % FOLDS)
                    given = {"weights": str(weights), "margin": run.margin}
                seed = 10 * number + position
                parts.append(
                    collect_rows(
                        stream,
                        self._preset,
                        _fast_pages(stream, run.ratio),
                        make_policy(run.policy, **given),
                        _settings(run.period, seed + 5),
                        RowRequest(program, HORIZON_TICKS, seed),
                        values,
                    )
                )
            TrainingRows.joined(parts).write(path)
        rows = TrainingRows.read(path)
        return rows.take(np.random.default_rng(0).permutation(len(rows))[:_ROWS_MOST])

    def _stream(self, name: str) -> MissStream:
        if self._recordings is not None:
            return MissStream.read(self._recordings / f"{name}.npz")
        return recorded(name, SUITE, _say).stream


def summary(cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the file's content: the cases, and means of speeds over them."""
    times = [case["seconds"] for case in cases]

    def mean(of: str, over: str) -> float:
        return round(geometric_mean(each[over] / each[of] for each in times), 4)

    return {
        "command": "python -m bench.learned",
        "geomean": {name: mean(name, "first touch") for name in times[0] if name != "first touch"},
        "geomean_vs_best_untuned": mean("learned", registry.DEFAULT),
        "worst_vs_none": round(min(each["none"] / each["learned"] for each in times), 4),
        "worst_of_default_vs_none": round(
            min(each["none"] / each[registry.DEFAULT] for each in times), 4
        ),
        "gap_closed": gap_closed(cases, json.loads(BOUNDS.read_text())["cases"]),
        "heldout": list(cases),
    }


def gap_closed(
    cases: Sequence[Mapping[str, Any]], bounds: Sequence[Mapping[str, Any]]
) -> float | None:
    """Return the share of the gap from the default policy to ``clairvoyant`` that is closed.

    Over the cases that the bounds have too, in geometric means of speeds relative to first touch;
    None without such cases.
    """
    known = {(case["program"], case["ratio"]): case["seconds"] for case in bounds}
    rule, ours, best = [], [], []
    for case in cases:
        bound, seconds = known.get((case["program"], case["ratio"])), case["seconds"]
        if bound is not None:
            rule.append(seconds["first touch"] / seconds[registry.DEFAULT])
            ours.append(seconds["first touch"] / seconds["learned"])
            best.append(bound["first touch"] / bound["clairvoyant"])
    if not best:
        return None
    low, here, high = (geometric_mean(each) for each in (rule, ours, best))
    return round((here - low) / (high - low), 4)


def main() -> int:
    """Train, simulate the requested cases; print and write all results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recordings", type=Path, help="folder of recordings (PROGRAM.npz)")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="separated by commas")
    parser.add_argument("--ratios", default=",".join(RATIOS), help="separated by commas")
    parser.add_argument("--ship", type=Path, help="write the network of all programs to this file")
    args = parser.parse_args()
    study = HeldOutStudy(args.recordings)
    cases: list[dict[str, Any]] = []
    try:
        if args.ship is not None:
            args.ship.write_bytes(study.network(len(RUNS) - 1, -1).read_bytes())
            return 0
        for program in args.programs.split(","):
            cases += study.seconds(program, args.ratios.split(","))
            OUTPUT.write_text(json.dumps(summary(cases), indent=1) + "\n")
    except HmdError as error:
        print(f"learned: {error}", file=sys.stderr)
        return int(error.exit_code)
    _print(cases)
    return 0


def _print(cases: Sequence[Mapping[str, Any]]) -> None:
    print("times first touch (MiB moved)")
    for case in cases:
        seconds, moved = case["seconds"], case["moved_mib"]
        cells = [
            f"{name} {seconds['first touch'] / seconds[name]:.3f} ({moved[name]})"
            for name in seconds
            if name != "first touch"
        ]
        print(f"{case['program'] + ' ' + case['ratio']:24}" + "  ".join(cells))
    print({key: value for key, value in summary(cases).items() if key != "heldout"})


def _learned(weights: str, guard: bool) -> Policy:
    """Return the learned policy, as the daemon has it or without its guard."""
    given = {
        "headroom_fraction": 0.0,
        "headroom_bytes": HEADROOM_BYTES,
        "weights": weights,
    }
    return registry.guarded("learned", given, guard)


def _settings(period: int, seed: int) -> SimulationSettings:
    return replace(SETTINGS, sampling=PmuSettings(period, seed=seed))


def _fast_pages(stream: MissStream, ratio: str) -> int:
    return stream.user_pages // (1 + int(ratio.partition(":")[2]))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
