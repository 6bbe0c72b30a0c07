# SPDX-License-Identifier: MIT
"""What tagged loads cost policies, and what scaling brings, in the simulator.

    python -m bench.tagged_loads [PROGRAM,...] [-o docs/results/tagged_loads.json]

Load latency counts loads that a tag has followed, as bench/pmu_model.py shows in the emulated
machine. Here recorded programs are sampled in its three ways: every miss counted (one in 199),
loads that a tag chose, each sample taken for its period (one in 11, which gives about as many
samples), and these scaled by the misses of the program. A tag is free once the load before has its
data, and takes one of ``tag_interval`` misses that find it free. Stores and prefetched lines are
counted exactly in all three. What the file of ``-o`` has is not measured
again.

- ``speed``: runtime of first touch over that under a policy, with a ninth of the program's memory
  on the fast node; the policy's ticks and moves are modelled, its samples are free.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bench.documents.markdown import measured_with, table
from bench.progress import print_progress
from bench.suite.ground_truth import RecordedStream, recorded
from hmd.emulate.preset import Preset, load
from hmd.emulate.recordings.misses import MissStream
from hmd.policy import registry
from hmd.sample.access_batch import AccessBatch
from hmd.simulate.machine import SimulatedMachine
from hmd.simulate.pmu import PmuSettings, SimulatedPmu
from hmd.simulate.simulation import SimulatedDaemon, SimulationSettings, run_daemon, simulate

FOLDER = Path(__file__).resolve().parents[1] / "build" / "suite"
PROGRAMS: Final = ("index",)
WAYS: Final = {"counted": 199, "tagged": 11, "scaled": 11}
POLICIES: Final = ("benefit", "histogram")


class Tag:
    """The tag of a CPU, which follows one load at a time."""

    def __init__(self, interval: int, seed: int) -> None:
        self._interval, self._rng = interval, np.random.default_rng(seed)
        self._free_ps, self._skip = 0, 0

    def choose(
        self, clock_ps: npt.NDArray[np.uint64], latency_ps: npt.NDArray[np.uint32]
    ) -> npt.NDArray[np.int64]:
        """Return the rows that it takes of the next loads that miss, in order of their issue."""
        found, row = list[int](), 0
        while True:
            row = max(row, int(np.searchsorted(clock_ps, self._free_ps))) + self._skip
            if row >= len(clock_ps):
                self._skip = row - len(clock_ps)
                return np.array(found, np.int64)
            found.append(row)
            self._free_ps = int(clock_ps[row]) + int(latency_ps[row])
            self._skip = int(self._rng.geometric(1 / self._interval)) - 1
            row += 1


class TaggedPmu(SimulatedPmu):
    """A PMU whose first counter counts loads that a tag has followed; ``scaled``: see above."""

    def __init__(
        self, machine: SimulatedMachine, sampling: PmuSettings, interval: int, *, scaled: bool
    ) -> None:
        super().__init__(machine, sampling)
        counter = self._counters[0]
        self._loads, self._tag = counter.rows, Tag(interval, sampling.seed)
        counter.rows, self._counter = np.empty(0, np.int64), counter
        self._scaled, self._done = scaled, 0
        self._recent = np.zeros(2)

    def read(self) -> AccessBatch:
        """Return the samples since the last read."""
        end = int(np.searchsorted(self._loads, self._machine.row))
        rows, self._done = self._loads[self._done : end], end
        outcomes = self._machine.outcomes
        tagged = rows[self._tag.choose(outcomes.clock_ps[rows], outcomes.latency_ps[rows])]
        self._counter.rows = np.concatenate([self._counter.rows, tagged])
        self._recent = self._recent / 2 + (len(rows), len(tagged))
        batch = super().read()
        if self._scaled and self._recent[1]:
            loads = batch.period == self.period
            batch.period[loads] = round(self.period * self._recent[0] / self._recent[1])
        return batch


def main() -> None:
    """Simulate and estimate all programs; print a table and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("programs", nargs="?", default=",".join(PROGRAMS))
    parser.add_argument("-o", "--output", type=Path, default=FOLDER.parent / "tagged_loads.json")
    args = parser.parse_args()
    preset = load("dram-pm")
    found: dict[str, Any] = {}
    if args.output.exists():
        found = json.loads(args.output.read_text())["programs"]
    for name in args.programs.split(","):
        figures = found.setdefault(name, {"seconds": {}})
        for _ in measure(recorded(name, FOLDER, print_progress), preset, figures):
            args.output.write_text(json.dumps(_document(found, preset), indent=1) + "\n")
    rows = [
        [name, policy, *(f"{each['speed'][policy][way]:.3f}" for way in WAYS)]
        for name, each in found.items()
        for policy in POLICIES
    ]
    print(table(["program", "policy", *WAYS], rows, text=2))


def measure(program: RecordedStream, preset: Preset, figures: dict[str, Any]) -> Iterator[None]:
    """Add the figures that a program lacks, one after the other."""
    seconds = figures["seconds"]
    for key in ("first touch", *(f"{policy} {way}" for policy in POLICIES for way in WAYS)):
        if key not in seconds:
            seconds[key] = round(simulated_seconds(program.stream, preset, key), 5)
            yield
    figures["speed"] = {
        policy: {way: round(seconds["first touch"] / seconds[f"{policy} {way}"], 4) for way in WAYS}
        for policy in POLICIES
    }
    yield


def simulated_seconds(stream: MissStream, preset: Preset, key: str) -> float:
    """Return the runtime of first touch, or of a policy and a way."""
    pages = stream.user_pages // 9
    if key == "first touch":
        free = SimulationSettings(sampling=PmuSettings(free=True))
        return simulate(stream, preset, pages, registry.create("none", {}), free).runtime_s
    policy, way = key.split()
    sampling = PmuSettings(WAYS[way], free=True)
    with SimulatedMachine(stream, preset, pages) as machine:
        made = registry.create(policy, {"headroom": 0.0, "headroom_min": 64 << 10})
        daemon = SimulatedDaemon(machine, made, SimulationSettings(sampling=sampling))
        if way != "counted":
            interval = preset.sampling.tag_interval
            tagged = TaggedPmu(machine, sampling, interval, scaled=way == "scaled")
            of_tags = replace(daemon.inputs.machine, sampler=tagged)
            daemon.inputs = replace(daemon.inputs, machine=of_tags)
        return run_daemon(daemon).runtime_s


def _document(found: Mapping[str, Any], preset: Preset) -> dict[str, Any]:
    whole = [each for each in found.values() if "speed" in each]
    document = {
        **measured_with(),
        "preset": preset.name,
        "tag_interval": preset.sampling.tag_interval,
        "programs": found,
    }
    if not whole:
        return document
    return {
        **document,
        "geomean_speed": {
            policy: {way: _geomean(each["speed"][policy][way] for each in whole) for way in WAYS}
            for policy in POLICIES
        },
    }


def _geomean(values: Iterable[float]) -> float:
    return round(float(np.exp(np.mean(np.log(list(values))))), 4)


if __name__ == "__main__":
    main()
