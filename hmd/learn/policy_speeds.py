"""Speeds of policies on recorded programs, relative to first touch.

Takes recordings, shares of fast memory and policies; gives runtimes by the exact timing model, with
samples at their cost. First touch runs without a daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean

from hmd.decide.plan import Policy
from hmd.emulate.preset import load
from hmd.learn.train_settings import TrainingPlan
from hmd.simulate.simulation import simulate
from hmd.simulate.simulation_cases import read_program

FIRST_TOUCH = "first touch"


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """A program with a share of fast memory: seconds by policy, and whether it was held out."""

    program: str
    fast: float
    held_out: bool
    seconds: dict[str, float]

    def times(self, name: str) -> float:
        """Return a policy's speed relative to first touch."""
        return self.seconds[FIRST_TOUCH] / self.seconds[name]


def policy_speeds(
    plan: TrainingPlan,
    policies: Mapping[str, Callable[[], Policy]],
    say: Callable[[str], None] | None = None,
) -> list[SpeedRow]:
    """Return a row for each recording and share of fast memory."""
    say, settings = say or (lambda _: None), plan.settings
    preset, found = load(settings.preset), []
    made = settings.simulation(settings.periods[0], settings.seed)
    free = replace(made, sampling=replace(made.sampling, free=True))
    for name, path in plan.recordings.items():
        stream = read_program(path)
        for fast in settings.fast:
            pages = max(round(fast * stream.user_pages), 1)
            seconds = {}
            for label, make in policies.items():
                say(f"{name}, {fast:.0%} fast: {label}")
                charged = free if label == FIRST_TOUCH else made
                seconds[label] = simulate(stream, preset, pages, make(), charged).runtime_s
            found.append(SpeedRow(name, fast, name in settings.held_out, seconds))
    return found


def mean_speed(rows: Sequence[SpeedRow], name: str) -> float:
    """Return the geometric mean of a policy's speeds relative to first touch."""
    return geometric_mean(row.times(name) for row in rows)
