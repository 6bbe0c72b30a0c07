"""``hmd resume``: the daemon moves pages again."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hmd.cli.admin_request import EXIT_CODES, add_order_arguments, give

if TYPE_CHECKING:
    from hmd.cli.main import Subparsers

EXAMPLES = f"""\
examples:
  hmd resume                         the end of 'hmd pause'

{EXIT_CODES}"""


def add_parser(subparsers: Subparsers) -> None:
    """Register ``hmd resume``."""
    parser = subparsers.add_parser(
        "resume",
        help="move pages again",
        description="Have the running daemon move pages again. For root and the daemon's user.",
        epilog=EXAMPLES,
    )
    add_order_arguments(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Give the order."""
    return give(args, "resume", {})
