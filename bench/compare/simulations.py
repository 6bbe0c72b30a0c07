# SPDX-License-Identifier: MIT
"""The simulator compared with the guest, at the same policy, program, fast memory and pace.

For each case of hmd that starts with a free fast node, as the simulated one is: the runtime by
``hmd simulate`` with the daemon's tick in modelled time and its mean sampling period, and with its
discovery time before the first sample; long moves prolong a tick in both. Two differences remain.
The guest's CPU also runs the kernel (page faults, and timer ticks, which dilation multiplies): the
excess of first touch in the guest over the simulator, per second of the guest's clock, is added.
And the guest's modelled time omits the program's sleep on migration entries, which the simulator
counts. Results are stored by digest.

Runtimes of the static oracle: the best placement found that never changes.

By replay of each program's miss recording, with as much fast memory as its cases have. A recording
takes a minute or two, unless the estimator's bench made it. Results are stored by digest.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hmd
from bench.compare.comparison_case import ComparisonCase, ComparisonTrial, can_be_simulated
from bench.compare.guest_services import EXPERIMENT_PERIOD, HEADROOM_BYTES, PACE
from bench.compare.systems import FIRST, swept, system_named
from bench.compare.testbed import PRESET
from bench.suite.ground_truth import recorded, replay_digest
from hmd.base.units import PAGE_BYTES
from hmd.emulate.preset import load
from hmd.policy import registry
from hmd.policy.plan import Policy
from hmd.simulate import simulation as of_recording
from hmd.simulate.pmu import PmuSettings
from hmd.simulate.simulation import SimulationSettings, simulate

POLICIES = ("benefit", "histogram")
"""Policies without durations in their settings: those of others follow the guest's clock."""

UNSAMPLED = "none"
"""The policy that stands for first touch: no daemon runs next to it, so that samples are free."""

DELAY_S = 0.003
"""Modelled seconds from the end of a tick to its first move: reading samples, heat and decisions
took the daemon about 0.15 s by the guest's clock on drift."""

_ROOMS = ("simulate", "residency", "heat", "decide", "migrate")

ORACLE = "oracle"


@dataclass(frozen=True, slots=True)
class Simulation:
    """A program's simulated runtime, and the CPU time of the simulation."""

    seconds: float
    cpu_seconds: float


def simulations(
    trials: Mapping[ComparisonCase, ComparisonTrial],
    suite: Path,
    folder: Path,
    say: Callable[[str], None],
) -> dict[ComparisonCase, Simulation]:
    """Return the simulations of hmd's cases, with the guest kernel's excess added."""
    found = {}
    for case, trial in sorted(trials.items(), key=lambda item: item[0]):
        system = system_named(case.system)
        policy = system.policy
        touch = trials.get(ComparisonCase(case.program, case.ratio, swept(FIRST).name))
        simulated = policy in POLICIES and can_be_simulated(case.program)
        if system.swept and simulated and touch is not None:
            bare = _kept(UNSAMPLED, case, touch, suite, folder, say)
            kernel_s = touch.modelled_seconds - bare.seconds
            kernel_s *= trial.guest_seconds / touch.guest_seconds
            ours = _kept(policy, case, trial, suite, folder, say)
            found[case] = Simulation(ours.seconds + kernel_s, ours.cpu_seconds)
    return found


def made(policy: str, values: Mapping[str, Any] | None = None) -> Policy:
    """Return a policy with the guest's headroom and these settings; ConfigError if unknown."""
    named = set(registry.info(policy).settings_type.model_fields)
    headroom = {"headroom": 0.0, "headroom_min": HEADROOM_BYTES}
    given = {name: value for name, value in headroom.items() if name in named}
    return registry.create(policy, {**given, **(values or {})})


def _kept(
    policy: str,
    case: ComparisonCase,
    trial: ComparisonTrial,
    suite: Path,
    folder: Path,
    say: Callable[[str], None],
) -> Simulation:
    slower = trial.guest_seconds / trial.modelled_seconds
    tick_s = round(PACE.tick_s / slower, 4)
    found_s = round(trial.unseen_share * trial.modelled_seconds, 4)
    pages = trial.fast_bytes // PAGE_BYTES
    period = mean_period(trial)
    pace = (tick_s, DELAY_S, found_s, period)
    parts = [policy, pages, pace, replay_digest(case.program), _sources()]
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
    path = folder / "simulated" / f"{case.program}-{policy}-{digest}.json"
    if not path.exists():
        say(f"{case}: simulating {policy}")
        stream = recorded(case.program, suite, say).stream
        path.parent.mkdir(parents=True, exist_ok=True)
        begun_s = time.process_time()
        sampling = PmuSettings(period, free=policy == UNSAMPLED)
        settings = SimulationSettings(
            tick_s=tick_s, delay_s=DELAY_S, found_s=found_s, sampling=sampling
        )
        seconds = simulate(stream, load(PRESET), pages, made(policy), settings).runtime_s
        path.write_text(json.dumps(asdict(Simulation(seconds, time.process_time() - begun_s))))
    return Simulation(**json.loads(path.read_text()))


def mean_period(trial: ComparisonTrial) -> int:
    """Return the misses per sample over a run, from which its sampling period follows."""
    return max(1, round(trial.misses / trial.samples)) if trial.samples else EXPERIMENT_PERIOD


def _sources() -> str:
    root = Path(hmd.__file__).parent
    digest = hashlib.sha256(load(PRESET).model_dump_json().encode())
    for room in _ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def oracle_seconds(
    trials: Mapping[ComparisonCase, ComparisonTrial],
    suite: Path,
    folder: Path,
    say: Callable[[str], None],
) -> dict[ComparisonCase, float]:
    """Return the oracle's runtime for each program and ratio with a first-touch trial.

    Programs that cannot be simulated have none.
    """
    found = {}
    for case, trial in sorted(trials.items(), key=lambda item: item[0]):
        if case.system == FIRST.name and can_be_simulated(case.program):
            pages = trial.fast_bytes // PAGE_BYTES
            oracle = ComparisonCase(case.program, case.ratio, ORACLE)
            found[oracle] = _seconds(case.program, pages, suite, folder, say)
    return found


def _seconds(name: str, pages: int, suite: Path, folder: Path, say: Callable[[str], None]) -> float:
    sources = Path(of_recording.__file__).read_bytes() + load(PRESET).model_dump_json().encode()
    digest = hashlib.sha256(sources).hexdigest()[:12]
    path = folder / "oracle" / f"{name}-{replay_digest(name)}-{pages}-{digest}.json"
    if not path.exists():
        say(f"{name}: the best of placements with {pages:,} pages fast")
        stream = recorded(name, suite, say).stream
        runtime = of_recording.baselines(stream, load(PRESET), pages)["oracle"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(runtime))
    return float(json.loads(path.read_text()))
