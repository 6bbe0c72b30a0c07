"""Stored results of cases: the trials of each, their digest and commit; their rows in JSON.

A row has the values of the median run by modelled time, and all runs in the list ``runs``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from bench.compare.comparison_case import ComparisonCase
from bench.compare.comparison_trial import ComparisonTrial

_TRIAL = tuple(each.name for each in fields(ComparisonTrial))
_NEEDED = {each.name for each in fields(ComparisonTrial) if each.default is MISSING}


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The trials of a case, the digest of all that they depend on, and the measured commit."""

    trials: tuple[ComparisonTrial, ...]
    digest: str
    commit: str

    @property
    def trial(self) -> ComparisonTrial:
        """The median run by modelled time; of an even number, the faster of the two."""
        return median_run(self.trials)


def median_run(trials: Sequence[ComparisonTrial]) -> ComparisonTrial:
    """Return the run with the median modelled time; of an even number, the lower median."""
    ordered = sorted(trials, key=lambda trial: trial.modelled_seconds)
    return ordered[(len(ordered) - 1) // 2]


def rows(results: Mapping[ComparisonCase, CaseResult]) -> list[dict[str, Any]]:
    """Return results as rows of the JSON document, in the order of cases."""
    return [
        asdict(case)
        | asdict(found.trial)
        | {"runs": [asdict(trial) for trial in found.trials]}
        | {"digest": found.digest, "commit": found.commit}
        for case, found in sorted(results.items(), key=lambda item: item[0])
    ]


def results(of_rows: Iterable[Mapping[str, Any]]) -> dict[ComparisonCase, CaseResult]:
    """Return the results in rows by case; rows of another kind (the oracle's) are skipped."""
    return {
        ComparisonCase(row["program"], row["ratio"], row["system"]): CaseResult(
            tuple(map(trial_of, row["runs"])), row["digest"], row["commit"]
        )
        for row in of_rows
        if row.keys() >= {*_NEEDED, "digest", "commit"}
    }


def trial_of(row: Mapping[str, Any]) -> ComparisonTrial:
    """Return the trial in a row of JSON."""
    return ComparisonTrial(**{name: row[name] for name in _TRIAL if name in row})
