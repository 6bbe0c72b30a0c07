# SPDX-License-Identifier: MIT
"""Planners on made steps that none was tuned to; writes build/tensors.json.

    python -m bench.tensors.made_steps [--seed N] [--layers N] [SHAPE...]       all shapes, 24
    layers

A step of each shape of :mod:`bench.tensors.training_shapes` meets several memory systems in
proportion to it: little and much fast memory, no host, slow and fast links. ``--seed`` makes steps
of other sizes, times and connections: planners have seen none. Prints each row, and at last the
least ratio of speeds of ``portfolio`` to any other planner.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

from bench.tensors.planners import HEAD, keep_rows, row_of, show
from bench.tensors.publications import COMPARED
from bench.tensors.training_shapes import SHAPES, scaled_system, training_trace
from hmd.tensors.memory_system import RULES
from hmd.tensors.planner import StepProblem
from hmd.tensors.prices import price_planner

SYSTEMS: Final = (
    {"fast": 0.05, "host": 0.5, "links": 0.7, "flash": 0.2},
    {"fast": 0.2, "host": 0.0, "links": 1.5, "flash": 0.5},
    {"fast": 0.5, "host": 2.0, "links": 0.3, "flash": 0.1},
)
"""Arguments of :func:`bench.tensors.training_shapes.scaled_system`."""

QUICK: Final = ("lru", "lru-free", "g10", "sentinel")
SLOW: Final = ("autotm", "deeptm")
SLOW_LAYERS: Final = 40
"""Steps of up to so many layers are planned by the integer programs too."""


def rows_of(
    shape: str, layers: int, seed: int, only: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield a row per memory system, set of rules and planner."""
    trace = training_trace(shape, layers, seed)
    planners = (*QUICK, *(SLOW if layers <= SLOW_LAYERS else ()), "portfolio")
    for shares in SYSTEMS:
        system = scaled_system(trace, **shares)
        label = ", ".join(f"{key} {value:g}" for key, value in shares.items())
        for rules in RULES.values():
            problem = StepProblem(trace, system, rules)
            for planner in (each for each in planners if only in (None, each)):
                price, plan, _ = price_planner(problem, COMPARED[planner])
                row = row_of(price, plan, f"made, {label}")
                row["command"] = (
                    f"python -m bench.tensors.made_steps --seed {seed} --layers {layers} {shape}"
                )
                show(row)
                yield row


def main() -> None:
    """Measure the shapes and print how ``portfolio`` does against the others."""
    parser = argparse.ArgumentParser(prog="python -m bench.tensors.made_steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--planner", metavar="NAME", help="this one alone; other rows stay")
    parser.add_argument("shapes", nargs="*", metavar="SHAPE")
    words = parser.parse_args()
    print(HEAD)
    worst = float("inf")
    for shape in words.shapes or SHAPES:
        rows = list(rows_of(shape, words.layers, words.seed, words.planner))
        keep_rows(rows)
        took = {(r["rules"], r["tiers"]): r["seconds"] for r in rows if r["planner"] == "portfolio"}
        worst = min(worst, *(row["seconds"] / took[row["rules"], row["tiers"]] for row in rows))
    print(f"least ratio of speeds: {worst:.4f}")


if __name__ == "__main__":
    main()
