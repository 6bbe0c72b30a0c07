# SPDX-License-Identifier: MIT
"""``hmd heatmap``: heat and tier of a process's memory over the last minutes, drawn or as text."""

from __future__ import annotations

import argparse
from typing import Any

from hmd.base.errors import TargetError
from hmd.cli.output import print_heat, print_json_line
from hmd.control.client import ask

DESCRIPTION = """\
Show the heat of each part of a process's memory during the last ticks: as text, or as a picture
with its tier.

The daemon keeps 300 ticks of its largest processes. Pictures need matplotlib (extra plot).
"""

EXAMPLES = """\
examples:
  hmd heatmap --pid 4711                 time on x, addresses on y; @ is hottest
  hmd heatmap --pid 4711 -o redis.png    time on x, addresses on y; above heat, below tier
  hmd heatmap --json                     the data, for other programs
"""

OPTIONS = """\
--socket
--pid PID            the process (default: the only one, with --json all)
| -o, --output FILE  draw a .png, .svg or .pdf
| --json             print JSON: seconds, bins of at most 2 MiB, pages by tier
"""


def run(args: argparse.Namespace) -> None:
    """Query the daemon and draw."""
    document = ask(args.socket, "heatmap")
    if args.json:
        print_json_line(document if args.pid is None else _of_process(document, args.pid))
        return
    pid = args.pid if args.pid is not None else _only_pid(document)
    if args.output is None:
        from hmd.metrics.heat_map import grid

        seen = grid(document, pid)
        print_heat(seen.heat, seen.address, f"{seen.seconds[-1] - seen.seconds[0]:.0f} s")
        return
    from hmd.cli.plots import check_picture, draw_heatmap

    check_picture(args.output, "or use --json")
    draw_heatmap(document, pid, args.output)
    print(f"wrote {args.output}")


def _of_process(document: dict[str, Any], pid: int) -> dict[str, Any]:
    """Return the heat map with one process alone. Raises TargetError where it has none of it."""
    from hmd.metrics.heat_map import grid

    grid(document, pid)
    moments = [
        {**moment, "processes": [each for each in moment["processes"] if each["pid"] == pid]}
        for moment in document["moments"]
    ]
    return {**document, "moments": moments}


def _only_pid(document: dict[str, Any]) -> int:
    from hmd.metrics.heat_map import pids

    found = pids(document)
    if len(found) != 1:
        known = ", ".join(map(str, found)) or "none yet"
        raise TargetError(f"name a process with --pid; the daemon has heat maps of: {known}")
    return found[0]
