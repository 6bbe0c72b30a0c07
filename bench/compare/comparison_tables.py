"""Tables of the comparison, made from policies.json; every figure by modelled and by guest time.

Each function takes the results by the name of their file and returns a Markdown table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from bench.compare.comparison_case import SWEPT, THP, WHOLE
from bench.documents.markdown_table import table

Results = Mapping[str, Any]
Key = tuple[str, str, str]
FIRST: Final = "first-touch"
CONSTANT: Final = ("all-fast", "all-slow")
LAST: Final = "oracle"
CLOCKS: Final = ("modelled_seconds", "guest_seconds")
_MEANS: Final = ("best_peer", "kernel", "first_touch", "all_fast")
_OPTIONAL: Final = (*CONSTANT, LAST, "over all fast", "over oracle")
"""Columns of reference runs, which results may lack."""


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
            base = took.get((program, ratio, FIRST))
            if base is None:
                continue
            speeds = {s: base[CLOCKS[0]] / c[CLOCKS[0]] for s, c in _of(took, program, ratio)}
            if speeds.keys() == {FIRST}:
                continue
            best = f"{max((speeds[s] for s in movers if s in speeds), default=0.0):.2f}"
            others = [(program, WHOLE, s) for s in CONSTANT] + [(program, ratio, LAST)]
            cells = [_cell(base, took.get((program, ratio, s)), best) for s in movers]
            cells += [_cell(base, took.get(key), "") for key in others]
            seconds = f"{base[CLOCKS[0]]:.3f}, {base[CLOCKS[1]]:.0f}"
            rows.append([program, ratio, seconds, *cells])
    head = ["program", "ratio", f"{FIRST}, s", *movers, *CONSTANT, LAST]
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
        base = took[program, ratio, FIRST][CLOCKS[0]]
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


def _of(took: Mapping[Key, Any], program: str, ratio: str) -> Iterable[tuple[str, Any]]:
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
    return [s for s in names if s not in (*CONSTANT, FIRST) and not s.endswith((SWEPT, THP))]
