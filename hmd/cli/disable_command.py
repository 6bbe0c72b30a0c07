"""``hmd disable``: stop the service and remove what ``hmd enable`` has written."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hmd.cli.enable_command import add_plan_arguments, carry_out

if TYPE_CHECKING:
    from hmd.cli.main import Subparsers

EXAMPLES = """\
examples:
  hmd disable --dry-run    print the changes only
  hmd disable              print the changes, ask, apply them

The configuration (/etc/hmd) and /var/lib/hmd stay. Files of a package stay as well: remove the
package instead.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Register ``hmd disable``."""
    parser = subparsers.add_parser(
        "disable",
        help="stop the service and remove its files",
        description="Stop the service, and remove what 'hmd enable' has written.",
        epilog=EXAMPLES,
    )
    add_plan_arguments(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Plan, show, ask, apply."""
    from hmd.install.changes import plan_disable

    return carry_out(plan_disable(args.root), args)
