# SPDX-License-Identifier: MIT
"""Tables of the lab note on second runs, from docs/results/second_run_bound.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from bench.documents.markdown import table

Results = Mapping[str, Any]


def second_run(results: Results) -> str:
    """Return speeds relative to first touch, by program and ratio, with their geometric means."""
    names = ["benefit", "exact-past", "clairvoyant", "former run", "profile, 128 KiB",
             "profile, 8 KiB", "mixed"]  # fmt: skip
    document = results["second_run_bound"]
    by_ratio = {**document["geomean_by_ratio"], "all": document["geomean"]}
    return _speeds(document, document["cases"], names, by_ratio)


def second_run_resolution(results: Results) -> str:
    """Return speeds of former runs that are known at other resolutions."""
    names = ["former run", "blocks of 16 pages", "blocks of 256 pages", "objects", "50 phases",
             "10 phases", "1 phase", "objects by region"]  # fmt: skip
    document = results["second_run_bound"]
    cases = [case for case in document["cases"] if "misled" in case]
    return _speeds(document, cases, names, {"all": document["geomean_resolutions"]})


def second_run_evidence(results: Results) -> str:
    """Return what samples say of a right profile and of a wrong one."""
    rows = [
        [
            case["program"], f"{case['mixed']['samples_per_tick']:.0f}",
            *_evidence(case["mixed"]), *_evidence(case["misled"]),
            *(f"{_speed(results, case, name):.3f}" for name in ("benefit", "mixed, wrong profile")),
        ]
        for case in results["second_run_bound"]["cases"]
        if "misled" in case
    ]  # fmt: skip
    profile = ["bits a sample", "left at tick", "ticks followed"]
    head = ["program", "samples a tick", *(f"right: {name}" for name in profile),
            *(f"wrong: {name}" for name in profile), "benefit", "mixed, wrong"]  # fmt: skip
    return table(head, rows, text=1)


def _evidence(found: Mapping[str, Any]) -> list[str]:
    left = str(found["left_at"]) if found["left_at"] else "never"
    followed = f"{found['former_ticks']} of {found['ticks']}"
    return [f"{found['bits_per_sample']:+.2f}", left, followed]


def _speed(results: Results, case: Mapping[str, Any], policy: str) -> float:
    key = (case["program"], case["variant"], case["ratio"], policy)
    rows = results["second_run_bound"]["rows"]
    return float(next(row["speed"] for row in rows if _key(row) == key))


def _key(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return row["program"], row["variant"], row["ratio"], row["policy"]


def _speeds(
    document: Mapping[str, Any],
    cases: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    means: Mapping[str, Mapping[str, float]],
) -> str:
    speeds = {_key(row): row["speed"] for row in document["rows"]}
    rows = []
    for case in sorted(cases, key=lambda case: (case["variant"], case["program"], case["ratio"])):
        run = (case["program"], case["variant"], case["ratio"])
        rows.append(
            [f"{run[0]}, {run[1]}", run[2], *(f"{speeds[*run, name]:.3f}" for name in names)]
        )
    for ratio, found in means.items():
        rows.append(["geometric mean", ratio, *(f"{found[name]:.3f}" for name in names)])
    return table(["run", "ratio", *names], rows, text=2)


def second_run_daemon(results: Results) -> str:
    """Return speeds relative to ``benefit`` of the daemon's second runs, and of misled ones."""
    names = ["second run", "third run", "shuffled profile", "random profile",
             "profile of another program"]  # fmt: skip
    seconds: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for row in results["second_run"]["rows"]:
        found = seconds.setdefault((f"{row['program']}, {row['variant']}", row["ratio"]), {})
        found.setdefault(row["policy"], {})[row["seed"]] = row["seconds"]

    def speed(base: Mapping[int, float], runs: Mapping[int, float]) -> str:
        seeds = base.keys() & runs.keys()
        return f"{geometric_mean(base[seed] / runs[seed] for seed in seeds):.3f}"

    rows = [
        [*key, speed(dict.fromkeys(of["benefit"], of["first touch"][1]), of["benefit"]),
         *(speed(of["benefit"], of[name]) for name in names)]
        for key, of in sorted(seconds.items())
    ]  # fmt: skip
    return table(["run", "ratio", "benefit", *names], rows, text=2)
