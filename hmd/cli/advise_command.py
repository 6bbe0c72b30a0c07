# SPDX-License-Identifier: MIT
"""``hmd advise``: how much fast memory targets need, and who gains by more."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Final

from hmd.cli.output import console, format_bytes, format_share, print_json, table
from hmd.control.client import ask

DESCRIPTION = """\
Show how much fast memory each target needs, and its runtime with less or more of it.

From the heat that the running daemon has seen, without recordings. Runtimes are relative to now:
0.90x is a tenth faster. Sizes include what is kept free for allocations. Where waits for memory are
not counted, programs that bandwidth limits gain and lose more than shown.
"""

EXAMPLES = """\
examples:
  hmd advise                          needs and runtimes of each target, those that gain most first
  hmd advise --json | jq '.targets[] | {name, demand}'
"""

_SHOWN_STEPS: Final = (0.5, 1.5, 2.0)
"""Sizes of fast memory, over those of now, that have a column; the others are in the JSON."""

OPTIONS = """\
--socket
--json         print JSON: bytes, and runtimes over that of now
"""


def run(args: argparse.Namespace) -> None:
    """Print what the daemon's last count of pages says."""
    from hmd.metrics.status import FAST_STEPS, NEEDED_SHARES

    status = ask(args.socket, "status")
    if args.json:
        print_json(advice(status))
        return
    out = console()
    known = [target for target in status["targets"] if target.get("demand")]
    if not known:
        out.print(
            "nothing to advise yet: the daemon counts the pages of targets every ten seconds, and "
            "follows none so far (hmd status)"
        )
        return
    known.sort(key=lambda target: _runtime(target["demand"], FAST_STEPS[-1]) or 1.0)
    rows = [_row(target["name"], sum(target["resident_bytes"]), target) for target in known]
    everything = sum(sum(target["resident_bytes"]) for target in known)
    fast = sum(target["resident_bytes"][0] for target in known)
    rows.append(_row("all", everything, {"resident_bytes": [fast], "demand": status.get("demand")}))
    needs = [f"{share:.0%} of accesses in" for share in NEEDED_SHARES]
    sizes = [f"{step:g}x fast" for step in _SHOWN_STEPS]
    columns = ["memory", "fast now", *needs, *sizes]
    out.print(table(["target", *columns], rows, right=columns), crop=False)
    for line in _sentences(status, everything, fast):
        out.print(line, markup=False)


def advice(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a status that is advice."""
    from hmd.metrics.status import FAST_STEPS, NEEDED_SHARES

    names = ("name", "resident_bytes", "fast_share", "demand")
    return {
        "needed_shares": NEEDED_SHARES,
        "fast_steps": FAST_STEPS,
        "all": status.get("demand"),
        "targets": [{name: target.get(name) for name in names} for target in status["targets"]],
    }


def _row(name: str, memory: int, target: Mapping[str, Any]) -> list[str]:
    from hmd.metrics.status import NEEDED_SHARES

    demand = target["demand"] or {"needed_bytes": [None] * len(NEEDED_SHARES), "runtime": []}
    return [
        name,
        format_bytes(memory),
        format_bytes(target["resident_bytes"][0]),
        *map(format_bytes, demand["needed_bytes"]),
        *(_times(_runtime(demand, step)) for step in _SHOWN_STEPS),
    ]


def _times(runtime: float | None) -> str:
    return "-" if runtime is None else f"{runtime:.2f}x"


def _runtime(demand: Mapping[str, Any], step: float) -> float | None:
    """Return the runtime with ``step`` times the fast memory of now; None where not known."""
    from hmd.metrics.status import FAST_STEPS

    runtime = demand["runtime"]
    return float(runtime[FAST_STEPS.index(step)]) if runtime else None


def _sentences(status: Mapping[str, Any], memory: int, fast: int) -> list[str]:
    """Return what an administrator may do with it."""
    from hmd.metrics.status import FAST_STEPS

    demand = status.get("demand")
    if len(status["tiers"]) < 2:
        return ["one memory tier: nothing to gain by moving pages (hmd topology)"]
    if demand is None or not demand["runtime"]:
        return ["runtimes are shown once the CPU time of all processes is known"]
    lines = []
    double = _runtime(demand, FAST_STEPS[-1]) or 1.0
    if double < 0.99:
        lines.append(
            f"with twice the fast memory ({format_bytes(2 * fast)}) all targets together take "
            f"{format_share(1 - double)} less time"
        )
    least = next(step for step in FAST_STEPS if (_runtime(demand, step) or 9.0) <= 1.02)
    if least < 1:
        lines.append(
            f"{least:g}x of the fast memory of now ({format_bytes(least * fast)}) costs at most "
            "2 % of the time: the rest could be drained (hmd drain) or given to others"
        )
    elif not lines:
        lines.append("fast memory is as large as it needs to be")
    slow = status["tier_bytes"][1:]
    if slow and memory - fast == 0:
        lines.append("all targets lie in the fastest tier: the slower nodes can be drained")
    return lines
