"""Summary of the learned policy's results: speeds, their intervals, and the gap that is closed.

Takes cases with seconds by policy and seed, gives what docs/results/learned.json states. A figure
is over the cases that have all that it needs.

Intervals are 95 % intervals of the bootstrap (Efron and Tibshirani, "An introduction to the
bootstrap", 1993), of two kinds. ``seeds``: the same cases with other samples. ``programs``: other
programs, too; all ratios of a program are drawn together, since they are no independent cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hmd.decide import registry
from hmd.simulate.known_misses import CLAIRVOYANT, EXACT_PAST

FIRST_TOUCH: Final = "first touch"
OURS: Final = "learned"
"""As the daemon has it, with the guard."""
UNGUARDED: Final = "learned, unguarded"
TUNED: Final = "tuned rule"
"""The better rule, tuned for the very program and ratio; of some cases."""
UNTUNED: Final = ("histogram", "benefit")
BOUNDS: Final = (CLAIRVOYANT, EXACT_PAST)

_DRAWS: Final = 2000
_ENDS: Final = (2.5, 97.5)

Case = Mapping[str, Any]
Values = npt.NDArray[np.float64]


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
        ("worst_of_unguarded_vs_none", UNGUARDED),
        ("worst_of_default_vs_none", registry.DEFAULT),
    ):
        ratios = [
            case["seconds"]["none"] / case["seconds"][name] for case in having(cases, "none", name)
        ]
        found[label] = round(min(ratios), 4) if ratios else None
    for label, name in (("gap_closed", OURS), ("gap_closed_unguarded", UNGUARDED)):
        found[label] = gap_closed(cases, name)
    return {**found, "heldout": list(cases)}


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
