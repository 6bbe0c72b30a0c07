# SPDX-License-Identifier: MIT
"""Tables of documents, made from docs/results/*.json; :mod:`bench.documents.figures` places them.

Each function takes the results by the name of their file and returns a Markdown table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bench.calibration import table as calibration_table
from bench.compare.kernel_mode import speeds_table
from bench.compare.tables import (
    classes,
    contention,
    huge_paged,
    moved,
    ratios,
    speedups,
    summary,
    swept,
)
from bench.documents.markdown import table
from bench.far import far_table
from bench.learned_policy.in_guest import table as guest_table
from bench.second_run.tables import (
    second_run,
    second_run_daemon,
    second_run_evidence,
    second_run_resolution,
)
from bench.stages.policy import table as convergence_table
from bench.stages.stage_costs import table as stage_table
from bench.tensors.planners import in_place_steps, made_steps, noise, programs, tier_sweeps
from bench.tensors.training_memory import training_memory, training_tiers

Results = Mapping[str, Any]
PRESETS = ("dram-pm", "dram-cxl", "hbm-dram")


def demo(results: Results) -> str:
    """Return the demonstration's rates, and their share of all fast by modelled time."""
    rows = []
    for program, found in results["demo"]["programs"].items():
        whole = found["all_fast"]["modelled_ops_per_s"]
        for name in ("all_fast", "all_slow", "first_touch", "hmd"):
            rate = found[name]["modelled_ops_per_s"]
            rows.append(
                [
                    program if name == "all_fast" else "",
                    name.replace("_", " "),
                    f"{found[name]['ops_per_s']:,.0f}",
                    f"{rate:,.0f}",
                    f"{rate / whole:.2f}",
                ]
            )
    head = ["program", "run", "ops/s (guest time)", "ops/s (modelled time)", "of all fast"]
    return table(head, rows, text=2)


def calibration(results: Results) -> str:
    """Return the worst errors of the emulated machine by preset and kind of figure."""
    return calibration_table(results["calibration"]["presets"])


def reaction(results: Results) -> str:
    """Return the seconds until a hot set that has moved is fast again."""
    rows = [
        [
            f"{row['tracked_gib']:,} GiB, {row['cpus']} CPUs",
            row["system"],
            "more than an hour"
            if row["seconds_to_recover"] is None
            else f"{row['seconds_to_recover']:.1f}",
            f"{row['copy_seconds']:.1f}",
            "" if row["cpu_share"] is None else f"{100 * row['cpu_share']:.2f} %",
        ]
        for row in results["reaction"]["rows"]
    ]
    return table(["memory", "system", "seconds", "of which copies", "share of CPUs"], rows, text=2)


def convergence(results: Results) -> str:
    """Return how soon the fast tier has a hot set that changed, by policy and case."""
    return convergence_table(results["convergence"]["rows"])


def stage_costs(results: Results) -> str:
    """Return what stages of the daemon and the timing model cost, with their bounds."""
    return stage_table(results["stages"]["rows"])


def many_mappings(results: Results) -> str:
    """Return CPU times of readings in ms, and p99 of a target's mmap(2) and faults in us."""
    rows = []
    for row in results["mappings"]["rows"]:
        latencies = [
            f"{row['latency_us'][mode][f'{call}_p99']:.0f}"
            for call in ("mmap", "fault")
            for mode in ("alone", "hmd", "text")
        ]
        costs = [f"{row[name]:.0f}" for name in ("text_ms", "query_ms", "refresh_ms", "step_ms")]
        rows.append([f"{row['mappings']:,}", *costs, *latencies])
    calls = [f"{call} {mode}" for call in ("mmap", "fault") for mode in ("alone", "hmd", "text")]
    return table(["mappings", "text", "query", "sweep", "longest step", *calls], rows, text=0)


def estimator(results: Results) -> str:
    """Return the estimator's errors in per cent by program and preset: mean, and worst."""
    cases = {(c["program"], c["preset"]): c for c in results["estimator"]["cases"]}
    rows = []
    for program in sorted({program for program, _ in cases}):
        whole = cases[program, PRESETS[0]]
        row = [program, f"{whole['slow_s'] / whole['fast_s']:.2f}"]
        for preset in PRESETS:
            case = cases[program, preset]
            for model in ("", "isc22_"):
                mean, worst = case[f"{model}mean_error"], case[f"{model}max_error"]
                row.append(f"{100 * mean:.1f} ({100 * worst:.1f})")
        rows.append(row)
    total = ["**all**", ""]
    for preset in PRESETS:
        those = [case for (_, its), case in cases.items() if its == preset]
        layouts = sum(case["layouts"] for case in those)
        for model in ("", "isc22_"):
            mean = sum(c[f"{model}mean_error"] * c["layouts"] for c in those) / layouts
            worst = max(c[f"{model}max_error"] for c in those)
            total.append(f"**{100 * mean:.2f} ({100 * worst:.1f})**")
    columns = [f"{model}, {preset}" for preset in PRESETS for model in ("hmd", "published")]
    return table(["program", "slow / fast, dram-pm", *columns], [*rows, total], text=1)


def one_run(results: Results) -> str:
    """Return the errors of a run that is predicted from the one on the other tier."""
    found = results["estimator"]
    parts = [("all", found["one_run"]), ("held out", (found["heldout"] or found)["one_run"])]
    rows = [
        [
            f"{name}, from the {tier} run",
            f"{100 * of[tier]['mean_error']:.1f} %",
            f"{100 * of[tier]['within_5']:.0f} %",
            f"{100 * of[tier]['within_10']:.0f} %",
        ]
        for name, of in parts
        for tier in ("slow", "fast")
    ]
    return table(["programs", "mean error", "within 5 %", "within 10 %"], rows, text=1)


def held_out(results: Results) -> str:
    """Return the errors on the programs that were kept out of all tuning, beside all others."""
    found = results["estimator"]
    rows = []
    for name, of in (("all", found), ("held out", found["heldout"] or found)):
        cells = [of["mean_error"], of["max_error"], of["best_layout_regret_max"], of["coverage_95"]]
        rows.append([name, *(f"{100 * cell:.2f} %" for cell in cells)])
    head = ["programs", "mean error", "worst", "worst regret", "within the interval"]
    return table(head, rows, text=1)


def ablations(results: Results) -> str:
    """Return the estimator's errors without one of its terms each."""
    found = results["estimator"]
    rows = [["all terms", found["mean_error"], found["max_error"]]]
    rows += [[n, e["mean_error"], e["max_error"]] for n, e in found["ablations"].items()]
    rows.append(["published formula", found["isc22_mean_error"], found["isc22_max_error"]])
    return table(["model", "mean error", "worst"], _errors(rows), text=1)


def samplings(results: Results) -> str:
    """Return the estimator's errors by how the runs are sampled."""
    found = results["estimator"]
    rows = [["period 199, seed 1", found["mean_error"], found["max_error"]]]
    rows += [[n, e["mean_error"], e["max_error"]] for n, e in found["samplings"].items()]
    return table(["sampling", "mean error", "worst"], _errors(rows), text=1)


def long_traces(results: Results) -> str:
    """Return what the estimator needs for traces of many samples."""
    rows = [
        [
            f"{each['samples']:,}",
            f"{each['rows']:,}",
            f"{each['read_s']:.1f} s",
            f"{1e3 * each['layout_s']:.1f} ms",
            f"{each['samples_per_second'] / 1e6:,.0f} million",
            f"{each['peak_mib']:,.0f} MiB",
        ]
        for each in results["estimator"]["large_traces"]
    ]
    head = ["samples", "rows kept", "reading and aggregating", "one layout"]
    return table([*head, "samples per second", "memory"], rows, text=0)


def samplers(results: Results) -> str:
    """Return how much of a program's heat each sampler finds."""
    rows = [
        [
            each["sampler"],
            f"{each['period']}",
            f"{each['correlation']:.2f}",
            f"{100 * each['hot_found']:.0f} %",
            f"{100 * each['misses_covered']:.0f} %",
            f"{100 * each['cpu']:.0f} %",
            f"{100 * each['kernel_cpu']:.0f} %",
            f"{each['rows']:,}",
        ]
        for each in results["samplers"]["samplers"]
    ]
    head = ["sampler", "period", "rank correlation", "hot memory found", "of its misses"]
    return table([*head, "CPU of hmd", "CPU of the kernel thread", "rows"], rows, text=1)


def far(results: Results) -> str:
    """Return how much of programs' memory was out, and what that cost."""
    return far_table(results["far"]["rows"])


def kernel_mode(results: Results) -> str:
    """Return what samples of the kernel's accesses bring."""
    return speeds_table(results["kernel_mode"]["programs"])


def bounds(results: Results) -> str:
    """Return speeds relative to first touch of policies and bounds, with MiB moved."""
    return _speeds(results["bounds"], "cases")


def learned(results: Results) -> str:
    """Return speeds relative to first touch on programs held out of training, with MiB moved."""
    return _speeds(results["learned"], "heldout")


def learned_guest(results: Results) -> str:
    """Return runtimes in the guest of programs held out of training, next to the comparison's."""
    return guest_table(results["learned"]["guest"])


def moves(results: Results) -> str:
    """Return the latency of a program's accesses by the batch size of its moves."""
    rows = [
        [
            "4 KiB" if row["page_kib"] == 4 else "2 MiB",
            f"{row['batch_pages']:,}" if row["batch_pages"] else "no moves",
            f"{row['mib_per_s']:.0f}",
            *(f"{row[name]:.2f}" for name in ("p50_ms", "p99_ms", "most_ms")),
        ]
        for row in results["scale"]["engine"]["latency"]
    ]
    head = ["pages", "batch, pages of 4 KiB", "moved, MiB/s", "p50, ms", "p99, ms", "longest, ms"]
    return table(head, rows, text=1)


def _speeds(found: Results, cases: str) -> str:
    names = list(found["geomean"])
    rows = []
    for case in found[cases]:
        cells = []
        for name in names:
            if name not in case["seconds"]:
                cells.append("")
                continue
            times = case["seconds"]["first touch"] / case["seconds"][name]
            moved = case["moved_mib"].get(name)
            cells.append(f"{times:.2f}" + ("" if moved is None else f" ({moved})"))
        rows.append([case["program"], case["ratio"], *cells])
    means = [f"**{found['geomean'][name]:.3f}**" for name in names]
    return table(["program", "ratio", *names], [*rows, ["**geometric mean**", "", *means]], text=2)


def steps(results: Results) -> str:
    """Return the planners' shares of the ideal on each trace, with the bound's share."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in results["tensors"]["rows"]:
        if row["tiers"] == "g10":
            cells = found.setdefault((row["trace"], row["rules"]), {})
            cells[row["planner"]] = f"{row['ideal_seconds'] / row['seconds']:.4f}"
            cells["bound"] = f"{row['ideal_seconds'] / row['bound_seconds']:.4f}"
    names = ("lru-free", "g10", "g10@1.394", "portfolio", "bound")
    rows = [[*key, *(cells.get(name, "-") for name in names)] for key, cells in found.items()]
    return table(["trace", "rules", *names], rows, text=2)


def shuffles(results: Results) -> str:
    """Return accuracies of global, partial and local shuffling, a row per data set and workers."""
    found = results["shuffle"]
    rows: dict[str, list[str]] = {}
    for row in found["global_and_local"] + found["sweep"]:
        name = f"{row['data']}, {row['workers']} {row['kind']}, {row['seeds']}"
        cells = rows.setdefault(name, [])
        cells.append(f"{row['accuracy']:.1f} ± {row['accuracy_std']:.1f}")
    fractions = sorted({row["fraction"] for row in found["sweep"]})
    head = ["data set, workers, seeds", "global", "local", *(f"{each:g}" for each in fractions)]
    return table(head, [[name, *cells] for name, cells in rows.items()], text=1)


TABLES: Final[Mapping[str, Callable[[Results], str]]] = {
    each.__name__: each
    for each in (
        demo,
        speedups,
        classes,
        ratios,
        moved,
        summary,
        contention,
        bounds,
        moves,
        learned,
        learned_guest,
        second_run,
        second_run_resolution,
        second_run_evidence,
        second_run_daemon,
        swept,
        huge_paged,
        estimator,
        held_out,
        one_run,
        calibration,
        convergence,
        reaction,
        stage_costs,
        many_mappings,
        ablations,
        samplings,
        long_traces,
        samplers,
        far,
        kernel_mode,
        steps,
        tier_sweeps,
        in_place_steps,
        programs,
        made_steps,
        noise,
        training_memory,
        training_tiers,
        shuffles,
    )
}
"""Tables by the name that documents use."""


def _errors(rows: Sequence[Sequence[Any]]) -> list[list[str]]:
    return [[name, f"{100 * mean:.2f} %", f"{100 * worst:.1f} %"] for name, mean, worst in rows]
