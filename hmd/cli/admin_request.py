"""The admin commands: ``hmd pause``, ``resume``, ``undrain``, ``pin``, ``unpin``.

Each is a row of ``ADMIN_COMMANDS``: its help, its arguments, and the request that these become.
All send one request to the daemon's status socket and print its answer. ``hmd drain``, which also
waits, has its own module and uses the same arguments.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hmd.cli.command_table import COMMANDS
from hmd.cli.status_command import add_socket
from hmd.errors import Exit, UsageError

if TYPE_CHECKING:
    from hmd.cli.main import Subparsers

Request = tuple[str, Mapping[str, Any]]
"""The command of a request on the status socket, and its arguments."""

EXIT_CODES: Final = """\
exit codes: 0 done; 1 refused; 2 the arguments do not go together; 5 no such process, target or
node; 6 no daemon answers; 7 not permitted
"""


@dataclass(frozen=True, slots=True)
class AdminCommand:
    """One admin command: its help, what adds its arguments, and the request that they become."""

    name: str
    description: str
    examples: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    request: Callable[[argparse.Namespace], Request]

    def add_parser(self, subparsers: Subparsers) -> None:
        """Register the command."""
        parser = subparsers.add_parser(
            self.name,
            help=COMMANDS[self.name].summary,
            description=self.description,
            epilog=f"{self.examples}\n{EXIT_CODES}",
        )
        self.add_arguments(parser)
        add_request_options(parser)
        parser.set_defaults(func=lambda args: send(args, *self.request(args)))


def add_parser(subparsers: Subparsers) -> None:
    """Register the commands of ``ADMIN_COMMANDS``."""
    for command in ADMIN_COMMANDS:
        command.add_parser(subparsers)


def add_request_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--socket`` and ``--json``, which every admin command has."""
    add_socket(parser)
    parser.add_argument("--json", action="store_true", help="print the daemon's answer as JSON")


def add_nodes(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select memory nodes."""
    parser.add_argument("node", metavar="NODE", type=int, nargs="*", help="numbers of nodes")
    parser.add_argument(
        "--tier", type=int, metavar="TIER", help="all nodes of a tier; 0 is the fastest"
    )


def selected_nodes(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a request that select nodes. Raises ``UsageError`` without any."""
    if bool(args.node) == (args.tier is not None):
        raise UsageError("name nodes, as in hmd drain 1, or a tier with --tier")
    return {"node": args.node} if args.node else {"tier": args.tier}


def send(args: argparse.Namespace, command: str, arguments: Mapping[str, Any]) -> int:
    """Send a request and print the answer. Raises ``HmdError`` where the daemon refuses."""
    from hmd.cli.output import print_json
    from hmd.control.client import send_admin_request

    answer = send_admin_request(args.socket, command, arguments)
    if args.json:
        print_json(answer)
    else:
        print(answer["done"])
    return Exit.OK


def _add_nothing(parser: argparse.ArgumentParser) -> None:
    pass


def _add_pin_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", metavar="PID|TARGET", help="a process, or a target's name")
    parser.add_argument("--to", type=int, metavar="NODE", help="move the pages to this node first")
    parser.add_argument(
        "--once", action="store_true", help="move the pages to the node and pin nothing"
    )


def _add_unpin_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subject", metavar="PID|TARGET", nargs="?", help="a process, or a target's name"
    )
    parser.add_argument("--all", action="store_true", help="all pins (root)")


def _subject(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that select whose pages: a number is a pid, anything else a target."""
    name: str = args.subject
    return {"pid": int(name)} if name.isascii() and name.isdigit() else {"target": name}


def _pin(args: argparse.Namespace) -> Request:
    node = {} if args.to is None else {"to": args.to}
    subject = _subject(args)
    if not args.once:
        return "pin", {**subject, **node}
    if not node or "pid" not in subject:
        raise UsageError("--once needs a pid and --to NODE, as in hmd pin 4711 --to 0 --once")
    return "migrate", {**subject, **node}


def _unpin(args: argparse.Namespace) -> Request:
    if args.all == (args.subject is not None):
        raise UsageError("name a process or a target, or give --all")
    return "unpin", {"all": True} if args.all else _subject(args)


ADMIN_COMMANDS: Final = (
    AdminCommand(
        name="pause",
        description="""\
Stop moving pages until 'hmd resume'. The daemon goes on sampling, so that page heat is current
when it resumes. Drains wait too. For root and the daemon's user.
""",
        examples="""\
examples:
  hmd pause                          before a measurement that page moves would disturb
  hmd resume                         afterwards
  hmd status                         shows 'paused' meanwhile
""",
        add_arguments=_add_nothing,
        request=lambda _: ("pause", {}),
    ),
    AdminCommand(
        name="resume",
        description="Move pages again after 'hmd pause'. For root and the daemon's user.\n",
        examples="""\
examples:
  hmd resume                         end 'hmd pause'
""",
        add_arguments=_add_nothing,
        request=lambda _: ("resume", {}),
    ),
    AdminCommand(
        name="undrain",
        description="""\
Let pages move to drained memory nodes again. For root and the daemon's user.
""",
        examples="""\
examples:
  hmd undrain 1                      node 1 may hold pages again
  hmd undrain --tier 1               all nodes of the second tier
""",
        add_arguments=add_nodes,
        request=lambda args: ("undrain", selected_nodes(args)),
    ),
    AdminCommand(
        name="pin",
        description="""\
Keep the pages of a process or target where they are, or move them to a node and keep them there.
Policies move none of them while they are pinned; the daemon goes on counting their accesses.

For the owner of the process, root and the daemon's user. Root and the daemon's user pin a target
with all processes that it will have. Other users pin the processes that it has now, and only
where all of them are theirs.
""",
        examples="""\
examples:
  hmd pin 4711                       keep the pages of process 4711 where they are
  hmd pin 4711 --to 0                move them to node 0 and keep them there
  hmd pin 4711 --to 0 --once         move them to node 0, then leave them to the policy
  hmd pin redis --to 0               the processes of the target redis
  hmd unpin 4711                     let policies move them again
""",
        add_arguments=_add_pin_arguments,
        request=_pin,
    ),
    AdminCommand(
        name="unpin",
        description="""\
Let policies move the pages of a process or target again. For the user who pinned it, root and the
daemon's user.
""",
        examples="""\
examples:
  hmd unpin 4711                     a process
  hmd unpin redis                    a target and its processes
  hmd unpin --all                    all pins (root)
""",
        add_arguments=_add_unpin_arguments,
        request=_unpin,
    ),
)
