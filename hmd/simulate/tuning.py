# SPDX-License-Identifier: MIT
"""Tuning: a search of a policy's settings on recorded programs.

Takes cases and ranges; gives the best settings found and their runtimes, also on cases held out
from the search and with other samples. The search minimises the geometric mean of runtimes relative
to first touch, with a penalty for cases slower than ``WORST`` of first touch's speed
(:func:`cost_of`). Values are rounded as the configuration writes them.

The optimiser is Optuna's tree-structured Parzen estimator (Watanabe, arXiv:2304.11127), an extra. A
trial ends early once it cannot become the best, even with the best runtime seen on each remaining
case. Equal cases, ranges and seed give equal results, for any number of jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hmd.base.errors import ConfigError, UsageError, missing_extra
from hmd.policy.settings import AUTO, FILE, SECONDS, PolicyInfo, Setting, Value
from hmd.simulate.cases import CaseRuntimes, SimulationCase, Values

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import Trial as AskedTrial

_DIGITS = 3  # significant ones of a value: a search is no more precise
_IS_AUTO = " is auto"  # appended to a setting's name: the name of the choice of ``auto``

WORST: Final = 0.97
"""Least speed relative to first touch that a case may have without a penalty."""

_WORST_WEIGHT: Final = 10.0

_DRAWN_FREELY: Final = (
    10  # trials at most before the optimiser draws by results, and trials may end early
)


@dataclass(frozen=True, slots=True)
class Range:
    """Values of a setting from ``low`` to ``high`` in its base unit, with ``auto`` or without."""

    setting: Setting
    low: float
    high: float
    log: bool
    auto: bool

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return the distributions to draw from, by name."""
        from optuna.distributions import (
            CategoricalDistribution,
            FloatDistribution,
            IntDistribution,
        )

        drawn: dict[str, BaseDistribution] = {
            self.setting.name: IntDistribution(int(self.low), int(self.high), log=self.log)
            if self.setting.is_whole
            else FloatDistribution(self.low, self.high, log=self.log)
        }
        if self.auto:
            drawn[self.setting.name + _IS_AUTO] = CategoricalDistribution([True, False])
        return drawn

    def value(self, drawn: Mapping[str, Any]) -> Value:
        """Return the setting's value for drawn numbers."""
        if drawn.get(self.setting.name + _IS_AUTO):
            return None
        number = drawn[self.setting.name]
        if not self.setting.is_whole:
            number = min(max(float(f"{number:.{_DIGITS}g}"), self.low), self.high)
        return self.setting.parse(self.setting.format(number))

    def drawn(self, value: Value) -> dict[str, Any] | None:
        """Return the drawn numbers that give a value; None where it is not in the range."""
        name = self.setting.name
        if value is None:
            middle = (self.low * self.high) ** 0.5 if self.log else (self.low + self.high) / 2
            number = round(middle) if self.setting.is_whole else middle
            return {name: number, name + _IS_AUTO: True} if self.auto else None
        if isinstance(value, str) or not self.low <= value <= self.high:
            return None
        return {name: value} | ({name + _IS_AUTO: False} if self.auto else {})

    @property
    def span(self) -> str:
        """The range with its units, such as ``20ms to 2s or auto``."""
        low, high = (self.setting.format(end) for end in (self.low, self.high))
        return f"{low} to {high}" + (f" or {AUTO}" if self.auto else "")


def documented(policy: PolicyInfo, tick_s: float) -> tuple[Range, ...]:
    """Return the ranges of all settings that define one; durations are in ticks of ``tick_s``."""
    return tuple(_documented(each, tick_s) for each in policy.settings if each.search is not None)


def chosen(policy: PolicyInfo, texts: Sequence[str], tick_s: float) -> tuple[Range, ...]:
    """Return ranges by ``KEY`` or ``KEY=LOW:HIGH``, in the setting's unit, or raise UsageError."""
    settings = {each.name: each for each in policy.settings}
    found: dict[str, Range] = {}
    for text in texts:
        key, equals, span = text.partition("=")
        if key not in settings:
            known = ", ".join(settings) or "none"
            raise UsageError(
                f"--knob {text}: policy {policy.name} has no knob {key!r}, but {known}"
            )
        found[key] = _given(settings[key], span) if equals else _documented(settings[key], tick_s)
    return tuple(found.values())


def _documented(setting: Setting, tick_s: float) -> Range:
    search, name = setting.search, setting.name
    if search is None:
        raise UsageError(f"--knob {name}: it has no range of its own: {name}=LOW:HIGH")
    unit = tick_s if setting.unit.name == SECONDS.name else 1.0
    return Range(setting, search.low * unit, search.high * unit, search.log, setting.unit.auto)


def _given(setting: Setting, span: str) -> Range:
    name = setting.name
    low_text, colon, high_text = span.partition(":")
    if setting.unit.name == FILE.name:
        raise UsageError(f"--knob {name}: files are no range: --set {name}=FILE")
    if not colon:
        raise UsageError(f"--knob {name}={span}: write LOW:HIGH (one value: --set)")
    try:
        low, high = setting.parse(low_text), setting.parse(high_text)
    except ConfigError as error:
        raise UsageError(f"--knob {error}") from None
    if low is None or high is None:
        raise UsageError(f"--knob {name}={span}: auto is no end of a range")
    assert not isinstance(low, str) and not isinstance(high, str)
    if low >= high:
        raise UsageError(f"--knob {name}={span}: the first must be less than the second")
    log = setting.search is not None and setting.search.log and low > 0
    return Range(setting, low, high, log, auto=False)


@dataclass(frozen=True, slots=True)
class TuningTrial:
    """A trial of settings; number 0 has the defaults.

    ``logs`` are logarithms of runtimes relative to first touch, of the cases that were run,
    shortest first; ``cost`` is None where the trial ended early.
    """

    number: int
    values: Values
    logs: tuple[float, ...]
    cost: float | None

    @property
    def gain(self) -> float:
        """Speed relative to first touch: geometric mean of these cases."""
        return math.exp(-sum(self.logs) / len(self.logs))

    @property
    def worst(self) -> float:
        """Speed relative to first touch of the worst case."""
        return math.exp(-max(self.logs))


@dataclass(frozen=True, slots=True)
class TuningRow:
    """A case: runtimes in seconds of fixed placements by name, and under the policy.

    ``fresh_s`` are the runtimes by default and tuned settings with samples that no trial had; None
    where the search was interrupted.
    """

    case: SimulationCase
    fixed: dict[str, float]
    default_s: float
    tuned_s: float
    fresh_s: tuple[float, float] | None

    def gain(self, runtime_s: float) -> float:
        """Return the speed of a runtime relative to first touch."""
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
    """Callbacks before each trial, after a better one, and before the final runs."""

    begins: Callable[[int, TuningTrial], None] = lambda number, best: None
    better: Callable[[TuningTrial], None] = lambda best: None
    ends: Callable[[TuningTrial], None] = lambda best: None


def cost_of(logs: Sequence[float]) -> float:
    """Return the cost to minimise, of logarithms of runtimes relative to first touch.

    It is their mean, plus ten times the excess of the worst over ``1 / WORST``, so that a gain on
    one program does not outweigh another's loss.
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
    """Search; a KeyboardInterrupt after the trial of the defaults ends it early.

    ``kept`` are settings that all trials have; ``fresh_seed`` is the seed of sampling in the final
    runs. Raises MissingError without Optuna.
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
        pass  # the result so far is returned
    rows, out = rest or (search.rows(cases, None), ())
    return Tuned(search.ranges, tuple(search.trials), search.best, rows, out, rest is not None)


class _Search:
    """The trials so far. Cases run shortest first, since many trials end after a few of them."""

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
        """The best trial within the ranges; the defaults before the first."""
        return self._best or self.trials[0]

    @property
    def _to_beat(self) -> float:
        return math.inf if self._best is None or self._best.cost is None else self._best.cost

    def start(self, study: Study) -> None:
        """Run the defaults; the search starts from them where they are in its ranges."""
        from optuna.trial import create_trial

        self._first_touch_s = [self._runs.fixed(case)["first touch"] for case in self._cases]
        values = {each.setting.name: each.setting.default for each in self.ranges}
        default = self._run(values)
        self.trials.append(default)
        drawn: dict[str, Any] = {}
        for each in self.ranges:
            params = each.drawn(each.setting.default)
            if params is None:
                return
            drawn |= params
        self._best = default
        study.add_trial(
            create_trial(params=drawn, distributions=self._distributions, value=default.cost)
        )

    def step(self, study: Study) -> None:
        """Run the next trial that the optimiser draws."""
        from optuna.trial import TrialState

        self._watch.begins(len(self.trials), self.best)
        asked = study.ask(self._distributions)
        values = {each.setting.name: each.value(asked.params) for each in self.ranges}
        trial = self._run(values, asked)
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
        """Return the rows of cases: runtimes by the defaults and by the best settings."""
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
        """Run the cases with these settings, as long as they can become the best."""
        number, values = len(self.trials), {**self._kept, **values}
        logs: list[float] = []
        with closing(self._runs.runtimes(self._cases, values)) as runtimes:
            for step, runtime_s in enumerate(runtimes):
                logs.append(math.log(runtime_s / self._first_touch_s[step]))
                self._least[step] = min(self._least[step], logs[step])
                # The cost if each remaining case equals its best runtime of all trials.
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
