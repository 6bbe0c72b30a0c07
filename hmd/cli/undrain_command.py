"""``hmd undrain``: a node that was drained is put to use again."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hmd.cli.admin_request import EXIT_CODES, add_order_arguments, give
from hmd.cli.drain_command import add_node_arguments, nodes_of

if TYPE_CHECKING:
    from hmd.cli.main import Subparsers

EXAMPLES = f"""\
examples:
  hmd undrain 1                      node 1 may have pages again
  hmd undrain --tier 1               all nodes of the second tier

{EXIT_CODES}"""


def add_parser(subparsers: Subparsers) -> None:
    """Register ``hmd undrain``."""
    parser = subparsers.add_parser(
        "undrain",
        help="put a drained node to use again",
        description="Put drained memory nodes to use again. For root and the daemon's user.",
        epilog=EXAMPLES,
    )
    add_node_arguments(parser)
    add_order_arguments(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Give the order."""
    return give(args, "undrain", nodes_of(args))
