# SPDX-License-Identifier: MIT
"""Settings of policies, compared by simulation on the comparison's programs and ratios.

    python -m bench.compare.simulated_settings histogram benefit:confidence=1,move_ns=2000 ...

A setting is POLICY or POLICY:KEY=VALUE,...; prints its speed relative to first touch and writes
build/settings.json. Tick, period, window and delay default to those of hmd in the guest; headroom
is always that of the guest. A program takes about three seconds of CPU per policy for three ratios,
and a minute for its recording the first time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bench.compare.comparison_case import RATIOS, ComparisonCase
from bench.compare.guest_services import EXPERIMENT_PERIOD, PACE
from bench.compare.policies import FOLDER, PROGRAMS, ROOT, SUITE
from bench.compare.simulations import DELAY_S, UNSAMPLED, made
from bench.compare.tables import geomean
from bench.compare.testbed import DILATION, PRESET, footprint_bytes
from bench.progress import print_progress
from bench.suite.ground_truth import program_digest, recorded
from bench.suite.inputs import prepare
from bench.suite.program import load_program
from hmd.base.errors import ConfigError, HmdError
from hmd.base.units import PAGE_BYTES
from hmd.emulate.preset import load
from hmd.emulate.recordings.misses import MissStream
from hmd.heat.settings import HeatSettings
from hmd.simulate.pmu import PmuSettings
from hmd.simulate.simulation import SimulationSettings, simulate

OUTPUT = ROOT / "build" / "settings.json"


@dataclass(frozen=True, slots=True)
class PolicySetting:
    """A policy and its settings that differ from the defaults."""

    policy: str
    values: tuple[tuple[str, float], ...] = ()

    @classmethod
    def parse(cls, text: str) -> PolicySetting:
        """Return the setting that a text names; raises ConfigError for any other text."""
        policy, _, rest = text.partition(":")
        try:
            pairs = [pair.split("=") for pair in rest.split(",") if pair]
            values = tuple((key, float(value)) for key, value in pairs)
        except ValueError:
            raise ConfigError(f"{text!r} is not POLICY:KEY=NUMBER,...") from None
        made(policy, dict(values))
        return cls(policy, values)


FIRST_TOUCH = PolicySetting(UNSAMPLED)


def simulated(
    program: str, settings: Sequence[PolicySetting], how: SimulationSettings
) -> dict[str, list[tuple[float, int]]]:
    """Return a program's runtime in seconds and MiB moved, by setting and ratio."""
    stream = recorded(program, SUITE, print_progress).stream
    prepared = partial(prepare, load_program(program), SUITE / "inputs")
    footprint = footprint_bytes(program, program_digest(program), prepared, FOLDER)
    found: dict[str, list[tuple[float, int]]] = {}
    for ratio in RATIOS:
        fast_bytes = ComparisonCase(program, ratio, "").fast_bytes(footprint) or 0
        for setting in settings:
            took = _run(stream, fast_bytes // PAGE_BYTES, setting, how)
            found.setdefault(repr(setting), []).append(took)
    return found


def _run(
    stream: MissStream, pages: int, setting: PolicySetting, how: SimulationSettings
) -> tuple[float, int]:
    policy = made(setting.policy, dict(setting.values))
    sampling = replace(how.sampling, free=setting == FIRST_TOUCH)
    found = simulate(stream, load(PRESET), pages, policy, replace(how, sampling=sampling))
    return found.runtime_s, found.moved_bytes >> 20


def main() -> int:
    """Simulate the requested settings; print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="+", metavar="POLICY:KEY=VALUE,...")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="separated by commas")
    tick_ms = 1000 * PACE.tick_s / DILATION
    window = HeatSettings().window_pages_per_sample
    for name, default, unit in (
        ("tick", tick_ms, "modelled ms"),
        ("delay", 1000 * DELAY_S, "modelled ms to a tick's first move"),
        ("period", EXPERIMENT_PERIOD, "misses per sample"),
        ("window", window, "resident pages per sample of a window"),
    ):
        kind = type(default)
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"{unit} ({default:g})")
    args = parser.parse_args()
    how = SimulationSettings(
        tick_s=args.tick / 1000,
        delay_s=args.delay / 1000,
        found_s=0.005,
        sampling=PmuSettings(args.period),
        heat=HeatSettings(window_pages_per_sample=args.window),
    )
    programs = args.programs.split(",")
    try:
        settings = [PolicySetting.parse(text) for text in args.settings]
        with ProcessPoolExecutor(2) as pool:
            one = partial(simulated, settings=[FIRST_TOUCH, *settings], how=how)
            runs = pool.map(one, programs)
            found = dict(zip(programs, runs, strict=True))
    except HmdError as error:
        print(f"settings: {error}", file=sys.stderr)
        return int(error.exit_code)
    rows = {text: _row(found, s) for text, s in zip(args.settings, settings, strict=True)}
    OUTPUT.write_text(json.dumps(rows, indent=1) + "\n")
    for text, row in rows.items():
        print(f"\n{text}: geometric mean {row['geomean']:.3f}, worst {row['worst']:.3f}")
        for program, cells in row["programs"].items():
            print(f"  {program:12}" + "".join(f"{c['times']:8.3f} {c['mib']:4} MiB" for c in cells))
    return 0


def _row(
    found: Mapping[str, Mapping[str, Sequence[tuple[float, int]]]], setting: PolicySetting
) -> dict[str, Any]:
    programs: dict[str, list[dict[str, Any]]] = {}
    times = []
    for program, runs in found.items():
        programs[program] = []
        both = zip(RATIOS, runs[repr(FIRST_TOUCH)], runs[repr(setting)], strict=True)
        for ratio, (touch, _), (took, mib) in both:
            times.append(touch / took)
            programs[program].append({"ratio": ratio, "times": times[-1], "mib": mib})
    return {"geomean": geomean(times), "worst": min(times), "programs": programs}


if __name__ == "__main__":
    sys.exit(main())
