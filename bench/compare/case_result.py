"""A case's result as it is kept: what was measured, what of, and by which commit; its JSON rows."""

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
    """A trial, the digest of all that it depends on, and the commit that was measured."""

    trial: ComparisonTrial
    digest: str
    commit: str


def rows(results: Mapping[ComparisonCase, CaseResult]) -> list[dict[str, Any]]:
    """Return results as they stand in the JSON, in the order of cases."""
    return [
        asdict(case) | asdict(found.trial) | {"digest": found.digest, "commit": found.commit}
        for case, found in sorted(results.items(), key=lambda item: item[0])
    ]


def results(of_rows: Iterable[Mapping[str, Any]]) -> list[CaseResult]:
    """Return the results that rows tell; rows of another kind (the oracle's) are left out."""
    return [
        CaseResult(
            ComparisonTrial(**{name: row[name] for name in _TRIAL if name in row}),
            row["digest"],
            row["commit"],
        )
        for row in of_rows
        if row.keys() >= {*_NEEDED, "digest", "commit"}
    ]
