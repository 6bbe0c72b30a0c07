# SPDX-License-Identifier: MIT
"""Runs of policies on programs held out, each kept in a journal by what it depends on.

Takes a case and a policy's label; gives seconds and MiB moved. A key is the recording, the machine,
the ratio, the settings, the seed, the weights, and the code that the policy runs, so that a change
elsewhere repeats nothing. A run takes 0.2 µs of CPU per miss; the two bounds, twelve runs, twelve
times as long.

Summary of the learned policy's results: speeds, their intervals, and the gap that is closed.

Takes cases with seconds by policy and seed, gives what docs/results/learned.json states. A figure
is over the cases that have all that it needs.

Intervals are 95 % intervals of the bootstrap (Efron and Tibshirani, "An introduction to the
bootstrap", 1993), of two kinds. ``seeds``: the same cases with other samples. ``programs``: other
programs, too; all ratios of a program are drawn together, since they are no independent cases.

Rules tuned for one program and one ratio: the strongest baseline of the learned policy.

Takes a recording and a machine; gives the rule and the settings that are fastest there, of
``TRIALS`` of each rule's (:mod:`hmd.simulate.tuning`). The samples of trials have a seed of their
own, so that results are with other samples. Takes as many simulations; each is kept in the journal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import geometric_mean
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bench.compare.bounds import PROGRAMS, SETTINGS, fast_pages
from bench.compare.comparison_case import RATIOS
from bench.compare.policies import SUITE
from bench.known_misses import CLAIRVOYANT, EXACT_PAST, bounds
from bench.learned_policy.networks import HeldOutNetworks, charged
from bench.source_closure import closure_digest
from bench.suite.ground_truth import recorded, replay_digest
from hmd.base.errors import UsageError
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.misses import MissStream
from hmd.learn.rows import HEADROOM_BYTES, MissValues
from hmd.learn.training import make_policy
from hmd.policy import registry
from hmd.policy.plan import Policy
from hmd.simulate.cases import CaseRuntimes, SimulationCase
from hmd.simulate.executors import Journal, digest
from hmd.simulate.simulation import simulate
from hmd.simulate.tuning import TuningProgress, TuningTrial, documented, tune

FIRST_TOUCH, NONE = "first touch", "none"
OURS: Final = "learned"
TUNED: Final = "tuned rule"
"""The better rule, tuned for the very program and ratio; of some cases."""
UNTUNED: Final = ("histogram", "benefit")
BOUNDS: Final = (CLAIRVOYANT, EXACT_PAST)

_DRAWS: Final = 2000
_ENDS: Final = (2.5, 97.5)

Case = Mapping[str, Any]
Values = npt.NDArray[np.float64]

TRIALS: Final = 24
"""Settings that are tried of each rule, in addition to the defaults."""

TUNED_CASES: Final = (
    ("betweenness", "1:2"), ("cg", "1:8"), ("index", "1:2"), ("pagerank", "1:2"), ("phases", "1:8"),
    ("updates_moving", "1:16"),
)  # fmt: skip
"""Program and ratio of the cases that are tuned unless others are named."""

_SEED: Final = 1000
LEARNED: Final = "learned"

POLICIES: Final = (
    FIRST_TOUCH, NONE, "histogram", registry.DEFAULT, LEARNED, *BOUNDS, TUNED,
)  # fmt: skip
"""Labels of the runs of each case; first touch runs without a daemon."""

_ONCE: Final = (FIRST_TOUCH, NONE, *BOUNDS)  # no decision of theirs depends on samples
_BOUND_RUNS: Final = 6.5
_SIMULATOR: Final = ("hmd.simulate.simulation",)
_RULE: Final = (*_SIMULATOR, f"hmd.policy.builtin.{registry.DEFAULT}")

_MODULES: Final = {
    FIRST_TOUCH: _SIMULATOR,
    NONE: _SIMULATOR,
    "histogram": (*_SIMULATOR, "hmd.policy.builtin.histogram"),
    registry.DEFAULT: _RULE,
    LEARNED: (*_SIMULATOR, "hmd.policy.builtin.learned"),
    CLAIRVOYANT: ("bench.known_misses",),
    EXACT_PAST: ("bench.known_misses",),
    TUNED: (*_RULE, "hmd.policy.builtin.histogram", "bench.learned_policy.runs"),
}


def summary(cases: Sequence[Case]) -> dict[str, Any]:
    """Return the file's content: the cases, and means of speeds over them."""
    names = labels(cases)
    found: dict[str, Any] = {
        "command": "python -m bench.learned_policy.held_out",
        "seeds": max((len(s) for case in cases for s in case["by_seed"].values()), default=0),
        "seeds_of": {
            name: min(len(case["by_seed"][name]) for case in cases if name in case["by_seed"])
            for name in names
        },
        "programs": len({case["program"] for case in cases}),
        "cases": {name: len(having(cases, FIRST_TOUCH, name)) for name in names},
        "geomean": mean_speeds(cases),
        "interval": {name: intervals(cases, name) for name in names},
        "geomean_vs_rule": _mean(
            case["seconds"][registry.DEFAULT] / case["seconds"][OURS]
            for case in having(cases, registry.DEFAULT, OURS)
        ),
        "geomean_vs_best_untuned": _mean(
            min(case["seconds"][rule] for rule in UNTUNED) / case["seconds"][OURS]
            for case in having(cases, *UNTUNED, OURS)
        ),
    }
    found["geomean_vs_tuned"] = _mean(
        case["seconds"][TUNED] / case["seconds"][OURS] for case in having(cases, TUNED, OURS)
    )
    for label, name in (
        ("worst_vs_none", OURS),
        ("worst_of_default_vs_none", registry.DEFAULT),
    ):
        ratios = [
            case["seconds"]["none"] / case["seconds"][name] for case in having(cases, "none", name)
        ]
        found[label] = round(min(ratios), 4) if ratios else None
    return {**found, "gap_closed": gap_closed(cases, OURS), "heldout": list(cases)}


def labels(cases: Sequence[Case]) -> list[str]:
    """Return the policies that cases have, in their order, without first touch."""
    every = dict.fromkeys(name for case in cases for name in case["seconds"])
    return [name for name in every if name != FIRST_TOUCH]


def _common(cases: Sequence[Case]) -> list[str]:
    """Return the policies that means are over; a bound only where it is known of their cases."""
    every = [name for name in labels(cases) if name != TUNED]
    policies = [name for name in every if name not in BOUNDS]
    whole = having(cases, FIRST_TOUCH, *policies)
    return [name for name in every if name in policies or len(having(whole, name)) == len(whole)]


def having(cases: Sequence[Case], *names: str) -> list[Case]:
    """Return the cases that have all of these policies."""
    return [case for case in cases if all(name in case["seconds"] for name in names)]


def mean_speeds(cases: Sequence[Case]) -> dict[str, float | None]:
    """Return the geometric mean of each policy's speeds relative to first touch.

    Over the cases that have every policy, so that means compare; None where no case has. Tuned
    rules, which few cases have, are compared in these alone, and so is a bound as long as it is
    not known of all these cases.
    """
    names = _common(cases)
    whole = having(cases, FIRST_TOUCH, *names)
    return {
        name: _mean(case["seconds"][FIRST_TOUCH] / case["seconds"][name] for case in whole)
        for name in names
    }


def intervals(cases: Sequence[Case], name: str) -> dict[str, list[float]] | None:
    """Return the intervals of a policy's mean speed, lower and upper end by kind; None of no case.

    Of the cases that :func:`mean_speeds` is over.
    """
    whole = having(cases, FIRST_TOUCH, *_common(cases), name)
    if not whole:
        return None
    random = np.random.default_rng(1)
    logs = [
        np.log(case["seconds"][FIRST_TOUCH] / np.array(case["by_seed"][name])) for case in whole
    ]
    by_program: dict[str, list[int]] = {}
    for number, case in enumerate(whole):
        by_program.setdefault(case["program"], []).append(number)
    programs = list(by_program.values())
    drawn: dict[str, list[float]] = {"seeds": [], "programs": []}
    for _ in range(_DRAWS):
        # A case is the mean over as many seeds as it has.
        each = np.array([_resampled(of, random).mean() for of in logs])
        drawn["seeds"].append(float(each.mean()))
        chosen = random.integers(len(programs), size=len(programs))
        several = np.concatenate([each[programs[number]] for number in chosen])
        drawn["programs"].append(float(several.mean()))
    return {
        kind: [round(float(end), 4) for end in np.exp(np.percentile(means, _ENDS))]
        for kind, means in drawn.items()
    }


def gap_closed(cases: Sequence[Case], name: str = OURS) -> float | None:
    """Return the share of the gap from the best rule to ``clairvoyant`` that a policy closes.

    The rule is the one with the higher mean speed. Over the cases that have all, in geometric means
    of speeds relative to first touch; None without such cases.
    """
    times = [case["seconds"] for case in having(cases, FIRST_TOUCH, *UNTUNED, CLAIRVOYANT, name)]
    if not times:
        return None
    low = max(geometric_mean(s[FIRST_TOUCH] / s[rule] for s in times) for rule in UNTUNED)
    here = geometric_mean(s[FIRST_TOUCH] / s[name] for s in times)
    high = geometric_mean(s[FIRST_TOUCH] / s[CLAIRVOYANT] for s in times)
    return round((here - low) / (high - low), 4)


def _resampled(values: Values, random: np.random.Generator) -> Values:
    drawn: Values = values[random.integers(len(values), size=len(values))]
    return drawn


def _mean(ratios: Any) -> float | None:
    every = list(ratios)
    return round(geometric_mean(every), 4) if every else None


@dataclass(frozen=True, slots=True)
class TunedRule:
    """The fastest rule, and its settings without those of the simulated machine's headroom."""

    policy: str
    values: dict[str, Any]


def tuned_rule(
    stream: MissStream,
    preset: Preset,
    fast_pages: int,
    journal: Journal,
    say: Callable[[str], None],
    trials: int = TRIALS,
) -> TunedRule:
    """Return the best of all trials of both rules; MissingError without Optuna."""
    settings = charged(_SEED)
    case = SimulationCase("program", str(fast_pages), fast_pages, stream)
    found: list[tuple[float, TunedRule]] = []
    for name in UNTUNED:
        about = registry.info(name)
        headroom = {"headroom": 0.0, "headroom_min": HEADROOM_BYTES}
        ranges = [
            each for each in documented(about, settings.tick_s) if each.setting.name not in headroom
        ]
        progress = TuningProgress(begins=partial(_tell, say, name))
        with CaseRuntimes(name, preset, settings, journal=journal) as runs:
            tuned = tune(
                runs, [case], [], headroom, ranges,
                trials=trials, seed=_SEED, fresh_seed=_SEED + 1, watch=progress,
            )  # fmt: skip
        best = tuned.best
        values = {key: each for key, each in best.values.items() if key not in headroom}
        found.append((sum(best.logs), TunedRule(name, values)))
    return min(found, key=lambda each: each[0])[1]


def _tell(say: Callable[[str], None], rule: str, number: int, best: TuningTrial) -> None:
    say(f"tuning {rule}: trial {number} of {TRIALS}, the best so far is {best.gain:.3f}")


@dataclass(frozen=True, slots=True, order=True)
class HeldOutRun:
    """A run to make: a case, the label of a policy, and the seed of its samples."""

    seed: int
    program: str
    ratio: str
    policy: str

    def __str__(self) -> str:
        """Return what progress shows."""
        return f"{self.program} {self.ratio} {self.policy}, seed {self.seed}"

    @property
    def weight(self) -> float:
        """How many simulations it takes."""
        if self.policy == TUNED and self.seed == 1:
            return 2.0 * TRIALS + 1.0
        return _BOUND_RUNS if self.policy in BOUNDS else 1.0


def runs_of(
    given: str,
    seeds: int,
    policies: tuple[str, ...] = POLICIES,
    programs: tuple[str, ...] = PROGRAMS,
    ratios: tuple[str, ...] = RATIOS,
) -> list[HeldOutRun]:
    """Return the runs of ``PROGRAM:RATIO:POLICY,...``, all of them if empty.

    ``POLICY`` is a label with hyphens, such as ``tuned-rule``; without it, all policies, and
    without ``RATIO``, all ratios. Tuned rules are only of the cases of
    :mod:`bench.learned_policy.runs`, or by name. All cases have their first seed before any
    has the next.
    """
    short = {label.replace(",", "").replace(" ", "-"): label for label in policies}
    chosen: list[tuple[str, str, str]] = []
    for each in given.split(",") if given else programs:
        program, _, rest = each.partition(":")
        ratio = next((r for r in ratios if rest == r or rest.startswith(f"{r}:")), "")
        policy = rest.removeprefix(ratio).removeprefix(":")
        if program not in programs or (rest and not ratio) or (policy and policy not in short):
            raise UsageError(
                f"{each!r} is no case: write PROGRAM:RATIO:POLICY, with a program of"
                f" {', '.join(programs)}, a ratio of {', '.join(ratios)}, and a policy of"
                f" {', '.join(short)}"
            )
        chosen += [
            (program, r, label)
            for r in ([ratio] if ratio else ratios)
            for label in ([short[policy]] if policy else policies)
            if policy or label != TUNED or (program, r) in TUNED_CASES
        ]
    runs = [
        HeldOutRun(seed, *case)
        for seed in range(1, seeds + 1)
        for case in dict.fromkeys(chosen)
        if seed == 1 or case[2] not in _ONCE
    ]
    return sorted(runs, key=lambda run: (run.seed, programs.index(run.program)))


@cache
def _recording_digest(program: str) -> str:
    """Return what a program's replay depends on; it is the same while a command runs."""
    return replay_digest(program)


class HeldOutRuns:
    """Makes runs on one machine, or returns them from the journal."""

    def __init__(
        self,
        preset: Preset,
        networks: HeldOutNetworks,
        journal: Journal,
        say: Callable[[str], None],
    ) -> None:
        self._preset, self._networks, self._journal, self._say = preset, networks, journal, say
        self._stream: tuple[str, MissStream] | None = None
        self._values: MissValues | None = None

    def known(self, run: HeldOutRun) -> Mapping[str, Any] | None:
        """Return the result of a run: ``seconds`` and ``moved_mib``; None if it is to be made."""
        key = self._key(run)
        found: Mapping[str, Any] | None = None if key is None else self._journal.get(key)
        return found

    def make(self, run: HeldOutRun) -> Mapping[str, Any]:
        """Return the result of a run; makes it if it is not known."""
        found = self.known(run)
        if found is not None:
            return found
        stream = self._recording(run.program)
        pages = fast_pages(stream, run.ratio)
        if run.policy in BOUNDS:
            self._values = self._values or MissValues(stream, self._preset)
            known = bounds(stream, self._preset, pages, SETTINGS, self._values)
            made = {replace(run, policy=name): bound.run for name, bound in known.items()}
        else:
            settings = charged(run.seed, free=run.policy == FIRST_TOUCH)
            policy = self._policy(run, stream)
            made = {run: simulate(stream, self._preset, pages, policy, settings)}
        for each, done in made.items():
            key = self._key(each)
            assert key is not None
            result = {"seconds": done.runtime_s, "moved_mib": done.moved_bytes / (1 << 20)}
            self._journal.put(key, result)
        return self.make(run)

    def _recording(self, program: str) -> MissStream:
        if self._stream is None or self._stream[0] != program:
            self._stream = self._values = None  # one at a time: they are large
            self._stream = program, recorded(program, SUITE, self._say).stream
        return self._stream[1]

    def _policy(self, run: HeldOutRun, stream: MissStream) -> Policy:
        """Return the policy of a run, the learned one with a network that has not seen it."""
        if run.policy in (FIRST_TOUCH, NONE):
            return registry.create(NONE)
        if run.policy == LEARNED:
            weights = str(self._networks.network(run.program))
            headroom = {"headroom": 0.0, "headroom_min": HEADROOM_BYTES}
            given = {**headroom, "weights": weights}
            return registry.create(LEARNED, given)
        if run.policy == TUNED:
            found = self._tuned(run, stream)
            return make_policy(found.policy, **found.values)
        return make_policy(run.policy)

    def _tuned(self, run: HeldOutRun, stream: MissStream) -> TunedRule:
        """Return the rule that is the best for a case, the same for all seeds."""
        pages = fast_pages(stream, run.ratio)
        return tuned_rule(stream, self._preset, pages, self._journal, self._say)

    def _key(self, run: HeldOutRun) -> str | None:
        """Return what a run depends on; None where its network is still to be fitted."""
        weights = b""
        if run.policy == LEARNED:
            path = self._networks.path(run.program)
            if not path.exists():
                return None
            weights = path.read_bytes()
        return digest(
            closure_digest(*_MODULES[run.policy]),
            _recording_digest(run.program),
            self._preset.model_dump_json(),
            charged(run.seed, free=run.policy == FIRST_TOUCH),
            hashlib.sha256(weights).hexdigest(),
            (run.policy, run.ratio),
        )
