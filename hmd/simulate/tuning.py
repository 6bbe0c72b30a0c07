"""Search of a policy's knobs on recorded programs: the tuned policy that others have to beat.

Takes cases and ranges, gives the best settings that were found and what they do, also on cases that
were held out and with other samples than those of the search. What is minimised is the geometric
mean of runtimes over first touch; of which fixed placement they are measured in makes no difference
to a geometric mean, but first touch tells what is lost: a case below ``WORST`` of its speed counts
against the settings (:func:`cost_of`).

The optimiser is Optuna's tree-structured Parzen estimator (Watanabe, arXiv:2304.11127), an extra.
Settings that cannot become the best any more, even if they equal the best seen of all settings on
each case to come, are given up. Equal cases, ranges and seed give equal results, however many jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hmd.extras import missing_extra
from hmd.simulate.search_space import Range
from hmd.simulate.simulation_cases import CaseRuntimes, SimulationCase, Values

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial as AskedTrial

WORST: Final = 0.97
"""The least that a policy may make of first touch's speed, on any case."""

_WORST_WEIGHT: Final = 10.0
_DRAWN_FREELY: Final = 10  # trials at most before one is drawn by what others gave, or given up


@dataclass(frozen=True, slots=True)
class TuningTrial:
    """Settings that were tried: number 0 are the defaults.

    ``logs`` are of runtimes over first touch's, of the cases that they were run on, shortest first;
    ``cost`` is None where these are not all.
    """

    number: int
    values: Values
    logs: tuple[float, ...]
    cost: float | None

    @property
    def gain(self) -> float:
        """How many times as fast as first touch these cases are, geometric mean."""
        return math.exp(-sum(self.logs) / len(self.logs))

    @property
    def worst(self) -> float:
        """How many times as fast as first touch the worst of them is."""
        return math.exp(-max(self.logs))


@dataclass(frozen=True, slots=True)
class TuningRow:
    """A case: runtimes in seconds of fixed placements by name, and under the policy.

    ``fresh`` are by default and tuned settings with samples that no trial had; None where the
    search was broken off.
    """

    case: SimulationCase
    fixed: dict[str, float]
    default_s: float
    tuned_s: float
    fresh_s: tuple[float, float] | None

    def gain(self, runtime_s: float) -> float:
        """Return how many times as fast as first touch a runtime is."""
        return self.fixed["first touch"] / runtime_s


@dataclass(frozen=True, slots=True)
class Tuned:
    """A search: its trials in order, the best of them, and its cases."""

    ranges: tuple[Range, ...]
    trials: tuple[TuningTrial, ...]
    best: TuningTrial
    rows: tuple[TuningRow, ...]
    held_out: tuple[TuningRow, ...]
    finished: bool


@dataclass(frozen=True, slots=True)
class TuningProgress:
    """Who is told how a search goes.

    ``begins``: before each trial, with its number and the best so far; ``better``: of each that is
    the best so far; ``ends``: before the last look with fresh samples and programs held out.
    """

    begins: Callable[[int, TuningTrial], None] = lambda number, best: None
    better: Callable[[TuningTrial], None] = lambda best: None
    ends: Callable[[TuningTrial], None] = lambda best: None


def cost_of(logs: Sequence[float]) -> float:
    """Return what is minimised, of logarithms of runtimes over those of first touch.

    Their mean, and ten times what the worst lies beyond ``1 / WORST``, so that no settings pay for
    a gain on one program with another's loss.
    """
    return sum(logs) / len(logs) + _WORST_WEIGHT * max(0.0, max(logs) + math.log(WORST))


def tune(
    runs: CaseRuntimes,
    cases: Sequence[SimulationCase],
    held_out: Sequence[SimulationCase],
    kept: Values,
    ranges: Sequence[Range],
    *,
    trials: int,
    seed: int,
    fresh_seed: int,
    watch: TuningProgress | None = None,
) -> Tuned:
    """Search; a KeyboardInterrupt after the defaults were run ends it early.

    ``kept`` are settings that all trials have, ``fresh_seed`` the sampling's for the last look.
    Raises MissingError without Optuna.
    """
    drawn_freely = max(1, min(_DRAWN_FREELY, trials // 4))
    study = _study(seed, drawn_freely)
    watch = watch or TuningProgress()
    search = _Search(runs, cases, kept, tuple(ranges), drawn_freely, watch)
    search.start(study)
    rest: tuple[tuple[TuningRow, ...], tuple[TuningRow, ...]] | None = None
    try:
        for _ in range(trials):
            search.step(study)
        watch.ends(search.best)
        rest = search.rows(cases, fresh_seed), search.rows(held_out, fresh_seed)
    except KeyboardInterrupt:
        pass  # what is known is told
    rows, out = rest or (search.rows(cases, None), ())
    return Tuned(search.ranges, tuple(search.trials), search.best, rows, out, rest is not None)


class _Search:
    """The trials so far. Cases are run shortest first: many trials end after a few of them."""

    def __init__(
        self,
        runs: CaseRuntimes,
        cases: Sequence[SimulationCase],
        kept: Values,
        ranges: tuple[Range, ...],
        drawn_freely: int,
        watch: TuningProgress,
    ) -> None:
        self._runs, self._kept, self._watch = runs, kept, watch
        self._cases = sorted(cases, key=lambda case: len(case.stream))
        self._drawn_freely = drawn_freely
        self.ranges = ranges
        self.trials: list[TuningTrial] = []
        self._distributions = {
            name: each for one in ranges for name, each in one.distributions().items()
        }
        self._best: TuningTrial | None = None  # of those within the ranges
        self._first_touch_s: list[float] = []
        self._least = [math.inf] * len(cases)  # of all trials, logarithms by case

    @property
    def best(self) -> TuningTrial:
        """The best of all within the ranges; the defaults until there is one."""
        return self._best or self.trials[0]

    @property
    def _to_beat(self) -> float:
        return math.inf if self._best is None or self._best.cost is None else self._best.cost

    def start(self, study: Study) -> None:
        """Run the defaults; the search starts from them where they lie in its ranges."""
        from optuna.trial import create_trial

        self._first_touch_s = [self._runs.fixed(case)["first touch"] for case in self._cases]
        values = {each.knob.name: each.knob.default for each in self.ranges}
        default = self._run(values)
        self.trials.append(default)
        drawn: dict[str, Any] = {}
        for each in self.ranges:
            params = each.drawn(each.knob.default)
            if params is None:
                return
            drawn |= params
        self._best = default
        study.add_trial(
            create_trial(params=drawn, distributions=self._distributions, value=default.cost)
        )

    def step(self, study: Study) -> None:
        """Try what the sampler draws next."""
        from optuna.trial import TrialState

        self._watch.begins(len(self.trials), self.best)
        asked = study.ask(self._distributions)
        trial = self._run({each.knob.name: each.value(asked.params) for each in self.ranges}, asked)
        self.trials.append(trial)
        if trial.cost is None:
            study.tell(asked, state=TrialState.PRUNED)
            return
        study.tell(asked, trial.cost)
        if trial.cost < self._to_beat:
            self._best = trial
            self._watch.better(trial)

    def rows(
        self, cases: Sequence[SimulationCase], fresh_seed: int | None
    ) -> tuple[TuningRow, ...]:
        """Return what came of cases by the defaults and the best."""
        return tuple(self._row(case, fresh_seed) for case in cases)

    def _row(self, case: SimulationCase, fresh_seed: int | None) -> TuningRow:
        default, best = self.trials[0].values, self.best.values

        def both(seed: int | None) -> tuple[float, float]:
            [before], [after] = (
                list(self._runs.runtimes([case], values, seed)) for values in (default, best)
            )
            return before, after

        fresh = None if fresh_seed is None else both(fresh_seed)
        return TuningRow(case, self._runs.fixed(case), *both(None), fresh)

    def _run(self, values: Values, asked: AskedTrial | None = None) -> TuningTrial:
        """Run the cases with these settings, for as long as they can become the best."""
        number, values = len(self.trials), {**self._kept, **values}
        logs: list[float] = []
        with closing(self._runs.runtimes(self._cases, values)) as runtimes:
            for step, runtime_s in enumerate(runtimes):
                logs.append(math.log(runtime_s / self._first_touch_s[step]))
                self._least[step] = min(self._least[step], logs[step])
                # The cost if each case to come equals the best that was ever seen of it.
                at_best = cost_of([*logs, *self._least[step + 1 :]])
                if asked is not None:
                    asked.report(at_best, step)
                last = step + 1 == len(self._cases)
                if number > self._drawn_freely and not last and at_best >= self._to_beat:
                    return TuningTrial(number, values, tuple(logs), None)
        return TuningTrial(number, values, tuple(logs), cost_of(logs))


def _study(seed: int, drawn_freely: int) -> Study:
    try:
        import optuna
    except ImportError:
        raise missing_extra("the search", "Optuna", "tune") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        sampler=optuna.samplers.TPESampler(
            seed=seed, multivariate=True, n_startup_trials=drawn_freely
        )
    )
