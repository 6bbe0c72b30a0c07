"""``hmd pause``: the daemon goes on looking, and moves nothing."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hmd.cli.admin_request import EXIT_CODES, add_order_arguments, give

if TYPE_CHECKING:
    from hmd.cli.main import Subparsers

DESCRIPTION = """\
Have the running daemon move no page until 'hmd resume'. It goes on sampling, so that heat is
known when it resumes. Drains wait too. For root and the daemon's user.
"""
EXAMPLES = f"""\
examples:
  hmd pause                          before a measurement that nothing should disturb
  hmd resume                         afterwards
  hmd status                         says so while hmd is paused

{EXIT_CODES}"""


def add_parser(subparsers: Subparsers) -> None:
    """Register ``hmd pause``."""
    parser = subparsers.add_parser(
        "pause", help="move nothing until resumed", description=DESCRIPTION, epilog=EXAMPLES
    )
    add_order_arguments(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Give the order."""
    return give(args, "pause", {})
