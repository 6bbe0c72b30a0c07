# SPDX-License-Identifier: MIT
"""Planners where kernels compute from DRAM and persistent memory; writes build/tensors.json.

    python -m bench.tensors.in_place [TRACE...] [SHARE...] [PLANNER...]

All traces, shares 0.1, 0.2, 0.4 and 0.8 and all planners unless given; other rows stay as they are.

DRAM has these shares of the step's peak. Traces are the recorded steps, as in
:mod:`bench.tensors.training_shapes`, and those of G10. The programs of AutoTM do not know the
rules: they are solved once for both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, Final

from bench.tensors.planners import TRACES, case_of, keep_rows, revision, show
from bench.tensors.training_shapes import RECORDED
from hmd.tensors.memory_system import RULES
from hmd.tensors.planner import MadePlans, StepProblem
from hmd.tensors.planners import PLANNERS, planner_named
from hmd.tensors.prices import price_planner

SHARES: Final = (0.2, 0.4, 0.1, 0.8)
WITHOUT_RULES: Final = ("autotm", "autotm-static", "autotm-sync")


def rows_of(name: str, share: float, planners: list[str]) -> Iterator[dict[str, Any]]:
    """Yield a row per planner and set of rules, ``portfolio`` last: it tries the others' plans."""
    trace, system = case_of(name, tiers_label(share))
    solved: dict[str, Any] = {}
    for rules in RULES.values():
        problem = StepProblem(trace, system, rules, MadePlans(dict(solved)))
        for planner in (each for each in planners if PLANNERS[each].suits(system)):
            alone = replace(problem, made=MadePlans()) if planner == "portfolio" else problem
            price, _, _ = price_planner(alone, planner_named(planner))
            row = asdict(price) | {"tiers": tiers_label(share), "revision": revision()}
            del row["system"]
            show(row)
            yield row
        made = problem.made.plans
        solved = {each: made[each] for each in WITHOUT_RULES if each in made}


def tiers_label(share: float) -> str:
    """Return how rows name a memory system with DRAM of a share of the peak."""
    return f"dram-pm, dram {share:.0%}"


def main(words: list[str]) -> None:
    """Measure traces and shares, and keep the other rows that the file has."""
    known = (*RECORDED, *TRACES)
    names = [word for word in words if word in known] or known
    planners = [word for word in PLANNERS if word in words] or list(PLANNERS)
    rest = [word for word in words if word not in known and word not in PLANNERS]
    shares = [float(word) for word in rest] or SHARES
    for share in shares:
        for name in names:
            keep_rows(rows_of(name, share, planners))


if __name__ == "__main__":
    main(sys.argv[1:])
