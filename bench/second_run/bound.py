# SPDX-License-Identifier: MIT
"""Bound of the second run: what a program's former runs would bring to its next one.

One of a program's variants (``bench/second_run/variants.yaml``) is the run, the others are its
former runs (:mod:`bench.second_run.former_run`). Gives simulated seconds of first
touch; of ``benefit`` with samples at their cost; of ``exact-past`` and ``clairvoyant``
(:mod:`bench.known_misses`); of ``former run``, which knows all misses of the former runs and
nothing of this one; of profiles, which are smaller; of ``mixed``, the daemon's policy with a
profile. Known misses cost no samples; each takes the best of some horizons, or moves nothing.
``--resolutions`` adds former runs in coarser blocks and phases, with objects as /proc/PID/maps
merges them, and mixed with a wrong profile.

Writes build/second_run/bound.json case by case: cases that are there are not simulated again,
unless they are named. ``--publish`` writes docs/results/second_run_bound.json of them. A case takes
20 to 60 seconds of CPU. Former runs are the other variants that are recorded
(:mod:`bench.second_run.variants`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Any, Final

import numpy as np

from bench.compare.bounds import SETTINGS, fast_pages
from bench.compare.comparison_case import RATIOS
from bench.compare.policies import ROOT, SUITE
from bench.compare.simulations import UNSAMPLED, made
from bench.compare.testbed import PRESET
from bench.documents.markdown import measured_with
from bench.known_misses import (
    CLAIRVOYANT,
    EXACT_PAST,
    HORIZONS,
    KnownMisses,
    KnownMissesSettings,
    PageValues,
    known_run,
)
from bench.progress import print_progress
from bench.second_run.former_run import Former, FormerStream, Mixed, Resolution
from bench.second_run.objects import objects_of, regions_of, traced_mappings
from bench.second_run.variants import BASE, recorded_variants, variant_of, variants
from bench.suite.ground_truth import stream_path
from hmd.base.errors import HmdError
from hmd.emulate.preset import load
from hmd.emulate.recordings.misses import MissStream
from hmd.learn.rows import MissValues
from hmd.policy import registry
from hmd.simulate.machine import SimulatedMachine
from hmd.simulate.pmu import PmuSettings
from hmd.simulate.simulation import SimulatedDaemon, run_daemon, simulate

OUTPUT: Final = ROOT / "build" / "second_run" / "bound.json"
COMMITTED: Final = ROOT / "docs" / "results" / "second_run_bound.json"
EXAMPLES: Final = """examples:
  python -m bench.second_run.variants cg:other cg:smaller   record what cg:smaller takes
  python -m bench.second_run.bound cg:smaller               all ratios of one run
  python -m bench.second_run.bound cg:smaller:1:8           one case, simulated again
  python -m bench.second_run.bound --publish                all that is missing, then publish"""

FIRST_TOUCH, FORMER, MIXED, MISLED = "first touch", "former run", "mixed", "mixed, wrong profile"
RULE: Final = registry.DEFAULT
RUN: Final = "smaller"
"""The variant that is the run, unless another one is named."""
MOVE_S: Final = 2e-6
"""Seconds that a page must save per move, of all who know misses."""
LONG_RUN: Final = 1000
"""Horizon in ticks that is longer than any run: what a page is worth until the end."""
SEEDS: Final = (1, 2)
MIXED_TICKS: Final = 8

PROFILES: Final = {
    "profile, 128 KiB": Resolution(blocks=2048, phases=64, bits=8),
    "profile, 8 KiB": Resolution(blocks=512, phases=32, bits=4),
}
"""What the daemon could keep of a program."""
RESOLUTIONS: Final = {
    "blocks of 16 pages": Resolution(block_pages=16),
    "blocks of 256 pages": Resolution(block_pages=256),
    "objects": Resolution(block_pages=1 << 28),
    "50 phases": Resolution(phases=50),
    "10 phases": Resolution(phases=10),
    "1 phase": Resolution(phases=1),
}
"""Former runs at other resolutions than pages and all phases, by name."""
BY_REGION: Final = "objects by region"


@dataclass(frozen=True, slots=True)
class _Runs:
    """A run and its former ones, with objects by calls, and by merged regions."""

    own: FormerStream
    former: list[FormerStream]

    def by_region(self) -> _Runs:
        own, *former = (
            replace(each, objects=regions_of(each.stream)) for each in (self.own, *self.former)
        )
        return _Runs(own, former)

    def known(self, resolution: Resolution, wrong: bool = False) -> Former:
        rng = np.random.default_rng(1) if wrong else None
        return Former(self.own, self.former, resolution, rng)


def runs_of(program: str, variant: str) -> _Runs:
    """Return a run and the program's other recorded variants, which are its former runs.

    Raises HmdError where the run, or any former one, is not recorded.
    """
    preset, there = load(PRESET), recorded_variants(program)
    variant_of(program, variant)  # an unknown one is refused
    if variant not in there or len(there) < 2:
        raise HmdError(
            f"{program}:{variant} or a former run is not recorded: "
            f"python -m bench.second_run.variants {program}:{variant} {program}:{BASE}"
        )

    def read(name: str) -> FormerStream:
        of = variant_of(program, name)
        stream = MissStream.read(stream_path(of, SUITE))
        return FormerStream(
            stream, MissValues(stream, preset), objects_of(stream, traced_mappings(of, SUITE))
        )

    return _Runs(read(variant), [read(name) for name in there if name != variant])


def case(
    program: str, variant: str, ratio: str, runs: _Runs, resolutions: bool = False
) -> dict[str, Any]:
    """Return a case: seconds by policy, the best horizons, and what the mixed policy took.

    With ``resolutions`` also former runs in ``RESOLUTIONS`` and by region, and a wrong profile.
    """
    stream, preset = runs.own.stream, load(PRESET)
    pages = fast_pages(stream, ratio)
    unsampled = replace(SETTINGS, sampling=PmuSettings(loss=1.0, free=True))

    def by(values: PageValues, horizon: int, past: bool = False) -> float:
        known = KnownMissesSettings(past, horizon, MOVE_S)
        return known_run(stream, preset, pages, values, known, unsampled).runtime_s

    def best(values: PageValues, horizons: Sequence[int], past: bool = False) -> tuple[float, int]:
        return min((by(values, horizon, past), horizon) for horizon in horizons)

    free = replace(SETTINGS, sampling=replace(SETTINGS.sampling, free=True))
    seconds = {FIRST_TOUCH: simulate(stream, preset, pages, made(UNSAMPLED), free).runtime_s}
    seconds[RULE] = _mean(
        lambda seed: simulate(stream, preset, pages, made(RULE), _sampled(seed)).runtime_s
    )
    exact = runs.known(Resolution())
    horizons = {}
    for name, values in (
        (EXACT_PAST, runs.own.values),
        (CLAIRVOYANT, runs.own.values),
        (FORMER, exact),
    ):
        ahead = (*HORIZONS, LONG_RUN) if name != EXACT_PAST else HORIZONS
        seconds[name], horizons[name] = best(values, ahead, name == EXACT_PAST)
    kept = {name: runs.known(resolution) for name, resolution in PROFILES.items()}
    for name, profile in kept.items():
        seconds[name] = by(profile, horizons[FORMER])
    mixed = [_mixed(runs, pages, next(iter(kept.values())), seed) for seed in SEEDS]
    seconds[MIXED] = geometric_mean(each.pop("seconds") for each in mixed)
    found: dict[str, Any] = {"mixed": mixed[0]}
    if resolutions:
        for name, resolution in RESOLUTIONS.items():
            seconds[name] = by(runs.known(resolution), horizons[FORMER])
        seconds[BY_REGION] = by(runs.by_region().known(Resolution()), horizons[FORMER])
        wrong = runs.known(next(iter(PROFILES.values())), wrong=True)
        found["misled"] = _mixed(runs, pages, wrong, SEEDS[0])
        seconds[MISLED] = found["misled"].pop("seconds")
    pages_known = float((runs.own.objects.number >= 0).mean())
    return {
        "program": program, "variant": variant, "ratio": ratio, "pages": stream.user_pages,
        "former": len(runs.former), "pages_known": round(pages_known, 4),
        "horizons": horizons, "seconds": seconds,
    } | found  # fmt: skip


def _sampled(seed: int) -> Any:
    return replace(SETTINGS, sampling=replace(SETTINGS.sampling, seed=seed))


def _mean(seconds: Callable[[int], float]) -> float:
    return geometric_mean(seconds(seed) for seed in SEEDS)


def _mixed(runs: _Runs, pages: int, values: Former, seed: int) -> dict[str, Any]:
    """Run the mixed policy; return its seconds, and what its samples said of the profile."""
    settings = _sampled(seed)
    known = KnownMissesSettings(False, MIXED_TICKS, MOVE_S)
    with SimulatedMachine(runs.own.stream, load(PRESET), pages, settings.cost) as machine:
        former = KnownMisses(machine, values, known, settings.delay_s)
        policy = Mixed(machine, values, former, made(RULE))
        seconds = run_daemon(SimulatedDaemon(machine, policy, settings)).runtime_s
    return {"seconds": seconds} | policy.evidence()


def document(cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the published file: rows by case and policy, and geometric means of speeds."""
    cases = [_at_least_still(each) for each in cases]
    rows = [
        {key: each[key] for key in ("program", "variant", "ratio")}
        | {"policy": policy, "seconds": seconds, "speed": round(speed(each, policy), 4)}
        for each in cases
        for policy, seconds in each["seconds"].items()
    ]
    about = [{key: value for key, value in each.items() if key != "seconds"} for each in cases]
    by_ratio = {
        ratio: means([each for each in cases if each["ratio"] == ratio])
        for ratio in RATIOS
        if any(each["ratio"] == ratio for each in cases)
    }
    return {
        "programs": len({each["program"] for each in cases}), "cases": about,
        "geomean": means(cases), "geomean_by_ratio": by_ratio,
        "geomean_resolutions": means([each for each in cases if MISLED in each["seconds"]]),
        "share_of_clairvoyant": share(cases, CLAIRVOYANT), "rows": rows,
    }  # fmt: skip


def _at_least_still(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case in which those who know misses are no slower than to move nothing.

    That is one of their settings, and as fast as first touch.
    """
    still = case["seconds"][FIRST_TOUCH]
    sampled = (RULE, MIXED, MISLED)
    seconds = {
        name: value if name in sampled else min(value, still)
        for name, value in case["seconds"].items()
    }
    return {**case, "seconds": seconds}


def speed(case: Mapping[str, Any], policy: str) -> float:
    """Return a policy's speed relative to first touch."""
    return float(case["seconds"][FIRST_TOUCH] / case["seconds"][policy])


BETTER: Final = f"better of {RULE} and {FORMER}"


def means(cases: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return geometric means of speeds by policy, of those that all of the cases have, if any.

    ``BETTER`` takes in each case the better of the two, and no moves where these are better still.
    """
    if not cases:
        return {}
    names = [name for name in cases[0]["seconds"] if all(name in each["seconds"] for each in cases)]
    found = {name: geometric_mean(speed(each, name) for each in cases) for name in names}
    found[BETTER] = geometric_mean(max(speed(each, RULE), speed(each, FORMER)) for each in cases)
    return {name: round(value, 4) for name, value in found.items()}


def share(cases: Sequence[Mapping[str, Any]], of: str) -> dict[str, float]:
    """Return what part of the gain of ``of`` over ``benefit`` others have, by logarithms."""
    mean = means(cases)
    gap = np.log(mean[of] / mean[RULE])
    return {
        name: round(float(np.log(mean[name] / mean[RULE]) / gap), 3)
        for name in mean
        if name not in (of, RULE, FIRST_TOUCH)
    }


def main() -> int:
    """Simulate the requested cases; print and write all results."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.second_run.bound",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("cases", nargs="*", metavar="PROGRAM[:VARIANT[:RATIO]]")
    parser.add_argument(
        "--limit", type=float, metavar="SECONDS", help="begin no case after so many"
    )
    parser.add_argument(
        "--resolutions", action="store_true", help="also coarser former runs, and a wrong profile"
    )
    parser.add_argument("--publish", action="store_true", help=f"also write {COMMITTED.name}")
    args = parser.parse_args()
    try:
        known = _simulate(args.cases, args.limit, args.resolutions)
    except HmdError as error:
        print(f"bound: {error}", file=sys.stderr)
        return int(error.exit_code)
    found = document(known)
    if args.publish:
        COMMITTED.write_text(json.dumps(measured_with() | found, indent=1) + "\n")
    for name, value in found["geomean"].items():
        print(f"{name:30}{value:8.3f}")
    return 0


def _known() -> list[dict[str, Any]]:
    """Return the cases that are simulated: another command may have added some."""
    return json.loads(OUTPUT.read_text()) if OUTPUT.exists() else []


def _simulate(
    names: Sequence[str], limit_s: float | None, resolutions: bool
) -> list[dict[str, Any]]:
    """Return the known cases with those that are missing or named."""
    began_s, known = time.monotonic(), _known()
    for name in names or [each for each in variants() if RUN in recorded_variants(each)]:
        program, _, rest = name.partition(":")
        variant, _, asked = rest.partition(":")
        variant = variant or RUN
        there = {_key(each) for each in known}
        ratios = [asked] if asked else [r for r in RATIOS if (program, variant, r) not in there]
        runs = runs_of(program, variant) if ratios else None
        for ratio in ratios:
            if runs is None or (limit_s and time.monotonic() - began_s > limit_s):
                break
            print_progress(f"{program}:{variant}:{ratio}")
            found = case(program, variant, ratio, runs, resolutions)
            known = [each for each in _known() if _key(each) != _key(found)] + [found]
            OUTPUT.parent.mkdir(parents=True, exist_ok=True)
            OUTPUT.write_text(json.dumps(known, indent=1) + "\n")
    return known


def _key(case: Mapping[str, Any]) -> tuple[str, str, str]:
    return case["program"], case["variant"], case["ratio"]


if __name__ == "__main__":
    sys.exit(main())
