# SPDX-License-Identifier: MIT
"""The daemon's tick over a recorded run, with a profile of former runs, learning one of this run.

The tick, the learner and the prior are the daemon's own; mappings are those that /proc/PID/maps
would show of the traced calls: made before a page of theirs was accessed, and one where they touch.

    python -m bench.second_run.daemon_run [PROGRAM ...] [--publish]

For each recorded variant of a program, and each ratio: seconds of first touch, of ``benefit``, of
the second run (``benefit`` with the merged profile of all other variants' sampled runs), of the
third (with what the second has added to it), and of runs that are misled: by that profile with its
blocks shuffled, by random counts, and by another program's profile. A damaged one is refused, so
that its run is that of ``benefit``. Misled runs have one seed of samples, the others ``SEEDS``.
Adds to build/second_run/second_run.json; ``--publish`` writes docs/results/second_run.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping as Named
from collections.abc import Sequence
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
from bench.progress import print_progress
from bench.second_run.bound import COMMITTED as BOUND
from bench.second_run.objects import Mapping, shifted, traced_mappings
from bench.second_run.variants import recorded_variants, variant_of, variants
from bench.suite.ground_truth import stream_path
from hmd.base.units import PAGE_BYTES
from hmd.emulate.preset import load
from hmd.emulate.recordings.misses import MissStream
from hmd.linux.mappings import MappingKind, Mappings, anonymous_mappings
from hmd.policy import registry
from hmd.profiles.learning import RunLearner, merge
from hmd.profiles.prior import ProfilePrior
from hmd.profiles.profile import Profile
from hmd.simulate.machine import PROGRAM, SimulatedMachine, first_rows
from hmd.simulate.pmu import PmuSettings
from hmd.simulate.simulation import SimulatedDaemon, SimulationSettings, simulate

OUTPUT: Final = ROOT / "build" / "second_run" / "second_run.json"
COMMITTED: Final = ROOT / "docs" / "results" / "second_run.json"

GUEST: Final = COMMITTED.with_name("second_run_guest.json")
"""Rows of bench.second_run.guest, which are published with the others."""

FIRST_TOUCH, SECOND, THIRD = "first touch", "second run", "third run"
SEEDS: Final = (1, 2, 3)
RULE: Final = registry.DEFAULT
MISLED: Final = ("shuffled profile", "random profile", "profile of another program")
_OTHER: Final = {"cg": "drift"}
"""Whose profile stands for another program's: that of cg, and of this one for cg."""


class MapsOfRun:
    """The mappings of a recorded run, as the daemon would read them."""

    def __init__(self, stream: MissStream, mappings: Sequence[Mapping]) -> None:
        page = (stream.page_address[: stream.user_pages] // np.uint64(PAGE_BYTES)).astype(np.int64)
        first, kept = first_rows(stream), []
        for each in shifted(page, mappings):
            begin, end = np.searchsorted(page, (each.first, each.first + each.pages))
            if end > begin:
                kept.append((each, int(first[begin:end].min())))
        self._mappings = sorted(kept, key=lambda one: one[0].first)
        self._rows = sorted({row for _, row in kept})
        self._known: tuple[int, Mappings] | None = None

    def at(self, row: int) -> Mappings:
        """Return what is mapped when the program has made so many misses."""
        count = int(np.searchsorted(self._rows, row))
        if self._known is None or self._known[0] != count:
            self._known = count, self._read(row)
        return self._known[1]

    def _read(self, row: int) -> Mappings:
        there = [one for one, made_at in self._mappings if made_at < row]
        start = np.array([one.first for one in there], np.uint64) * np.uint64(PAGE_BYTES)
        size = np.array([one.pages for one in there], np.uint64) * np.uint64(PAGE_BYTES)
        kind = [MappingKind.HEAP if one.is_heap else MappingKind.ANON for one in there]
        found = anonymous_mappings(start, start + size)
        return replace(found, kind=np.array(kind, np.uint8))


@dataclass(frozen=True, slots=True)
class DaemonRun:
    """A run: its seconds, the profile that was learned, and the prior's trust tick by tick."""

    seconds: float
    profile: Profile | None
    trust: tuple[float, ...]


def run_program(
    stream: MissStream,
    maps: MapsOfRun,
    fast_pages: int,
    settings: SimulationSettings,
    profile: Profile | None = None,
) -> DaemonRun:
    """Run a program under the default policy, with or without a profile."""
    learner, trust = RunLearner(), []
    prior = ProfilePrior(profile) if profile is not None else None
    with SimulatedMachine(stream, load(PRESET), fast_pages, settings.cost) as machine:
        daemon = SimulatedDaemon(machine, made(registry.DEFAULT), settings)
        if prior is not None:
            daemon.inputs = replace(daemon.inputs, priors={PROGRAM: prior})
        while not machine.done:
            mappings = maps.at(machine.row)
            learner.set_mappings(mappings)
            if prior is not None:
                prior.set_mappings(mappings)
            record = daemon.tick()
            weight = daemon.state.heat.counted.weight.astype(np.float64)
            learner.observe(record.batch.address, weight, record.now_s)
            trust.append(prior.trust if prior is not None else 0.0)
        run = learner.finish()
        if run is not None and prior is not None:
            run = replace(run, saved_s=prior.saved_s)
        return DaemonRun(machine.program_s, run, tuple(trust))


def sampled(seed: int) -> SimulationSettings:
    """Return the settings of a run whose samples cost what they cost."""
    return replace(SETTINGS, sampling=replace(SETTINGS.sampling, seed=seed))


def read_run(program: str, variant: str) -> tuple[MissStream, MapsOfRun]:
    """Return a recorded variant and its mappings."""
    of = variant_of(program, variant)
    stream = MissStream.read(stream_path(of, SUITE))
    return stream, MapsOfRun(stream, traced_mappings(of, SUITE))


def learned(program: str, variants: Sequence[str], ratio: str) -> Profile:
    """Return the profile of former runs: of each, sampled, the one after the other."""
    found: Profile | None = None
    for number, name in enumerate(variants):
        stream, maps = read_run(program, name)
        run = run_program(stream, maps, fast_pages(stream, ratio), sampled(100 + number)).profile
        found = merge(found, run) if run is not None else found
    if found is None:
        raise SystemExit(f"{program}: too few samples for a profile")
    return Profile.from_bytes(found.to_bytes(), program)


def case(program: str, variant: str, ratio: str) -> dict[str, list[float]]:
    """Return seconds by policy, of each seed."""
    former = [each for each in recorded_variants(program) if each != variant]
    right, rng = learned(program, former, ratio), np.random.default_rng(1)
    other, counts = _OTHER.get(program, "cg"), right.counts
    wrong = {
        MISLED[0]: replace(right, counts=counts[:, rng.permutation(counts.shape[1])].copy()),
        MISLED[1]: replace(right, counts=rng.exponential(5.0, counts.shape).astype(np.float32)),
        MISLED[2]: learned(other, recorded_variants(other)[:1], ratio),
    }
    stream, maps = read_run(program, variant)
    pages = fast_pages(stream, ratio)
    free = replace(SETTINGS, sampling=PmuSettings(loss=1.0, free=True))
    still = simulate(stream, load(PRESET), pages, made(UNSAMPLED), free).runtime_s
    found: dict[str, list[float]] = {FIRST_TOUCH: [still]}

    def run(name: str, seed: int, profile: Profile | None) -> Profile | None:
        done = run_program(stream, maps, pages, sampled(seed), profile)
        found.setdefault(name, []).append(done.seconds)
        return done.profile

    for seed in SEEDS:
        run(RULE, seed, None)
        more = run(SECOND, seed, right)
        run(THIRD, seed, merge(right, more) if more is not None else right)
    for name, profile in wrong.items():
        run(name, SEEDS[0], profile)
    return found


def gains(cases: Sequence[Named[str, Any]], name: str) -> list[float]:
    """Return by how much runs of a policy are faster than ``benefit``, in the mean of each case."""
    return [
        geometric_mean(
            before / after
            for before, after in zip(each["seconds"][RULE], each["seconds"][name], strict=False)
        )
        for each in cases
    ]


def document(cases: Sequence[Named[str, Any]], bound: Named[str, Any]) -> dict[str, Any]:
    """Return the published file; ``bound`` has what a former run that knows all would bring."""
    second, third = gains(cases, SECOND), gains(cases, THIRD)
    misled = [gain for name in MISLED for gain in gains(cases, name)]
    speeds = {
        (row["program"], row["variant"], row["ratio"], row["policy"]): row["speed"]
        for row in bound["rows"]
    }
    both = []
    for each, gain in zip(cases, second, strict=True):
        key = each["program"], each["variant"], each["ratio"]
        names = (RULE, "former run", "clairvoyant")
        if all((*key, name) in speeds for name in names):
            both.append((gain, *(speeds[*key, name] / speeds[*key, RULE] for name in names[1:])))
    logs = np.log(np.array(both)).mean(axis=0) if both else np.zeros(3)
    rows = [
        {"program": each["program"], "variant": each["variant"], "ratio": each["ratio"],
         "policy": policy, "seed": seed, "seconds": seconds}
        for each in cases
        for policy, runs in each["seconds"].items()
        for seed, seconds in zip(SEEDS, runs, strict=False)
    ]  # fmt: skip
    return {
        "cases": len(cases), "geomean_vs_benefit": round(geometric_mean(second), 4),
        "geomean_third": round(geometric_mean(third), 4),
        "gap_closed": round(float(logs[0] / logs[2]), 3) if logs[2] else None,
        "share_of_former_run": round(float(logs[0] / logs[1]), 3) if logs[1] else None,
        "worst_vs_benefit": round(min(second), 4), "worst_third": round(min(third), 4),
        "worst_misled": round(min(misled), 4),
        "geomean_misled": round(geometric_mean(misled), 4), "rows": rows, "guest": [],
    }  # fmt: skip


def main() -> int:
    """Simulate what is missing, or the programs that are named; print the summary."""
    parser = argparse.ArgumentParser(prog="python -m bench.second_run.daemon_run")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="default: all")
    parser.add_argument("--publish", action="store_true", help=f"also write {COMMITTED.name}")
    args = parser.parse_args()
    known: list[dict[str, Any]] = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else []
    programs = args.programs or ([] if args.publish else list(variants()))
    there = {each: recorded_variants(each) for each in programs}
    cases = [
        {"program": program, "variant": variant, "ratio": ratio}
        for ratio in RATIOS
        for place in range(3)
        for program, names in there.items()
        for variant in (names[::-1][place : place + 1] if len(names) > 1 else ())
    ]
    for key in cases:
        if not any(key.items() <= each.items() for each in known):
            print_progress(":".join(key.values()))
            known.append(key | {"seconds": case(**key)})
            OUTPUT.parent.mkdir(parents=True, exist_ok=True)
            OUTPUT.write_text(json.dumps(known, indent=1) + "\n")
    found = document(known, json.loads(BOUND.read_text()))
    if GUEST.exists():
        found["guest"] = json.loads(GUEST.read_text())["guest"]
    if args.publish:
        COMMITTED.write_text(json.dumps(measured_with() | found, indent=1) + "\n")
    for name, value in found.items():
        if name not in ("rows", "guest"):
            print(f"{name:24}{value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
