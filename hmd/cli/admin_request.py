"""What commands that give the daemon orders share: options, the order, and what it answers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from hmd.cli.status_command import add_socket
from hmd.errors import Exit

EXIT_CODES = """\
exit codes: 0 done; 1 refused; 2 the order makes no sense; 4 no permission; 5 no such process,
target or node; 6 no daemon answers
"""


def add_order_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that every order has."""
    add_socket(parser)
    parser.add_argument("--json", action="store_true", help="print the daemon's answer as JSON")


def give(args: argparse.Namespace, command: str, arguments: Mapping[str, Any]) -> int:
    """Give an order and print what was done; raises ``HmdError`` where it is refused."""
    from hmd.cli.output import print_json
    from hmd.control.client import order

    answer = order(args.socket, command, arguments)
    if args.json:
        print_json(answer)
    else:
        print(answer["done"])
    return Exit.OK


def subject(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that say whose pages: a number is a pid, anything else a target."""
    name: str = args.subject
    return {"pid": int(name)} if name.isascii() and name.isdigit() else {"target": name}
