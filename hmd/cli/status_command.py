"""``hmd status``: the daemon's state, and the memory of each process by tier."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmd.errors import Exit

if TYPE_CHECKING:
    from hmd.cli.main import Subparsers

DEFAULT_SOCKET = Path("/run/hmd/hmd.sock")

EXAMPLES = """\
examples:
  hmd status                                    daemon, sampler, memory of each process by tier
  hmd status --json | jq .moves                 the same for programs
  hmd status --check                            exit code 1 where ticks do not end in time
  hmd status --socket /run/user/1000/hmd.sock   a daemon with another observe.socket

Exit code 6 if no daemon answers.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Register ``hmd status``."""
    parser = subparsers.add_parser(
        "status",
        help="show the daemon's state and where each process's pages are",
        description="Show what the running daemon does, and the memory of each process by tier.",
        epilog=EXAMPLES,
    )
    add_socket(parser)
    parser.add_argument("--json", action="store_true", help="print JSON: bytes, seconds, shares")
    parser.add_argument(
        "--check",
        action="store_true",
        help="print the age of the last tick only; exit code 1 where it is too old (for probes)",
    )
    parser.set_defaults(func=run)


def add_socket(parser: argparse.ArgumentParser) -> None:
    """Add ``--socket``."""
    parser.add_argument(
        "--socket",
        type=Path,
        default=DEFAULT_SOCKET,
        metavar="PATH",
        help=f"the daemon's status socket (default {DEFAULT_SOCKET})",
    )


def run(args: argparse.Namespace) -> int:
    """Print the daemon's answer."""
    from hmd.cli.output import print_json
    from hmd.control.client import ask

    if args.check:
        health = ask(args.socket, "health")
        if args.json:
            print_json(health)
        else:
            print(health["text"])
        return Exit.OK if health["healthy"] is True else Exit.FAILURE
    status: dict[str, Any] = ask(args.socket, "status")
    from hmd.cli.output import console
    from hmd.cli.tables.status_tables import process_table, summary

    if args.json:
        print_json(status)
        return Exit.OK
    out = console()
    for line in summary(status):
        out.print(line, markup=False)
    out.print(process_table(status))
    hidden = sum(target["process_count"] for target in status["targets"]) - len(status["processes"])
    if hidden > 0 and os.geteuid() != 0:
        out.print(f"{hidden} more processes; those of other users are shown to root only")
    return Exit.OK
