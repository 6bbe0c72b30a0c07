"""Summary figures of the cases: hmd versus its peers, first touch and the static oracle.

All are ratios of runtimes, theirs over hmd's, so that hmd is faster above 1. Means are geometric,
over programs and ratios; by modelled time and by the guest's clock. A missing case drops out of
the figures that need it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.compare.comparison_case import RATIOS, WHOLE, ComparisonCase
from bench.compare.comparison_trial import ComparisonTrial
from bench.compare.systems import ALL_FAST, FIRST, KERNEL, KERNEL_DEFAULTS, PEERS

Seconds = Mapping[ComparisonCase, float]

MODELLED, GUEST = "modelled_seconds", "guest_seconds"


def seconds(
    trials: Mapping[ComparisonCase, ComparisonTrial], clock: str
) -> dict[ComparisonCase, float]:
    """Return the runtime of each case by a clock, ``MODELLED`` or ``GUEST``."""
    return {case: float(getattr(trial, clock)) for case, trial in trials.items()}


def over_best(
    found: Seconds, ours: str, peers: Sequence[str] = PEERS
) -> dict[ComparisonCase, float]:
    """Return the best peer's runtime over ours, for each of our cases."""
    return {
        case: min(theirs) / took
        for case, took in _of(found, ours)
        if (theirs := _runtimes_of(found, case, peers))
    }


def over_whole(
    found: Seconds, ours: str, whole: str = ALL_FAST.name
) -> dict[ComparisonCase, float]:
    """Return the runtime on nodes of unlimited size over ours."""
    unlimited = {case.program: took for case, took in found.items() if case.system == whole}
    return {
        c: unlimited[c.program] / took for c, took in _of(found, ours) if c.program in unlimited
    }


def over_oracle(found: Seconds, ours: str, oracle: Seconds) -> dict[ComparisonCase, float]:
    """Return the oracle's runtime over ours; the system in the keys of ``oracle`` is ignored."""
    known = {(case.program, case.ratio): took for case, took in oracle.items()}
    return {
        case: known[case.program, case.ratio] / took
        for case, took in _of(found, ours)
        if (case.program, case.ratio) in known
    }


def moved_over_kernel(trials: Mapping[ComparisonCase, ComparisonTrial], ours: str) -> float | None:
    """Return migrated bytes per second, ours over those of kernel tiering, over all cases."""
    rates = []
    for name in (ours, KERNEL.name):
        of = [trial for case, trial in trials.items() if case.system == name]
        took = sum(trial.modelled_seconds for trial in of)
        rates.append(sum(trial.migrated_bytes for trial in of) / took if took else 0.0)
    return rates[0] / rates[1] if rates[1] else None


def geomean(values: Iterable[float]) -> float | None:
    """Return the geometric mean; None without values."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def worst(values: Iterable[float]) -> float | None:
    """Return the minimum; None without values."""
    return min(values, default=None)


def by_class(found: Seconds, classes: Mapping[str, str]) -> dict[str, dict[ComparisonCase, float]]:
    """Return the runtimes of each class of programs; ``classes`` has the class of each program."""
    return {
        name: {case: took for case, took in found.items() if classes[case.program] == name}
        for name in sorted({classes[case.program] for case in found})
    }


def by_ratio(found: Seconds) -> dict[str, dict[ComparisonCase, float]]:
    """Return the runtimes at each ratio of fast to slow memory, and on nodes of unlimited size."""
    whole = {case: took for case, took in found.items() if case.ratio == WHOLE}
    return {
        ratio: whole | {case: took for case, took in found.items() if case.ratio == ratio}
        for ratio in RATIOS
        if any(case.ratio == ratio for case in found)
    }


@dataclass(frozen=True, slots=True)
class Figures:
    """Summary figures of hmd with one policy, by one clock; None where cases are missing."""

    geomean_vs_best_peer: float | None
    geomean_vs_kernel: float | None
    geomean_vs_first_touch: float | None
    worst_vs_first_touch: float | None
    geomean_vs_all_fast: float | None

    @classmethod
    def of(cls, found: Seconds, ours: str) -> Figures:
        """Return the figures of a system from the runtimes of all cases."""
        touch = over_best(found, ours, (FIRST.name,)).values()
        return cls(
            geomean(over_best(found, ours).values()),
            geomean(over_best(found, ours, (KERNEL.name, KERNEL_DEFAULTS.name)).values()),
            geomean(touch),
            worst(touch),
            geomean(over_whole(found, ours).values()),
        )


def _of(found: Seconds, system: str) -> list[tuple[ComparisonCase, float]]:
    return [(case, took) for case, took in found.items() if case.system == system]


def _runtimes_of(found: Seconds, case: ComparisonCase, systems: Sequence[str]) -> list[float]:
    others = (ComparisonCase(case.program, case.ratio, system) for system in systems)
    return [found[other] for other in others if other in found]
