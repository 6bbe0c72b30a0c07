"""Planners of training steps on G10's published traces; writes build/tensors.json.

    python -m bench.tensors [PART|TRACE...]      parts: traces, host, flash, noise (all)

With names of traces, only these are measured; other rows stay as build/tensors.json, or else
docs/results/tensors.json, has them.

Needs the data that ``HMD_G10_DATA`` names. Every row is planned and simulated here; the step's
share of the ideal and the lower bound stand next to it. Prints each row when it is measured.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from hmd.tensors.g10_traces import g10_folder
from hmd.tensors.memory_system import MemorySystem, load_system
from hmd.tensors.planner import StepProblem, planner_named
from hmd.tensors.pricing_rules import RULES, PricingRules
from hmd.tensors.step_prices import price_planner
from hmd.tensors.step_simulator import simulate_step
from hmd.tensors.tensor_trace import TensorTrace
from hmd.tensors.tensor_trace_file import read_trace
from hmd.units import GIB

_HERE: Final = Path(__file__).resolve().parents[1]
OUT: Final = _HERE / "build/tensors.json"
PUBLISHED: Final = _HERE / "docs/results/tensors.json"
TRACES: Final = (
    *(f"bert-{batch}" for batch in (128, 256, 512, 1024)),
    *(f"resnet152-{batch}" for batch in (256, 1024, 1280)),
)
PLANNERS: Final = ("lru-free", "g10", "ours")
SWEPT: Final = ("bert-512", "resnet152-1280")
HOST_GIB: Final = (0, 16, 32, 64)
FLASH_GBPS: Final = (6.4, 12.8, 32.0)
NOISY: Final = ("bert-256", "resnet152-1280")
PARTS: Final = {"traces": TRACES, "host": SWEPT, "flash": SWEPT, "noise": NOISY}
"""Traces of each part."""

NOISES: Final = (0.05, 0.25)
SEEDS: Final = 10
HEAD: Final = "| trace | rules | tiers | planner | share of ideal | bound | planned in |"


def load(name: str) -> TensorTrace:
    """Return one of G10's traces; raises TensorTraceError without the data."""
    return read_trace(g10_folder() / f"{name}.npz")


def measured(
    trace: TensorTrace, system: MemorySystem, tiers: str, planners: tuple[str, ...] = PLANNERS
) -> Iterator[dict[str, Any]]:
    """Yield a row per planner and set of rules."""
    for rules in RULES.values():
        for planner in planners:
            price, _, _ = price_planner(StepProblem(trace, system, rules), planner)
            row = asdict(price) | {"tiers": tiers}
            del row["system"]
            show(row)
            yield row


def show(row: dict[str, Any]) -> None:
    """Print a row of the table."""
    ideal = row["ideal_seconds"]
    shares = (ideal / row["seconds"], ideal / row["bound_seconds"])
    cells = (row["trace"], row["rules"], row["tiers"], row["planner"])
    numbers = (f"{shares[0]:.4f}", f"{shares[1]:.4f}", f"{row['plan_seconds']:.1f} s")
    print(f"| {' | '.join((*cells, *numbers))} |", flush=True)


def noise_rows(name: str, rules: PricingRules) -> Iterator[dict[str, Any]]:
    """Yield the loss of a plan that does not know the noise of the kernels' times."""
    trace, system = load(name), load_system("g10")
    plan = planner_named("ours").plan(StepProblem(trace, system, rules))
    quiet = trace.ideal_seconds / simulate_step(trace, system, rules, plan).seconds
    for noise in NOISES:
        losses = []
        for seed in range(SEEDS):
            factor = np.random.default_rng(seed).uniform(1 - noise, 1 + noise, trace.kernels)
            noisy = trace.with_ticks(np.rint(trace.kernel_ticks * factor).astype(np.int64))
            found = simulate_step(noisy, system, rules, plan, checked=False)
            losses.append((quiet - noisy.ideal_seconds / found.seconds) * 100)
        row = {
            "trace": name,
            "rules": rules.name,
            "noise": noise,
            "seeds": SEEDS,
            "mean_loss_points": float(np.mean(losses)),
            "worst_loss_points": float(np.max(losses)),
        }
        print(json.dumps(row), flush=True)
        yield row


def geomean(values: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the geometric means of shares on the base system, and the least ratios of speeds."""
    shares: dict[str, list[float]] = {"g10": [], "ours": []}
    for row in rows:
        if row["tiers"] == "g10" and row["planner"] in shares:
            shares[row["planner"]].append(row["ideal_seconds"] / row["seconds"])
    ratios = ratios_to_ours(rows)
    return {
        "g10_geomean_share_of_ideal": geomean(shares["g10"]),
        "ours_geomean_share_of_ideal": geomean(shares["ours"]),
        "worst_vs_g10": min(ratios["g10"]),
        "worst_vs_any": min(min(values) for values in ratios.values()),
    }


def ratios_to_ours(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the times of each planner over those of ``ours``, on the same cases."""
    keys = ("trace", "rules", "tiers")
    ours = {tuple(r[key] for key in keys): r["seconds"] for r in rows if r["planner"] == "ours"}
    ratios: dict[str, list[float]] = {}
    for row in rows:
        same = tuple(row[key] for key in keys)
        if row["planner"] != "ours" and same in ours:
            ratios.setdefault(row["planner"], []).append(row["seconds"] / ours[same])
    return ratios


def main(words: list[str]) -> None:
    """Measure the parts, trace by trace, and keep the other rows that the file has."""
    names = [word for word in words if word in TRACES]
    print(HEAD)
    for part in [word for word in words if word in PARTS] or list(PARTS):
        for name in names or PARTS[part]:
            if part == "noise":
                keep_rows(
                    (row for rules in RULES.values() for row in noise_rows(name, rules)), part
                )
            else:
                keep_rows(rows_of(part, name))


def rows_of(part: str, name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a part for one trace."""
    base = load_system("g10")
    if part == "traces":
        yield from measured(load(name), base, "g10")
    elif part == "host":
        for size in HOST_GIB:
            system = base.changed({"host": size * GIB})
            yield from measured(load(name), system, f"host {size} GiB", ("g10", "ours"))
    else:
        for rate in FLASH_GBPS:
            system = base.changed(rates={"pcie": 32.0, "dram": 32.0, "flash": rate})
            yield from measured(load(name), system, f"flash {rate:g} GB/s", ("g10", "ours"))


def keep_rows(rows: Iterable[dict[str, Any]], key: str = "rows") -> None:
    """Write rows into the file, in place of those of the same case, and the summary."""
    document: dict[str, Any] = json.loads((OUT if OUT.exists() else PUBLISHED).read_text())
    found = {case(row): row for row in document.get(key, [])}
    for row in rows:
        found[case(row)] = row
    document |= {key: list(found.values()), "command": "make bench-tensors"}
    document |= summary(document["rows"])
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(document, indent=1) + "\n")


def case(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what distinguishes rows."""
    return tuple(row.get(key) for key in ("trace", "rules", "tiers", "planner", "noise"))


if __name__ == "__main__":
    main(sys.argv[1:])
