# SPDX-License-Identifier: MIT
"""Tables of the comparison, made from policies.json; every figure by modelled and by guest time.

Each function takes the results by the name of their file and returns a Markdown table.

Summary figures of the cases: hmd versus its peers, first touch and the static oracle.

All are ratios of runtimes, theirs over hmd's, so that hmd is faster above 1. Means are geometric,
over programs and ratios; by modelled time and by the guest's clock. A missing case drops out of
the figures that need it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.compare.comparison_case import RATIOS, SWEPT, THP, WHOLE, ComparisonCase, ComparisonTrial
from bench.compare.systems import ALL_FAST, FIRST, KERNEL, KERNEL_DEFAULTS, PEERS
from bench.documents.markdown import table

Results = Mapping[str, Any]
Key = tuple[str, str, str]
FIRST_TOUCH: Final = "first-touch"
CONSTANT: Final = ("all-fast", "all-slow")
LAST: Final = "oracle"
CLOCKS: Final = ("modelled_seconds", "guest_seconds")
_MEANS: Final = ("best_peer", "kernel", "first_touch", "all_fast")
_OPTIONAL: Final = (*CONSTANT, LAST, "over all fast", "over oracle")
"""Columns of reference runs, which results may lack."""

Seconds = Mapping[ComparisonCase, float]
MODELLED, GUEST = "modelled_seconds", "guest_seconds"


def speedups(results: Results) -> str:
    """Return first touch's time over that of each system, by modelled and by guest time.

    The range of the runs by modelled time follows where there is more than one; the best system
    but for the oracle is bold. Reference runs that the results lack have no column.
    """
    found = results["policies"]
    took = {(c["program"], c["ratio"], c["system"]): c for c in found["cases"]}
    movers = _movers(found)
    rows = []
    for program in found["programs"]:
        for ratio in found["ratios"]:
            base = took.get((program, ratio, FIRST_TOUCH))
            if base is None:
                continue
            speeds = {s: base[CLOCKS[0]] / c[CLOCKS[0]] for s, c in _case_of(took, program, ratio)}
            if speeds.keys() == {FIRST_TOUCH}:
                continue
            best = f"{max((speeds[s] for s in movers if s in speeds), default=0.0):.2f}"
            others = [(program, WHOLE, s) for s in CONSTANT] + [(program, ratio, LAST)]
            cells = [_cell(base, took.get((program, ratio, s)), best) for s in movers]
            cells += [_cell(base, took.get(key), "") for key in others]
            seconds = f"{base[CLOCKS[0]]:.3f}, {base[CLOCKS[1]]:.0f}"
            rows.append([program, ratio, seconds, *cells])
    head = ["program", "ratio", f"{FIRST_TOUCH}, s", *movers, *CONSTANT, LAST]
    return _known(head, rows, text=1)


def classes(results: Results) -> str:
    """Return what each policy comes to by class of programs: modelled time, then guest time."""
    found = results["policies"]
    members: dict[str, list[str]] = {}
    for program, its in found["class"].items():
        members.setdefault(its, []).append(program)
    rows = []
    for policy, figures in found["policies"].items():
        for its, both in figures["by_class"].items():
            cells = [_pair(both, f"geomean_vs_{mean}") for mean in _MEANS]
            cells.append(_pair(both, "worst_vs_first_touch"))
            rows.append([policy, its, ", ".join(members[its]), *cells])
    head = ["policy", "class", "programs", "over best peer", "over kernel tiering"]
    head += ["over first touch", "over all fast", "worst over first touch"]
    return _known(head, rows, text=3)


def ratios(results: Results) -> str:
    """Return what each policy comes to by ratio, over its programs: modelled, then guest time."""
    found = results["policies"]
    rows = []
    for policy, figures in found["policies"].items():
        for ratio, both in figures["by_ratio"].items():
            ran = {
                c["program"] for c in found["cases"] if (c["ratio"], c["system"]) == (ratio, policy)
            }
            if not ran:
                continue
            cells = [_pair(both, f"geomean_vs_{mean}") for mean in _MEANS[:3]]
            rows.append([policy, ratio, str(len(ran)), *cells, _pair(both, "worst_vs_first_touch")])
    head = ["policy", "ratio", "programs", "over best peer", "over kernel tiering"]
    return table([*head, "over first touch", "worst over first touch"], rows, text=2)


def swept(results: Results) -> str:
    """Return speeds over first touch with a fast node full of page cache, and with a free one.

    Both by modelled time, over first touch on the full node; one row per program and ratio.
    """
    return _beside(results["policies"]["cases"], SWEPT)


def huge_paged(results: Results) -> str:
    """Return speeds over first touch with pages of 4 KiB, and with transparent huge pages.

    Both by modelled time, over first touch with pages of 4 KiB; one row per program and ratio.
    """
    return _beside(results["policies"]["huge_pages"], THP)


def _beside(cases: Sequence[Mapping[str, Any]], ending: str) -> str:
    took = {(c["program"], c["ratio"], c["system"]): c for c in cases}
    names = dict.fromkeys(key[2].removesuffix(ending) for key in took if key[2].endswith(ending))
    rows = []
    for program, ratio in dict.fromkeys(key[:2] for key in took if key[2].endswith(ending)):
        base = took[program, ratio, FIRST_TOUCH][CLOCKS[0]]
        cells = []
        for name in names:
            both = [took.get((program, ratio, name + end)) for end in ("", ending)]
            cells.append(", ".join(f"{base / c[CLOCKS[0]]:.2f}" if c else "-" for c in both))
        rows.append([program, ratio, *cells])
    return table(["program", "ratio", *names], rows, text=1)


def moved(results: Results) -> str:
    """Return MiB moved per second of modelled and of guest time by the systems that move."""
    found = results["policies"]
    movers = _movers(found)
    rows = []
    for ratio in found["ratios"]:
        row = [ratio]
        for system in movers:
            cases = [c for c in found["cases"] if (c["ratio"], c["system"]) == (ratio, system)]
            mib = sum(case["migrated_bytes"] for case in cases) / 2**20
            seconds = [sum(case[clock] for case in cases) for clock in CLOCKS]
            row.append(", ".join(f"{mib / s:.1f}" for s in seconds) if cases else "-")
        rows.append(row)
    return table(["ratio", *movers], rows, text=1)


def summary(results: Results) -> str:
    """Return what each policy comes to over the cases: modelled time, then guest time."""
    names = [f"geomean_vs_{mean}" for mean in _MEANS[:3]]
    names += ["worst_vs_first_touch", "geomean_vs_all_fast"]
    rows = []
    for policy, found in results["policies"]["policies"].items():
        both = [_pair(found, name) for name in names]
        rest = [_figure(found[key]) for key in ("geomean_vs_oracle", "moved_vs_kernel_tiering")]
        rows.append([policy, *both, *rest])
    head = ["policy", "over best peer", "over kernel tiering", "over first touch"]
    head += ["worst over first touch", "over all fast", "over oracle", "bytes over kernel tiering"]
    return _known(head, rows, text=1)


def contention(results: Results) -> str:
    """Return guest time over modelled time by system, the host's part, and time asleep.

    Programs slept for that share of the modelled time of the cases in which it is known.
    """
    found = results["policies"]
    rows = []
    for system in found["systems"]:
        cases = [case for case in found["cases"] if case["system"] == system]
        modelled, guest = (sum(case[clock] for case in cases) for clock in CLOCKS)
        waits = [case["host_wait_seconds"] for case in cases if "host_wait_seconds" in case]
        share = _percent(sum(waits) / guest) if waits else "-"
        known = [case for case in cases if case.get("asleep_seconds") is not None]
        took, asleep = (sum(case[of] for case in known) for of in (CLOCKS[0], "asleep_seconds"))
        slept = f"{_percent(asleep / took)} ({len(known)})" if known else "-"
        over = f"{guest / modelled:.1f}"
        rows.append([system, f"{modelled:.1f}", f"{guest:,.0f}", over, share, slept])
    head = ["system", "modelled s", "guest s", "guest over modelled"]
    head += ["of guest time, waiting for a CPU of the host", "asleep, over modelled (cases)"]
    return table(head, rows, text=1)


def _known(head: Sequence[str], rows: Sequence[Sequence[str]], text: int) -> str:
    """Return a table without the columns of reference runs that no row has a figure of."""
    unknown = ("-", "-, -")
    kept = [
        column
        for column, name in enumerate(head)
        if name not in _OPTIONAL or any(row[column] not in unknown for row in rows)
    ]
    shown = [[row[column] for column in kept] for row in rows]
    return table([head[column] for column in kept], shown, text)


def _percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


def _case_of(took: Mapping[Key, Any], program: str, ratio: str) -> Iterable[tuple[str, Any]]:
    return ((key[2], case) for key, case in took.items() if key[:2] == (program, ratio))


def _cell(base: Mapping[str, Any], case: Mapping[str, Any] | None, best: str) -> str:
    """Return the speed of a case over the base by both clocks, with the range of its runs."""
    if case is None:
        return "-"
    first, *rest = (f"{base[clock] / case[clock]:.2f}" for clock in CLOCKS if case[clock])
    text = f"**{first}**" if first == best else first
    runs = [base[CLOCKS[0]] / run[CLOCKS[0]] for run in case.get("runs", ())]
    if len(runs) > 1:
        text += f" ({min(runs):.2f} to {max(runs):.2f})"
    return ", ".join((text, *rest))


def _pair(found: Mapping[str, Any], name: str) -> str:
    return f"{_figure(found['modelled'][name])}, {_figure(found['guest'][name])}"


def _figure(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"


def _movers(document: Mapping[str, Any]) -> Sequence[str]:
    names: Sequence[str] = document["systems"]
    return [s for s in names if s not in (*CONSTANT, FIRST_TOUCH) and not s.endswith((SWEPT, THP))]


def seconds(
    trials: Mapping[ComparisonCase, ComparisonTrial], clock: str
) -> dict[ComparisonCase, float]:
    """Return the runtime of each case by a clock, ``MODELLED`` or ``GUEST``."""
    return {case: float(getattr(trial, clock)) for case, trial in trials.items()}


def over_best(
    found: Seconds, ours: str, peers: Sequence[str] = PEERS
) -> dict[ComparisonCase, float]:
    """Return the best peer's runtime over ours, for each of our cases."""
    return {
        case: min(theirs) / took
        for case, took in _of(found, ours)
        if (theirs := _runtimes_of(found, case, peers))
    }


def over_whole(
    found: Seconds, ours: str, whole: str = ALL_FAST.name
) -> dict[ComparisonCase, float]:
    """Return the runtime on nodes of unlimited size over ours."""
    unlimited = {case.program: took for case, took in found.items() if case.system == whole}
    return {
        c: unlimited[c.program] / took for c, took in _of(found, ours) if c.program in unlimited
    }


def over_oracle(found: Seconds, ours: str, oracle: Seconds) -> dict[ComparisonCase, float]:
    """Return the oracle's runtime over ours; the system in the keys of ``oracle`` is ignored."""
    known = {(case.program, case.ratio): took for case, took in oracle.items()}
    return {
        case: known[case.program, case.ratio] / took
        for case, took in _of(found, ours)
        if (case.program, case.ratio) in known
    }


def moved_over_kernel(trials: Mapping[ComparisonCase, ComparisonTrial], ours: str) -> float | None:
    """Return migrated bytes per second, ours over those of kernel tiering, over all cases."""
    rates = []
    for name in (ours, KERNEL.name):
        of = [trial for case, trial in trials.items() if case.system == name]
        took = sum(trial.modelled_seconds for trial in of)
        rates.append(sum(trial.migrated_bytes for trial in of) / took if took else 0.0)
    return rates[0] / rates[1] if rates[1] else None


def geomean(values: Iterable[float]) -> float | None:
    """Return the geometric mean; None without values."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def worst(values: Iterable[float]) -> float | None:
    """Return the minimum; None without values."""
    return min(values, default=None)


def by_class(found: Seconds, classes: Mapping[str, str]) -> dict[str, dict[ComparisonCase, float]]:
    """Return the runtimes of each class of programs; ``classes`` has the class of each program."""
    return {
        name: {case: took for case, took in found.items() if classes[case.program] == name}
        for name in sorted({classes[case.program] for case in found})
    }


def by_ratio(found: Seconds) -> dict[str, dict[ComparisonCase, float]]:
    """Return the runtimes at each ratio of fast to slow memory, and on nodes of unlimited size."""
    whole = {case: took for case, took in found.items() if case.ratio == WHOLE}
    return {
        ratio: whole | {case: took for case, took in found.items() if case.ratio == ratio}
        for ratio in RATIOS
        if any(case.ratio == ratio for case in found)
    }


@dataclass(frozen=True, slots=True)
class Figures:
    """Summary figures of hmd with one policy, by one clock; None where cases are missing."""

    geomean_vs_best_peer: float | None
    geomean_vs_kernel: float | None
    geomean_vs_first_touch: float | None
    worst_vs_first_touch: float | None
    geomean_vs_all_fast: float | None

    @classmethod
    def of(cls, found: Seconds, ours: str) -> Figures:
        """Return the figures of a system from the runtimes of all cases."""
        touch = over_best(found, ours, (FIRST.name,)).values()
        return cls(
            geomean(over_best(found, ours).values()),
            geomean(over_best(found, ours, (KERNEL.name, KERNEL_DEFAULTS.name)).values()),
            geomean(touch),
            worst(touch),
            geomean(over_whole(found, ours).values()),
        )


def _of(found: Seconds, system: str) -> list[tuple[ComparisonCase, float]]:
    return [(case, took) for case, took in found.items() if case.system == system]


def _runtimes_of(found: Seconds, case: ComparisonCase, systems: Sequence[str]) -> list[float]:
    others = (ComparisonCase(case.program, case.ratio, system) for system in systems)
    return [found[other] for other in others if other in found]
