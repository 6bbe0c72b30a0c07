# SPDX-License-Identifier: MIT
"""Planners of training steps on G10's published traces; writes build/tensors.json.

    python -m bench.tensors.planners [--resume] [PART|TRACE|PLANNER...]

Parts are traces, host, flash and noise; all unless given.
With names of traces or planners, only these are measured; other rows stay as build/tensors.json,
or else docs/results/tensors.json, has them. Each row names the git tree of hmd/tensors that it was
measured with, and is written when it is measured: ``--resume`` measures only what the file does
not have of the present revision. ``bounds`` computes the rows' lower bounds again, and no more.
``publish`` puts the rows of build/tensors.json into docs/results/tensors.json, in place of those of
the same cases there.

Needs the data that ``HMD_G10_DATA`` names. Every row is planned and simulated here; the step's
share of the ideal and the lower bound stand next to it. Prints each row when it is measured.

Tables of docs/results/tensors.json; :mod:`bench.documents.tables` lists them.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.documents.markdown import measured_with, table
from bench.tensors.g10_traces import load_g10
from bench.tensors.publications import COMPARED, ProgramPlan, planner_entry
from bench.tensors.training_shapes import RECORDED, recorded_step
from hmd.base.units import GIB
from hmd.tensors.lifetimes import vitality
from hmd.tensors.lower_bound import lower_bound_seconds
from hmd.tensors.memory_system import RULES, MemorySystem, PricingRules, load_system
from hmd.tensors.move_plan import MovePlan
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import planner_named
from hmd.tensors.prices import StepPrice, price_planner
from hmd.tensors.simulator import simulate_step
from hmd.tensors.trace import TensorTrace

_HERE: Final = Path(__file__).resolve().parents[2]
OUT: Final = _HERE / "build/tensors.json"
PUBLISHED: Final = _HERE / "docs/results/tensors.json"
TRACES: Final = (
    *(f"bert-{batch}" for batch in (128, 256, 512, 1024)),
    *(f"resnet152-{batch}" for batch in (256, 1024, 1280)),
)
LOOSENED: Final = {"bert-512": "g10@1.394"}
"""Traces that the original plans with another target where flash is below 6.3 GB/s."""

SWEPT: Final = ("bert-512", "resnet152-1280")
HOST_GIB: Final = (0, 16, 32, 64)
FLASH_GBPS: Final = (6.4, 12.8, 32.0)
NOISY: Final = ("bert-256", "resnet152-1280")
PARTS: Final = {"traces": TRACES, "host": SWEPT, "flash": SWEPT, "noise": NOISY}
"""Traces of each part."""

NOISES: Final = (0.05, 0.25)
SEEDS: Final = 10
KEPT: Final[set[tuple[Any, ...]]] = set()
"""Cases that are not measured again."""

CHOSEN: Final[set[str]] = set()
"""The planners that are measured, all if empty."""

HEAD: Final = "| trace | rules | tiers | planner | share of ideal | bound | planned in |"

Results = Mapping[str, Any]

_IN_PLACE = ("lru-free", "autotm", "sentinel", "deeptm", "portfolio")


def measured(trace: TensorTrace, tiers: str, planners: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield a row per planner and set of rules, without those that the file has."""
    for rules in RULES.values():
        problem = StepProblem(trace, system_of(tiers), rules)
        for planner in (each for each in planners if not CHOSEN or each in CHOSEN):
            label = {"trace": trace.name, "rules": rules.name, "tiers": tiers, "planner": planner}
            if case(label) in KEPT:
                continue
            price, plan, _ = price_planner(problem, planner_entry(planner))
            row = row_of(price, plan, tiers)
            show(row)
            yield row


def row_of(price: StepPrice, plan: MovePlan, tiers: str) -> dict[str, Any]:
    """Return a row; plans of programs have the program's price and its gap."""
    row = asdict(price) | {"tiers": tiers, "revision": revision()}
    del row["system"]
    if isinstance(plan, ProgramPlan):
        row |= {"objective_seconds": plan.objective_seconds, "gap": plan.gap}
    return row


def show(row: dict[str, Any]) -> None:
    """Print a row of the table."""
    ideal = row["ideal_seconds"]
    shares = (ideal / row["seconds"], ideal / row["bound_seconds"])
    cells = (row["trace"], row["rules"], row["tiers"], row["planner"])
    numbers = (f"{shares[0]:.4f}", f"{shares[1]:.4f}", f"{row['plan_seconds']:.1f} s")
    print(f"| {' | '.join((*cells, *numbers))} |", flush=True)


def noise_rows(name: str, rules: PricingRules) -> Iterator[dict[str, Any]]:
    """Yield the loss of a plan that does not know the noise of the kernels' times."""
    if all(case({"trace": name, "rules": rules.name, "noise": noise}) in KEPT for noise in NOISES):
        return
    trace, system = load_g10(name), load_system("g10")
    plan = planner_named("portfolio").plan(StepProblem(trace, system, rules))
    quiet = trace.ideal_seconds / simulate_step(trace, system, rules, plan).seconds
    for noise in NOISES:
        losses = []
        for seed in range(SEEDS):
            factor = np.random.default_rng(seed).uniform(1 - noise, 1 + noise, trace.kernels)
            ticks = np.rint(trace.kernel_ticks * factor).astype(np.int64)
            noisy = replace(trace, kernel_ticks=ticks)
            found = simulate_step(noisy, system, rules, plan)
            losses.append((quiet - noisy.ideal_seconds / found.seconds) * 100)
        row = {
            "trace": name,
            "rules": rules.name,
            "noise": noise,
            "seeds": SEEDS,
            "mean_loss_points": float(np.mean(losses)),
            "worst_loss_points": float(np.max(losses)),
            "revision": revision(),
        }
        print(json.dumps(row), flush=True)
        yield row


def geomean(values: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the geometric means of shares on the base system, and the least ratios of speeds."""
    shares: dict[str, list[float]] = {"g10": [], "portfolio": []}
    for row in rows:
        if row["tiers"] == "g10" and row["planner"] in shares:
            shares[row["planner"]].append(row["ideal_seconds"] / row["seconds"])
    ratios = ratios_to_portfolio(rows)
    return {
        "g10_geomean_share_of_ideal": geomean(shares["g10"]),
        "portfolio_geomean_share_of_ideal": geomean(shares["portfolio"]),
        "worst_vs_g10": min(ratios["g10"] + ratios.get("g10@1.394", [])),
        "worst_vs_any": min(min(values) for values in ratios.values()),
        **claimed_margins(rows),
    }


def claimed_margins(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the largest margins in per cent of what DeepTM's authors claim, in DRAM and PM.

    By how much ``deeptm``, ``portfolio`` and the lower bound are faster than ``autotm`` and
    ``sentinel``, on the case where the margin is largest.
    """
    cases: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows:
        if row["tiers"].startswith("dram-pm"):
            found = cases.setdefault((row["trace"], row["rules"], row["tiers"]), {})
            found |= {row["planner"]: row["seconds"], "bound": row["bound_seconds"]}
    return {
        f"{faster}_over_{slower}_percent": max(
            (
                100 * (each[slower] / each[faster] - 1)
                for each in cases.values()
                if slower in each and faster in each
            ),
            default=0.0,
        )
        for faster in ("deeptm", "portfolio", "bound")
        for slower in ("autotm", "sentinel")
    }


def ratios_to_portfolio(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the times of each planner over those of ``portfolio``, on the same cases."""
    keys = ("trace", "rules", "tiers")
    took = {
        tuple(r[key] for key in keys): r["seconds"] for r in rows if r["planner"] == "portfolio"
    }
    ratios: dict[str, list[float]] = {}
    for row in rows:
        same = tuple(row[key] for key in keys)
        if row["planner"] != "portfolio" and same in took:
            ratios.setdefault(row["planner"], []).append(row["seconds"] / took[same])
    return ratios


def main(words: list[str]) -> None:
    """Measure the parts, trace by trace, and keep the other rows that the file has."""
    if words == ["bounds"]:
        refresh_bounds()
        return
    if words == ["publish"]:
        publish()
        return
    if "--resume" in words:
        mark_kept()
    names = [word for word in words if word in TRACES]
    CHOSEN.update(word for word in words if word in COMPARED)
    unknown = [word for word in words if word not in (*TRACES, *PARTS, *COMPARED, "--resume")]
    if unknown:
        raise SystemExit(f"no part, trace or planner {unknown[0]!r}")
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
    compared = ("g10", *loosened(name), "portfolio")
    if part == "traces":
        yield from measured(load_g10(name), "g10", ("lru-free", *compared))
    elif part == "host":
        for size in HOST_GIB:
            yield from measured(load_g10(name), f"host {size} GiB", compared)
    else:
        for rate in FLASH_GBPS:
            yield from measured(load_g10(name), f"flash {rate:g} GB/s", ("g10", "portfolio"))


def case_of(name: str, tiers: str) -> tuple[TensorTrace, MemorySystem]:
    """Return the trace and the memory system that rows name so; DRAM has a share of the peak."""
    if not tiers.startswith("dram-pm"):
        return load_g10(name), system_of(tiers)
    system = load_system("dram-pm")
    trace = recorded_step(name, system) if name in RECORDED else load_g10(name)
    share = float(tiers.split()[-1].rstrip("%")) / 100
    page = system.granularity_bytes
    room = int(vitality(trace).peak_bytes * share) // page * page
    return trace, system.changed({system.names[0]: room})


def system_of(tiers: str) -> MemorySystem:
    """Return the memory system that rows name so."""
    base, (kind, *words) = load_system("g10"), tiers.split()
    if kind == "host":
        return base.changed({"host": int(words[0]) * GIB})
    if kind == "flash":
        return base.changed(rates={"pcie": 32.0, "dram": 32.0, "flash": float(words[0])})
    return base


def refresh_bounds() -> None:
    """Write the present lower bounds into the rows that the file has of these systems."""
    document = kept_document()
    found: dict[tuple[str, ...], float] = {}
    for row in document["rows"]:
        key = row["trace"], row["tiers"], row["rules"]
        kind = key[1].split()[0].rstrip(",")
        if row["trace"] in (*TRACES, *RECORDED) and kind in ("g10", "host", "flash", "dram-pm"):
            # Where kernels compute in place, the bound does not know the rules.
            key = (*key[:2], "strict") if kind == "dram-pm" else key
            if key not in found:
                trace, system = case_of(*key[:2])
                found[key] = lower_bound_seconds(trace, system, RULES[key[2]])
            row["bound_seconds"] = found[key]
    document |= summary(document["rows"])
    OUT.write_text(json.dumps(document, indent=1) + "\n")


def loosened(name: str) -> tuple[str, ...]:
    """Return the planner of the original's other target, where it has one for a trace."""
    return (LOOSENED[name],) if name in LOOSENED else ()


def keep_rows(rows: Iterable[dict[str, Any]], key: str = "rows") -> None:
    """Write each row into the file, in place of that of the same case, and the summary."""
    for row in rows:
        document = kept_document()
        found = {case(each): each for each in document.get(key, [])} | {case(row): row}
        rows_now = [{"command": command_of(each)} | each for each in found.values()]
        document |= {key: rows_now, "command": "make bench-tensors"}
        document |= summary(document["rows"])
        OUT.parent.mkdir(exist_ok=True)
        OUT.write_text(json.dumps(document, indent=1) + "\n")


def publish() -> None:
    """Put the measured rows into the published file, with the summary of all that it then has."""
    document, measured_here = (json.loads(path.read_text()) for path in (PUBLISHED, OUT))
    for key in ("rows", "noise"):
        found = {case(row): row for each in (document, measured_here) for row in each.get(key, [])}
        document[key] = list(found.values())
    document |= summary(document["rows"]) | measured_with() | {"command": "make bench-tensors"}
    PUBLISHED.write_text(json.dumps(document, indent=1) + "\n")


def command_of(row: dict[str, Any]) -> str:
    """Return the command that measures a row of this bench or of bench.tensors.in_place again."""
    trace, tiers = row["trace"], row.get("tiers", "")
    if tiers.startswith("dram-pm"):
        share = float(tiers.split()[-1].rstrip("%")) / 100
        return f"python -m bench.tensors.in_place {trace} {share:g}"
    if "noise" in row:
        return f"python -m bench.tensors.planners noise {trace}"
    part = tiers.split()[0]
    return f"python -m bench.tensors.planners {'traces' if part == 'g10' else part} {trace}"


def kept_document() -> dict[str, Any]:
    """Return what earlier runs measured."""
    document: dict[str, Any] = json.loads((OUT if OUT.exists() else PUBLISHED).read_text())
    return document


def mark_kept() -> None:
    """Note the cases that the file has of the present revision of the planners."""
    document = kept_document()
    for row in (*document["rows"], *document.get("noise", [])):
        if row.get("revision") == revision():
            KEPT.add(case(row))


@cache
def revision() -> str:
    """Return the tree of hmd/tensors in the last commit, with ``+`` where files differ from it."""
    tree = _git("rev-parse", "--short=12", "HEAD:hmd/tensors")
    return tree + ("+" if _git("status", "--porcelain", "--", "hmd/tensors") else "")


def _git(*words: str) -> str:
    command = ("git", "-C", str(_HERE), *words)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def case(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what distinguishes rows."""
    return tuple(row.get(key) for key in ("trace", "rules", "tiers", "planner", "noise"))


if __name__ == "__main__":
    main(sys.argv[1:])


def tier_sweeps(results: Results) -> str:
    """Return the shares of the ideal for other host memories and other flash."""
    names = ("g10", "g10@1.394", "portfolio")
    head = ["trace", "rules", "tiers", *names, "bound"]
    return table(head, _shares(results, names, _swept, bound=True), text=3)


def in_place_steps(results: Results) -> str:
    """Return the shares of the ideal where kernels compute from DRAM and persistent memory."""
    head = ["trace", "rules", "tiers", *_IN_PLACE]
    return table(head, _shares(results, _IN_PLACE, _dram, bound=False), text=3)


def programs(results: Results) -> str:
    """Return how far the price of each integer program is from the simulator's, and its gap."""
    rows = [
        [
            row["trace"],
            row["tiers"],
            f"{100 * (row['objective_seconds'] / row['seconds'] - 1):+.1f} %",
            f"{100 * row['gap']:.2f} %",
        ]
        for row in results["tensors"]["rows"]
        if _dram(row["tiers"]) and row["rules"] == "strict" and row["planner"] == "autotm"
    ]
    return table(["trace", "tiers", "program over simulator", "gap"], rows, text=2)


def made_steps(results: Results) -> str:
    """Return the least and the mean ratio of speeds of ``portfolio`` on made steps, per shape.

    The last column is the speed of ``portfolio`` over that of the lower bound, under strict rules.
    """
    times: dict[tuple[str, str, str], dict[str, float]] = {}
    shares: dict[str, list[float]] = {}
    for row in results["tensors"]["rows"]:
        if row["tiers"].startswith("made"):
            cells = times.setdefault((row["trace"], row["rules"], row["tiers"]), {})
            cells[row["planner"]] = row["seconds"]
            if row["planner"] == "portfolio" and row["rules"] == "strict":
                share = row["bound_seconds"] / row["seconds"]
                shares.setdefault(row["trace"], []).append(share)
    ratios: dict[tuple[str, str], list[float]] = {}
    for (trace, _, _), cells in times.items():
        for planner, seconds in cells.items():
            if planner != "portfolio":
                ratios.setdefault((trace, planner), []).append(seconds / cells["portfolio"])
    planners = list(dict.fromkeys(planner for _, planner in ratios))
    rows = [
        [
            trace,
            *(_least_and_mean(ratios.get((trace, planner), [])) for planner in planners),
            _least_and_mean(shares.get(trace, [])),
        ]
        for trace in dict.fromkeys(trace for trace, _ in ratios)
    ]
    return table(["step", *planners, "bound (strict)"], rows, text=1)


def _least_and_mean(ratios: list[float]) -> str:
    if not ratios:
        return "-"
    return f"{min(ratios):.3f} ({geomean(ratios):.2f})"


def noise(results: Results) -> str:
    """Return what plans lose, in points, to noise of the kernels' times that they do not know."""
    rows = [
        [
            row["trace"],
            row["rules"],
            f"± {100 * row['noise']:.0f} %",
            f"{row['seeds']}",
            f"{row['mean_loss_points']:.3f}",
            f"{row['worst_loss_points']:.3f}",
        ]
        for row in results["tensors"]["noise"]
    ]
    return table(["trace", "rules", "noise", "seeds", "mean loss", "worst loss"], rows, text=3)


def _swept(tiers: str) -> bool:
    return tiers.startswith(("host", "flash"))


def _dram(tiers: str) -> bool:
    return tiers.startswith("dram-pm")


def _shares(
    results: Results, names: tuple[str, ...], chosen: Callable[[str], bool], *, bound: bool
) -> list[list[str]]:
    """Return rows of the chosen systems: trace, rules, tiers, share of the ideal per planner."""
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in results["tensors"]["rows"]:
        if chosen(row["tiers"]):
            cells = found.setdefault((row["trace"], row["rules"], row["tiers"]), {})
            cells[row["planner"]] = f"{row['ideal_seconds'] / row['seconds']:.4f}"
            cells["bound"] = f"{row['ideal_seconds'] / row['bound_seconds']:.4f}"
    columns = (*names, "bound") if bound else names
    return [[*key, *(cells.get(name, "-") for name in columns)] for key, cells in found.items()]
