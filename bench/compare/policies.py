# SPDX-License-Identifier: MIT
"""hmd compared with other tiering systems in the guest; writes build/policies.json, .md and .png.

    python -m bench.compare.policies                               all (`make bench-policies`)
    python -m bench.compare.policies --fresh                       all, without stored results
    python -m bench.compare.policies --known                       none: only stored results
    python -m bench.compare.policies --known --guest-only          these without the oracle
    python -m bench.compare.policies --latest --guest-only         also results of earlier code
    python -m bench.compare.policies drift:1:8:hmd:benefit,...     these, versus committed results
    python -m bench.compare.policies --resume drift:1:8:...        those of them without a result

Real programs on the real kernel of the emulated machine, each alone on a CPU, with a third, a ninth
and a seventeenth of its footprint as fast memory, under each system in turn. Each case runs three
times; the median run by modelled time counts. Results are stored in build/compare, so that an
interrupted run continues; a run takes 30 to 90 s on two idle CPUs. A run of all runs only cases
that changed: a committed result is reused where the digest of all that it depends on is the same,
and names the commit that was measured. With --latest, a case that changed and did not run keeps its
last result, whose row names an earlier commit.

The plot of the comparison: speed of each system over first touch, by program and ratio.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bench.compare.campaign import CampaignResults, run_cases
from bench.compare.comparison_case import (
    RATIOS,
    THP,
    CaseResult,
    ComparisonCase,
    results,
    rows,
)
from bench.compare.simulations import ORACLE, Simulation, oracle_seconds, simulations
from bench.compare.systems import FIRST, HMD_DEFAULT, REFERENCES, RUNS, cases_of, systems
from bench.compare.tables import (
    GUEST,
    MODELLED,
    Figures,
    by_class,
    by_ratio,
    classes,
    contention,
    geomean,
    huge_paged,
    moved,
    moved_over_kernel,
    over_oracle,
    ratios,
    seconds,
    speedups,
    swept,
)
from bench.compare.tables import summary as policy_summary
from bench.compare.testbed import DILATION, PRESET
from bench.documents.markdown import commit, measured_with
from bench.suite.program import load_program
from hmd.base.errors import HmdError
from hmd.cli.plots import picture

PROGRAMS = (
    *("betweenness", "drift", "index", "phases", "sat", "updates_moving", "updates_scattered"),
    *("bfs", "cg", "compress", "pagerank", "redis", "xslookup"),
    *("memcopy", "gups"),
    *("histogram", "ranks", "diffusion"),
)
"""Hot sets that move (continuously: drift; at once: updates_*, index; in phases: betweenness,
phases, sat, histogram), hot sets that stay, streams (memcopy, diffusion) and uniform accesses
(gups). histogram, ranks and diffusion have several threads."""

LARGE = ("updates_large_moving", "updates_large_scattered")
"""Programs of 128 MiB, with hot sets that fill huge pages and that lie scattered in them: run at
1:2 with pages of 4 KiB and with huge pages, and in no mean over programs."""


_MARKS: Final = {
    "kernel-tiering": ("s", "0.55"),
    "damon": ("o", "tab:orange"),
    HMD_DEFAULT: ("D", "tab:blue"),
}
"""Marker and colour of each system that is drawn; apart without colours too."""


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Draw the speed of each system over first touch: a panel per ratio, a row per program."""
    took = _seconds_of(document)
    ratios = [r for r in document["ratios"] if any(key[1] == r for key in took)]
    programs = sorted(
        document["programs"], key=lambda name: _speed(took, name, ratios[0], HMD_DEFAULT)
    )
    height = 1.6 + 0.23 * len(programs)
    with picture(path, 1, len(ratios), squeeze=False, sharey=True, figsize=(7, height)) as drawn:
        figure, axes = drawn
        for axis, ratio in zip(axes[0], ratios, strict=True):
            for system, (marker, colour) in _MARKS.items():
                speed = [_speed(took, name, ratio, system) or None for name in programs]
                label = f"hmd ({system.partition(':')[2]})" if ":" in system else system
                axis.plot(
                    speed, range(len(programs)), marker, color=colour, label=label, markersize=6
                )
            axis.axvline(1, color="black", linewidth=0.8)
            axis.set_title(f"fast memory {ratio}", fontsize=10)
            axis.grid(alpha=0.4)
        axes[0, 0].set_yticks(range(len(programs)), programs)
        figure.supxlabel("speed over first touch (right of the line is faster)", fontsize=10)
        figure.suptitle("  ", fontsize=14)
        handles = axes[0, 0].get_legend_handles_labels()
        figure.legend(*handles, loc="upper center", ncols=len(_MARKS), frameon=False)


def draw_policies(document: Mapping[str, Any], path: Path) -> None:
    """Draw the speed of each of hmd's policies over first touch, where all of them ran."""
    took, ratio = _seconds_of(document), document["ratios"][0]
    names = [name for name in document["systems"] if name.startswith("hmd:") and "@" not in name]
    programs = [
        program
        for program in document["programs"]
        if all(_speed(took, program, ratio, name) for name in names)
    ]
    rows = sorted(
        [[_speed(took, program, ratio, name) for name in names] for program in programs],
        key=lambda row: -row[names.index(HMD_DEFAULT)],
    )
    programs.sort(key=lambda program: -_speed(took, program, ratio, HMD_DEFAULT))
    with picture(path, figsize=(7, 1.2 + 0.3 * len(programs))) as (figure, axes):
        axes.imshow(rows, cmap="Blues", aspect="auto", vmin=0.8)
        for row, speeds in enumerate(rows):
            for column, speed in enumerate(speeds):
                best = "bold" if speed == max(speeds) else "normal"
                dark = "white" if speed > 0.6 * max(map(max, rows)) + 0.32 else "black"
                axes.text(
                    column, row, f"{speed:.2f}", ha="center", va="center", color=dark, weight=best
                )
        axes.set_xticks(range(len(names)), [name.partition(":")[2] for name in names])
        axes.set_yticks(range(len(programs)), programs)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        figure.supxlabel(
            f"speed over first touch at {ratio}; the best of a row is bold", fontsize=10
        )


def _seconds_of(document: Mapping[str, Any]) -> dict[tuple[str, str, str], float]:
    return {
        (c["program"], c["ratio"], c["system"]): c["modelled_seconds"] for c in document["cases"]
    }


def _speed(took: Mapping[Any, float], program: str, ratio: str, system: str) -> float:
    """Return first touch's runtime over that of a system; 0 where either is missing."""
    base = took.get((program, ratio, FIRST.name))
    mine = took.get((program, ratio, system))
    return base / mine if base and mine else 0.0


ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "build" / "policies.json"
COMMITTED = ROOT / "docs" / "results" / "policies.json"
FOLDER = ROOT / "build" / "compare"
SUITE = ROOT / "build" / "suite"


def main() -> int:
    """Run the requested cases; write and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "cases", nargs="?", default="", help="cases PROGRAM:RATIO:SYSTEM, separated by commas"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="run all cases, also those with a stored result"
    )
    parser.add_argument(
        "--resume", action="store_true", help="reuse stored results of the named cases"
    )
    parser.add_argument(
        "--known", action="store_true", help="run nothing, summarise stored results"
    )
    parser.add_argument(
        "--latest",
        action="store_true",
        help="as --known, with the last results of cases that changed since, by their commits",
    )
    parser.add_argument(
        "--guest-only",
        action="store_true",
        help="neither the oracle nor simulations, which need a recording of each program",
    )
    parser.add_argument(
        "--runs", type=int, default=RUNS, help=f"most runs of each case (default {RUNS})"
    )
    args = parser.parse_args()
    asked = [text for text in args.cases.split(",") if text]
    began = time.monotonic()

    def say(line: str) -> None:
        passed = int(time.monotonic() - began)
        print(f"[{passed // 60}:{passed % 60:02}] {line}", file=sys.stderr, flush=True)

    committed = json.loads(COMMITTED.read_text()) if COMMITTED.exists() else None
    try:
        cases = [ComparisonCase.parse(text) for text in asked]
        cases = cases or every_case()
        before = known_results(committed) if committed else {}
        summarise = args.known or args.latest
        outcomes = run_cases(
            cases,
            SUITE / "inputs",
            FOLDER,
            say,
            known=() if asked or args.fresh else before.values(),
            of_any_code=before if args.latest else None,
            commit=commit(),
            fresh=not summarise and (args.fresh or (bool(asked) and not args.resume)),
            run=not summarise,
            most_runs=args.runs,
        )
        recorded = {} if args.guest_only else outcomes.trials
        oracle = oracle_seconds(recorded, SUITE, FOLDER, say)
        simulated = simulations(recorded, SUITE, FOLDER, say)
    except HmdError as error:
        print(f"bench-policies: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        say("stopped; results are stored, and a run of all or --resume continues")
        return 130
    document = summary(outcomes, oracle, simulated) | {
        "host_seconds": round(time.monotonic() - began)
    }
    if not asked:
        OUTPUT.parent.mkdir(exist_ok=True)
        OUTPUT.write_text(json.dumps(document, indent=1) + "\n")
        measured = {"policies": document}
        makers = (speedups, classes, ratios, moved, policy_summary, contention, swept, huge_paged)
        OUTPUT.with_suffix(".md").write_text("\n\n".join(make(measured) for make in makers) + "\n")
        draw(document, OUTPUT.with_suffix(".png"))
        draw_policies(document, OUTPUT.with_name("policies-of-hmd.png"))
    show(document, committed)
    if not asked:
        show_figures(document)
        print(f"written: {OUTPUT}")
    return 1 if outcomes.failed else 0


def every_case() -> list[ComparisonCase]:
    """Return the cases of all programs, and of those for huge pages."""
    large = [
        ComparisonCase(program, RATIOS[0], system.name + ending)
        for program in LARGE
        for system in REFERENCES
        for ending in ("", THP)
    ]
    return [*(case for program in PROGRAMS for case in cases_of(program)), *large]


def known_results(document: Mapping[str, Any]) -> dict[ComparisonCase, CaseResult]:
    """Return the results in a JSON document."""
    return results([*document["cases"], *document.get("huge_pages", ())])


def summary(
    outcomes: CampaignResults,
    oracle: Mapping[ComparisonCase, float],
    simulated: Mapping[ComparisonCase, Simulation],
) -> dict[str, Any]:
    """Return the JSON document."""
    large = {c: found for c, found in outcomes.results.items() if c.program in LARGE}
    others = {c: found for c, found in outcomes.results.items() if c.program not in LARGE}
    trials = {case: found.trial for case, found in others.items()}
    clocks = {clock: seconds(trials, clock) for clock in (MODELLED, GUEST)}
    programs = sorted({case.program for case in trials})
    its_class = {name: load_program(name).memory_class for name in programs}
    classed = {clock: by_class(found, its_class) for clock, found in clocks.items()}
    at_ratio = {clock: by_ratio(found) for clock, found in clocks.items()}
    ours = [system.name for system in systems() if system.policy and not system.reference]
    default = {clock: Figures.of(found, HMD_DEFAULT) for clock, found in clocks.items()}
    ran = {case.system for case in trials}
    return {
        "geomean_vs_best_peer": default[MODELLED].geomean_vs_best_peer,
        "worst_vs_first_touch": default[MODELLED].worst_vs_first_touch,
        "geomean_vs_oracle": geomean(over_oracle(clocks[MODELLED], HMD_DEFAULT, oracle).values()),
        "moved_vs_kernel_tiering": moved_over_kernel(trials, HMD_DEFAULT),
        "guest_geomean_vs_best_peer": default[GUEST].geomean_vs_best_peer,
        "guest_worst_vs_first_touch": default[GUEST].worst_vs_first_touch,
        "default": HMD_DEFAULT,
        "policies": {
            name: {
                "geomean_vs_oracle": geomean(over_oracle(clocks[MODELLED], name, oracle).values()),
                "moved_vs_kernel_tiering": moved_over_kernel(trials, name),
                "modelled": asdict(Figures.of(clocks[MODELLED], name)),
                "guest": asdict(Figures.of(clocks[GUEST], name)),
                "by_class": {
                    its: {
                        "modelled": asdict(Figures.of(found, name)),
                        "guest": asdict(Figures.of(classed[GUEST][its], name)),
                    }
                    for its, found in classed[MODELLED].items()
                },
                "by_ratio": {
                    ratio: {
                        "modelled": asdict(Figures.of(found, name)),
                        "guest": asdict(Figures.of(at_ratio[GUEST][ratio], name)),
                    }
                    for ratio, found in at_ratio[MODELLED].items()
                },
            }
            for name in ours
            if name in ran
        },
        "programs": programs,
        "class": its_class,
        "ratios": [ratio for ratio in RATIOS if any(case.ratio == ratio for case in trials)],
        "systems": [system.name for system in systems() if system.name in ran],
        "simulated": {
            str(case): {
                "seconds": found.seconds,
                "over_guest": found.seconds / trials[case].modelled_seconds,
                "times_faster": trials[case].guest_seconds / found.cpu_seconds,
            }
            for case, found in simulated.items()
        },
        "cases": [
            *rows(others),
            *(_oracle_row(case, took) for case, took in oracle.items()),
        ],
        "huge_pages": rows(large),
        "failed": {str(case): why for case, why in outcomes.failed.items()},
        "preset": PRESET,
        "dilation": DILATION,
        **measured_with(),
    }


def _oracle_row(case: ComparisonCase, took: float) -> dict[str, Any]:
    """Return the row of the oracle, which has no guest time and moves nothing."""
    return {
        "program": case.program,
        "ratio": case.ratio,
        "system": ORACLE,
        MODELLED: took,
        GUEST: None,
        "migrated_bytes": 0,
    }


def show(document: Mapping[str, Any], committed: Mapping[str, Any] | None) -> None:
    """Print the cases, with the committed runtimes if there are any."""
    kinds = ("cases", "huge_pages")
    before = {_key(case): case for kind in kinds for case in (committed or {}).get(kind, ())}
    print(
        f"{'program':12} {'ratio':5} {'system':24} {'modelled s':>10} {'guest s':>8} "
        f"{'moved MiB':>9} {'committed s':>11}"
    )
    for case in (case for kind in kinds for case in document[kind]):
        known = before.get(_key(case))
        guest = f"{case[GUEST]:8.1f}" if case[GUEST] is not None else f"{'-':>8}"
        print(
            f"{case['program']:12} {case['ratio']:5} {case['system']:24} {case[MODELLED]:10.3f} "
            f"{guest} {case['migrated_bytes'] / 2**20:9.1f} "
            + (f"{known[MODELLED]:11.3f}" if known else f"{'-':>11}")
        )
    for text, found in document["simulated"].items():
        print(
            f"{text}: simulated {found['seconds']:.3f} s, {found['over_guest']:.3f} of the guest's,"
            f" {found['times_faster']:.0f} times faster than the guest"
        )
    for text, why in document["failed"].items():
        print(f"{text} failed: {why}")


def show_figures(document: Mapping[str, Any]) -> None:
    """Print the summary figures."""
    names = ("geomean_vs_best_peer", "worst_vs_first_touch", "geomean_vs_all_fast")
    print(f"\n{'policy':20} {'clock':9} " + " ".join(f"{name:>21}" for name in names))
    for policy, found in document["policies"].items():
        for clock in ("modelled", "guest"):
            values = (found[clock][name] for name in names)
            print(f"{policy:20} {clock:9} " + " ".join(f"{_ratio(v):>21}" for v in values))
        print(
            f"{'':20} over the oracle {_ratio(found['geomean_vs_oracle'])}, moved per second over "
            f"kernel tiering {_ratio(found['moved_vs_kernel_tiering'])}"
        )


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _key(case: Mapping[str, Any]) -> Sequence[str]:
    return (case["program"], case["ratio"], case["system"])


if __name__ == "__main__":
    sys.exit(main())
