"""``hmd heatmap``: a plot of heat and tier of a process's memory over the last minutes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmd.cli.status_command import add_socket
from hmd.errors import Exit

if TYPE_CHECKING:
    from hmd.cli.main import Subparsers

DESCRIPTION = """\
Draw the heat and the tier of each part of a process's memory during the last ticks.

The daemon keeps 300 ticks of its largest processes. Pictures need matplotlib (extra plot).
"""

EXAMPLES = """\
examples:
  hmd heatmap --pid 4711 -o redis.png    time on x, addresses on y; left heat, right tier
  hmd heatmap --json                     the data, for other programs
"""


def add_parser(subparsers: Subparsers) -> None:
    """Register ``hmd heatmap``."""
    parser = subparsers.add_parser(
        "heatmap",
        help="draw heat and tier of a process's memory over time",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    add_socket(parser)
    parser.add_argument(
        "--pid", type=int, help="the process (default: the only one, with --json all)"
    )
    output = parser.add_mutually_exclusive_group(required=True)
    output.add_argument("-o", "--output", type=Path, metavar="FILE", help="a .png, .svg or .pdf")
    output.add_argument(
        "--json", action="store_true", help="print JSON: seconds, 2 MiB chunks, pages by tier"
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Query the daemon and draw."""
    from hmd.cli.output import print_json_line
    from hmd.control.client import ask

    document = ask(args.socket, "heatmap")
    if args.json:
        print_json_line(document if args.pid is None else _of_process(document, args.pid))
        return Exit.OK
    from hmd.cli.plots.heatmap_plot import draw

    pid = args.pid if args.pid is not None else _only_pid(document)
    draw(document, pid, args.output)
    print(f"wrote {args.output}")
    return Exit.OK


def _of_process(document: dict[str, Any], pid: int) -> dict[str, Any]:
    """Return the heat map with one process alone. Raises TargetError where it has none of it."""
    from hmd.observe.heat_grid import grid

    grid(document, pid)
    moments = [
        {**moment, "processes": [each for each in moment["processes"] if each["pid"] == pid]}
        for moment in document["moments"]
    ]
    return {**document, "moments": moments}


def _only_pid(document: dict[str, Any]) -> int:
    from hmd.errors import TargetError
    from hmd.observe.heat_grid import pids

    found = pids(document)
    if len(found) != 1:
        known = ", ".join(map(str, found)) or "none yet"
        raise TargetError(f"name a process with --pid; the daemon has heat maps of: {known}")
    return found[0]
