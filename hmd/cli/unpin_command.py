"""``hmd unpin``: policies may move a process's pages again."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hmd.cli.admin_request import EXIT_CODES, add_order_arguments, give, subject
from hmd.errors import UsageError

if TYPE_CHECKING:
    from hmd.cli.main import Subparsers

DESCRIPTION = """\
Have the running daemon's policies move the pages of a process or target again. For whoever has
pinned it, root and the daemon's user.
"""
EXAMPLES = f"""\
examples:
  hmd unpin 4711                     a process
  hmd unpin redis                    a target, and its processes
  hmd unpin --all                    everything that is pinned (root)

{EXIT_CODES}"""


def add_parser(subparsers: Subparsers) -> None:
    """Register ``hmd unpin``."""
    parser = subparsers.add_parser(
        "unpin", help="the end of a pin", description=DESCRIPTION, epilog=EXAMPLES
    )
    parser.add_argument(
        "subject", metavar="PID|TARGET", nargs="?", help="a process, or a target's name"
    )
    parser.add_argument("--all", action="store_true", help="everything that is pinned")
    add_order_arguments(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Give the order."""
    if args.all == (args.subject is not None):
        raise UsageError("name a process or a target, or give --all")
    return give(args, "unpin", {"all": True} if args.all else subject(args))
