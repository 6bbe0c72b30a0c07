# SPDX-License-Identifier: MIT
"""``hmd explain``: why pages of a process are where they are."""

from __future__ import annotations

import argparse
from typing import Any

from hmd.base.errors import Exit, UsageError
from hmd.cli.arguments import add_flag, add_socket
from hmd.cli.output import format_bytes, print_json, print_table
from hmd.control.client import send_admin_request

DESCRIPTION = """\
Show why pages are on their tier: heat, price, competitors, what the policy predicts, past moves.

Without ADDRESS: the hottest pages of slower tiers and the coldest of the fastest. Owners may ask
about their processes, root and the daemon's user about all.
"""

EXAMPLES = """\
examples:
  hmd explain 4711                   the pages of a process that compete for the fastest tier
  hmd explain 4711 0x7f5c80000000    the page at an address
  hmd explain redis --json           the processes of a target, for other programs
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hmd explain``."""
    add_socket(parser)
    parser.add_argument("subject", metavar="PID|TARGET", help="a process, or all of a target")
    parser.add_argument("address", nargs="?", metavar="ADDRESS", help="as in 0x7f5c80000000")
    add_flag(parser, "--json", "print JSON: bytes, seconds, rates")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Ask the daemon and print its answer."""
    arguments: dict[str, Any] = (
        {"pid": int(args.subject)} if args.subject.isdecimal() else {"target": args.subject}
    )
    if args.address is not None:
        arguments["address"] = _address(args.address)
    document = send_admin_request(args.socket, "explain", arguments)
    if args.json:
        print_json(document["explained"])
        return Exit.OK
    for explained in document["explained"]:
        _print(explained)
    return Exit.OK


def _address(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise UsageError(f"{text}: write an address as in 0x7f5c80000000") from None


def _print(explained: dict[str, Any]) -> None:
    print(f"process {explained['pid']}, policy {explained['plans']}")
    rows = [
        (
            f"{page['address']:#x}",
            format_bytes(page["bytes"]),
            page["tier"],
            f"{page['rate']:.3g}",
            f"{page['samples']:.0f}",
            f"{page['saving_s_per_s'] * 1e6:.3g}",
            _repaid(page["repaid_after_s"]),
        )
        for page in explained["pages"]
    ]
    columns = ("address", "size", "tier", "accesses/s", "samples", "saves µs/s", "repaid in s")
    print_table(columns, rows, right=columns[2:])
    for page in explained["pages"]:
        print(f"{page['address']:#x}: {page['why']}")
        if page["policy"]:
            figures = ", ".join(f"{name} {value:.3g}" for name, value in page["policy"].items())
            print(f"  policy: {figures}")
        for move in page["moves"]:
            print(f"  {_move(move)}")


def _repaid(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.3g}"


def _move(move: dict[str, Any]) -> str:
    way = "promoted" if move["promoted"] else "demoted"
    other = "demoted" if move["promoted"] else "promoted"
    return (
        f"{way} from node {move['from_node']} to {move['to_node']} {move['before_s']:g} s before "
        f"the last move, at {move['rate']:.3g} accesses/s; {move['others']} pages of mean "
        f"{move['others_rate']:.3g} were {other} in that tick"
    )
