# SPDX-License-Identifier: MIT
"""``hmd heatmap``: a plot of heat and tier of a process's memory over the last minutes."""

from __future__ import annotations

import argparse
from typing import Any

from hmd.base.errors import TargetError
from hmd.cli.output import print_json_line
from hmd.control.client import ask

DESCRIPTION = """\
Draw the heat and the tier of each part of a process's memory during the last ticks.

The daemon keeps 300 ticks of its largest processes. Pictures need matplotlib (extra plot).
"""

EXAMPLES = """\
examples:
  hmd heatmap --pid 4711 -o redis.png    time on x, addresses on y; above heat, below tier
  hmd heatmap --json                     the data, for other programs
"""

OPTIONS = """\
--socket
--pid PID            the process (default: the only one, with --json all)
| -o, --output FILE  a .png, .svg or .pdf
| --json             print JSON: seconds, bins of at most 2 MiB, pages by tier
"""

REQUIRED = ("|",)


def run(args: argparse.Namespace) -> None:
    """Query the daemon and draw."""
    document = ask(args.socket, "heatmap")
    if args.json:
        print_json_line(document if args.pid is None else _of_process(document, args.pid))
        return
    from hmd.cli.plots import check_picture, draw_heatmap

    check_picture(args.output, "or use --json")
    pid = args.pid if args.pid is not None else _only_pid(document)
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
