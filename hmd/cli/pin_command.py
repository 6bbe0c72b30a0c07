"""``hmd pin``: a process's pages stay where they are, or are on one node."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hmd.cli.admin_request import EXIT_CODES, add_order_arguments, give, subject
from hmd.errors import UsageError

if TYPE_CHECKING:
    from hmd.cli.main import Subparsers

DESCRIPTION = """\
Have the running daemon leave the pages of a process or target where they are, or bring them to a
node and keep them there. Policies then move none of them; samples go on to be counted.

For the owner of the process, root and the daemon's user. A target that root pins is pinned with
the processes that it will have; for others those that it has now are pinned, if all are theirs.
"""
EXAMPLES = f"""\
examples:
  hmd pin 4711                       process 4711 stays where it is
  hmd pin 4711 --to 0                bring it to node 0, and keep it there
  hmd pin 4711 --to 0 --once         bring it there, then leave it to the policy
  hmd pin redis --to 0               the processes of the target redis
  hmd unpin 4711                     policies may move it again

{EXIT_CODES}"""


def add_parser(subparsers: Subparsers) -> None:
    """Register ``hmd pin``."""
    parser = subparsers.add_parser(
        "pin",
        help="keep a process's pages where they are, or on a node",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    parser.add_argument("subject", metavar="PID|TARGET", help="a process, or a target's name")
    parser.add_argument("--to", type=int, metavar="NODE", help="bring the pages to this node")
    parser.add_argument("--once", action="store_true", help="bring them there, and pin nothing")
    add_order_arguments(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Give the order."""
    where = {} if args.to is None else {"to": args.to}
    if not args.once:
        return give(args, "pin", {**subject(args), **where})
    if not where or "pid" not in subject(args):
        raise UsageError("--once takes a process, and --to the node to which it goes")
    return give(args, "migrate", {**subject(args), **where})
