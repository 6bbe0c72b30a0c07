"""Stored results of cases: the trial, its digest and commit; their rows in JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from bench.compare.comparison_case import ComparisonCase
from bench.compare.comparison_trial import ComparisonTrial

_TRIAL = tuple(each.name for each in fields(ComparisonTrial))
_NEEDED = {each.name for each in fields(ComparisonTrial) if each.default is MISSING}


@dataclass(frozen=True, slots=True)
class CaseResult:
    """A trial, the digest of all that it depends on, and the measured commit."""

    trial: ComparisonTrial
    digest: str
    commit: str


def rows(results: Mapping[ComparisonCase, CaseResult]) -> list[dict[str, Any]]:
    """Return results as rows of the JSON document, in the order of cases."""
    return [
        asdict(case) | asdict(found.trial) | {"digest": found.digest, "commit": found.commit}
        for case, found in sorted(results.items(), key=lambda item: item[0])
    ]


def results(of_rows: Iterable[Mapping[str, Any]]) -> list[CaseResult]:
    """Return the results in rows; rows of another kind (the oracle's) are skipped."""
    return [
        CaseResult(
            ComparisonTrial(**{name: row[name] for name in _TRIAL if name in row}),
            row["digest"],
            row["commit"],
        )
        for row in of_rows
        if row.keys() >= {*_NEEDED, "digest", "commit"}
    ]
