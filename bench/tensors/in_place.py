# SPDX-License-Identifier: MIT
"""Planners where kernels compute from DRAM and persistent memory; writes build/tensors.json.

    python -m bench.tensors.in_place [TRACE...] [SHARE...] [PLANNER...]

All traces, shares 0.1, 0.2, 0.4 and 0.8 and all planners unless given; other rows stay as they are.

DRAM has these shares of the step's peak. Traces are the recorded steps, as in
:mod:`bench.tensors.training_shapes`, and those of G10.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

from bench.tensors.planners import TRACES, case_of, keep_rows, row_of, show
from bench.tensors.publications import COMPARED, planner_entry
from bench.tensors.training_shapes import RECORDED
from hmd.tensors.memory_system import RULES
from hmd.tensors.planner import StepProblem
from hmd.tensors.prices import price_planner

SHARES: Final = (0.2, 0.4, 0.1, 0.8)


def rows_of(name: str, share: float, planners: list[str]) -> Iterator[dict[str, Any]]:
    """Yield a row per planner and set of rules."""
    trace, system = case_of(name, tiers_label(share))
    for rules in RULES.values():
        problem = StepProblem(trace, system, rules)
        for planner in (each for each in planners if COMPARED[each].suits(system)):
            price, plan, _ = price_planner(problem, planner_entry(planner))
            row = row_of(price, plan, tiers_label(share))
            show(row)
            yield row


def tiers_label(share: float) -> str:
    """Return how rows name a memory system with DRAM of a share of the peak."""
    return f"dram-pm, dram {share:.0%}"


def main(words: list[str]) -> None:
    """Measure traces and shares, and keep the other rows that the file has."""
    known = (*RECORDED, *TRACES)
    names = [word for word in words if word in known] or known
    planners = [word for word in COMPARED if word in words] or list(COMPARED)
    rest = [word for word in words if word not in known and word not in COMPARED]
    shares = [float(word) for word in rest] or SHARES
    for share in shares:
        for name in names:
            keep_rows(rows_of(name, share, planners))


if __name__ == "__main__":
    main(sys.argv[1:])
