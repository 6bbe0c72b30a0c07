# SPDX-License-Identifier: MIT
"""The admin commands: ``hmd pause``, ``resume``, ``undrain``, ``pin``, ``unpin``.

Each sends one request to the daemon's status socket and prints its answer. ``hmd drain``, which
also waits, has its own module and takes the same arguments.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hmd.base.errors import UsageError
from hmd.cli.arguments import add_options
from hmd.cli.output import print_json
from hmd.control.client import send_admin_request

Request = tuple[str, Mapping[str, Any]]
"""The command of a request on the status socket, and its arguments."""

REQUEST: Final = """\
--socket
--json  print the daemon's answer as JSON
"""
"""Options that every admin command has."""

NODES: Final = """\
[NODE ...]   numbers of nodes
--tier TIER  all nodes of a tier; 0 is the fastest
"""

EXIT_CODES: Final = """\

exit codes: 0 done; 1 refused; 2 the arguments do not go together; 5 no such process, target or
node; 6 no daemon answers; 7 not permitted
"""


@dataclass(frozen=True, slots=True)
class AdminCommand:
    """A command that sends one request; it has what the module of any other command has.

    ``request`` returns the request, or raises ``UsageError`` for arguments that do not go together.
    """

    request: Callable[[argparse.Namespace], Request]
    options: str
    DESCRIPTION: str
    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's options and those of every one."""
        add_options(parser, self.options + REQUEST)
        parser.set_defaults(func=lambda args: send(args, *self.request(args)))


def lifetime(args: argparse.Namespace) -> dict[str, Any]:
    """Return the argument of a request that says whether it ends with the daemon."""
    return {"until_restart": True} if args.until_restart else {}


def selected_nodes(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a request that select nodes. Raises ``UsageError`` without any."""
    if bool(args.node) == (args.tier is not None):
        raise UsageError("name nodes, as in hmd drain 1, or a tier with --tier")
    return {"node": args.node} if args.node else {"tier": args.tier}


def selected_processes(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that select processes: a number is a pid, anything else a target."""
    name: str = args.subject
    return {"pid": int(name)} if name.isascii() and name.isdigit() else {"target": name}


def send(args: argparse.Namespace, command: str, arguments: Mapping[str, Any]) -> None:
    """Send a request and print the answer. Raises ``HmdError`` where the daemon refuses."""
    answer = send_admin_request(args.socket, command, arguments)
    if args.json:
        print_json(answer)
    else:
        print(answer["done"])


def _pin(args: argparse.Namespace) -> Request:
    """Return the request; ``--once`` only moves."""
    arguments = selected_processes(args)
    if args.once and (args.to is None or "pid" not in arguments):
        raise UsageError("--once needs a pid and --to NODE, as in hmd pin 4711 --to 0 --once")
    if args.to is not None:
        arguments["to"] = args.to
    if args.once and args.until_restart:
        raise UsageError("--once pins nothing: leave out --until-restart")
    if args.once:
        return "migrate", arguments
    return "pin", arguments | lifetime(args)


def _unpin(args: argparse.Namespace) -> Request:
    if args.all == (args.subject is not None):
        raise UsageError("name a process or a target, or give --all")
    return "unpin", {"all": True} if args.all else selected_processes(args)


ADMIN_COMMANDS: Final[Mapping[str, AdminCommand]] = {
    "pause": AdminCommand(
        lambda args: ("pause", lifetime(args)),
        "--until-restart\n",
        """\
Stop moving pages until 'hmd resume', also over a restart of the daemon. The daemon goes on
sampling, so that page heat is current when it resumes. Drains wait too. For root and the daemon's
user.
""",
        f"""\
examples:
  hmd pause                          before a measurement that page moves would disturb
  hmd resume                         afterwards
  hmd status                         shows 'paused' meanwhile
  hmd pause --until-restart          a restarted daemon moves pages again
{EXIT_CODES}""",
    ),
    "resume": AdminCommand(
        lambda _: ("resume", {}),
        "",
        "Move pages again after 'hmd pause'. For root and the daemon's user.\n",
        f"""\
examples:
  hmd resume                         end 'hmd pause'
{EXIT_CODES}""",
    ),
    "undrain": AdminCommand(
        lambda args: ("undrain", selected_nodes(args)),
        NODES,
        "Let pages move to drained memory nodes again. For root and the daemon's user.\n",
        f"""\
examples:
  hmd undrain 1                      node 1 may hold pages again
  hmd undrain --tier 1               all nodes of the second tier
{EXIT_CODES}""",
    ),
    "pin": AdminCommand(
        _pin,
        """\
PID|TARGET  a process, or a target's name
--to NODE   move the pages to this node first
--once      move the pages to the node and pin nothing
--until-restart
""",
        """\
Keep the pages of a process or target where they are, or move them to a node and keep them there.
Policies move none of them while they are pinned; the daemon goes on counting their accesses.
A pin outlives a restart of the daemon; that of a process ends with the process.

For the owner of the process, root and the daemon's user. Root and the daemon's user pin a target
with all processes that it will have. Other users pin the processes that it has now, and only
where all of them are theirs.
""",
        f"""\
examples:
  hmd pin 4711                       keep the pages of process 4711 where they are
  hmd pin 4711 --to 0                move them to node 0 and keep them there
  hmd pin 4711 --to 0 --once         move them to node 0, then leave them to the policy
  hmd pin redis --to 0               the processes of the target redis
  hmd unpin 4711                     let policies move them again
{EXIT_CODES}""",
    ),
    "unpin": AdminCommand(
        _unpin,
        """\
[PID|TARGET]  a process, or a target's name
--all         all pins (root)
""",
        """\
Let policies move the pages of a process or target again. For the user who pinned it, root and the
daemon's user.
""",
        f"""\
examples:
  hmd unpin 4711                     a process
  hmd unpin redis                    a target and its processes
  hmd unpin --all                    all pins (root)
{EXIT_CODES}""",
    ),
}
