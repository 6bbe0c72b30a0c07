# SPDX-License-Identifier: MIT
"""``hmd disable``: stop the service and remove what ``hmd enable`` has written."""

from __future__ import annotations

import argparse

from hmd.cli.enable_command import SHOW_AND_APPLY, carry_out

DESCRIPTION = "Stop the service, and remove what 'hmd enable' has written."

EXAMPLES = """\
examples:
  hmd disable --dry-run    print the changes only
  hmd disable              print the changes, ask, apply them

Far memory ends once its pages are back. The configuration (/etc/hmd) and /var/lib/hmd stay. Files
of a package stay as well: remove the package instead.
"""


OPTIONS = SHOW_AND_APPLY


def run(args: argparse.Namespace) -> None:
    """Plan, show, ask, apply."""
    from hmd.daemon.install import plan_disable

    carry_out(plan_disable(args.root), args)
