"""Summary of the learned policy's results: speeds, their intervals, and the gap that is closed.

Takes cases with seconds by policy and seed, gives what docs/results/learned.json states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean, stdev
from typing import Any, Final

from hmd.decide import registry

OURS: Final = "learned"
"""As the daemon has it, with the guard."""
UNGUARDED: Final = "learned, unguarded"
UNTUNED: Final = ("histogram", "benefit")

# Of Student's distribution at 95 %, by degrees of freedom from 1; beyond, as for a normal one.
_STUDENT: Final = (12.7, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
_NORMAL: Final = 1.96

Case = Mapping[str, Any]


def summary(cases: Sequence[Case], bounds: Sequence[Case]) -> dict[str, Any]:
    """Return the file's content: the cases, and means of speeds over them."""
    times = [case["seconds"] for case in cases]
    best = [min(each[name] for name in UNTUNED if name in each) for each in times]
    found: dict[str, Any] = {
        "command": "python -m bench.learned",
        "seeds": max(len(case.get("by_seed", {}).get("none", (0,))) for case in cases),
        "programs": len({case["program"] for case in cases}),
        "geomean": mean_speeds(cases),
        "interval": {
            name: interval
            for name in times[0]
            if name != "first touch" and (interval := speed_interval(cases, name))
        },
        "geomean_vs_rule": _mean(each[registry.DEFAULT] / each[OURS] for each in times),
        "geomean_vs_best_untuned": _mean(
            least / each[OURS] for least, each in zip(best, times, strict=True)
        ),
    }
    for label, name in (
        ("worst_vs_none", OURS),
        ("worst_of_unguarded_vs_none", UNGUARDED),
        ("worst_of_default_vs_none", registry.DEFAULT),
    ):
        found[label] = round(min(each["none"] / each[name] for each in times), 4)
    return {**found, "gap_closed": gap_closed(cases, bounds), "heldout": list(cases)}


def mean_speeds(cases: Sequence[Case]) -> dict[str, float]:
    """Return the geometric mean of each policy's speeds relative to first touch."""
    times = [case["seconds"] for case in cases]
    return {
        name: _mean(each["first touch"] / each[name] for each in times)
        for name in times[0]
        if name != "first touch"
    }


def speed_interval(cases: Sequence[Case], name: str) -> list[float] | None:
    """Return the 95 % confidence interval of a policy's mean speed over seeds; None of one seed."""
    seeds = min(len(case.get("by_seed", {}).get(name, ())) for case in cases)
    if seeds < 2:
        return None
    means = [
        geometric_mean(
            case["seconds"]["first touch"] / case["by_seed"][name][seed] for case in cases
        )
        for seed in range(seeds)
    ]
    factor = _STUDENT[seeds - 2] if seeds - 2 < len(_STUDENT) else _NORMAL
    half, middle = factor * stdev(means) / seeds**0.5, sum(means) / seeds
    return [round(middle - half, 4), round(middle + half, 4)]


def gap_closed(cases: Sequence[Case], bounds: Sequence[Case]) -> float | None:
    """Return the share of the gap from the best rule to ``clairvoyant`` that is closed.

    The rule is the one with the higher mean speed. Over the cases that the bounds have too, in
    geometric means of speeds relative to first touch; None without such cases.
    """
    known = {(case["program"], case["ratio"]): case["seconds"] for case in bounds}
    both = [
        (case["seconds"], bound)
        for case in cases
        if (bound := known.get((case["program"], case["ratio"]))) is not None
    ]
    if not both:
        return None
    rules = [name for name in UNTUNED if name in both[0][0]]
    low = max(geometric_mean(s["first touch"] / s[rule] for s, _ in both) for rule in rules)
    here = geometric_mean(s["first touch"] / s[OURS] for s, _ in both)
    high = geometric_mean(bound["first touch"] / bound["clairvoyant"] for _, bound in both)
    return round((here - low) / (high - low), 4)


def _mean(ratios: Any) -> float:
    return round(geometric_mean(ratios), 4)
