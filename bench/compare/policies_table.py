"""The comparison's tables, as they stand in docs/explanation/comparison.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.compare.comparison_case import RATIOS, WHOLE

FIRST = "first-touch"
CONSTANT = ("all-fast", "all-slow")
LAST = "oracle"


def tables(document: Mapping[str, Any]) -> str:
    """Return what each system makes of each program, what moves, and what it comes to."""
    return "\n\n".join((_speeds(document), _moves(document), _figures(document))) + "\n"


def _speeds(document: Mapping[str, Any]) -> str:
    """Return times of first touch over those of each system; the best that is no oracle in bold."""
    took = _column(document, "modelled_seconds")
    movers = [s for s in document["systems"] if s not in (*CONSTANT, FIRST)]
    head = ["program", "ratio", f"{FIRST}, s", *movers, *CONSTANT, LAST]
    rows = []
    for program in document["programs"]:
        for ratio in (r for r in RATIOS if r in document["ratios"]):
            base = took.get((program, ratio, FIRST))
            if base is None:
                continue
            speeds = {s: base / t for s in movers if (t := took.get((program, ratio, s)))}
            best = max(speeds.values(), default=0.0)
            others = {s: took.get((program, WHOLE, s)) for s in CONSTANT}
            others[LAST] = took.get((program, ratio, LAST))
            rows.append(
                [program, ratio, f"{base:.3f}"]
                + [_bold(speeds.get(s), best) for s in movers]
                + [f"{base / t:.2f}" if t else "-" for t in others.values()]
            )
    return _table(head, rows)


def _moves(document: Mapping[str, Any]) -> str:
    """Return MiB moved a modelled second, of the systems that move."""
    took, moved = _column(document, "modelled_seconds"), _column(document, "migrated_bytes")
    movers = [s for s in document["systems"] if s not in (*CONSTANT, FIRST)]
    rows = []
    for ratio in (r for r in RATIOS if r in document["ratios"]):
        row = [ratio]
        for system in movers:
            keys = [key for key in took if key[1:] == (ratio, system)]
            seconds = sum(took[key] for key in keys)
            row.append(f"{sum(moved[key] for key in keys) / seconds / 2**20:.1f}" if keys else "-")
        rows.append(row)
    return _table(["ratio", *movers], rows)


def _figures(document: Mapping[str, Any]) -> str:
    head = ["policy", "over best peer", "over kernel tiering", "over first touch"]
    head += ["worst over first touch", "over all fast", "over oracle", "moved over kernel tiering"]
    rows = []
    for name, found in document["policies"].items():
        both = [
            "/".join(_number(found[clock][key]) for clock in ("modelled", "guest"))
            for key in (
                "geomean_vs_best_peer",
                "geomean_vs_kernel",
                "geomean_vs_first_touch",
                "worst_vs_first_touch",
                "geomean_vs_all_fast",
            )
        ]
        rest = [_number(found[key]) for key in ("geomean_vs_oracle", "moved_vs_kernel_tiering")]
        rows.append([name, *both, *rest])
    return _table(head, rows)


def _column(document: Mapping[str, Any], name: str) -> dict[tuple[str, str, str], float]:
    return {(c["program"], c["ratio"], c["system"]): c[name] for c in document["cases"]}


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _bold(speed: float | None, best: float) -> str:
    if speed is None:
        return "-"
    return f"**{speed:.2f}**" if f"{speed:.2f}" == f"{best:.2f}" else f"{speed:.2f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
