# SPDX-License-Identifier: MIT
"""``hmd explain``: why pages of a process are where they are, or why a target became slower."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from hmd.base.errors import TargetError, UsageError
from hmd.cli.admin_request import selected_processes
from hmd.cli.arguments import duration
from hmd.cli.output import format_bytes, format_latency, format_share, print_json, print_table
from hmd.control.client import ADMIN_TIMEOUT_S, ask, send_admin_request

DESCRIPTION = """\
Show why pages are on their tier: heat, price, competitors, what the policy predicts, past moves.

Without ADDRESS: the hottest pages of slower tiers and the coldest of the fastest. Owners may ask
about their processes, root and the daemon's user about all.

With --slow, compares a target from a time on with the time before: placement, rate of accesses,
latency, moves, requests of administrators, changed settings; and names the likeliest reasons, or
that hmd moved nothing of it. From the history of 'hmd report'.
"""

EXAMPLES = """\
examples:
  hmd explain 4711                   the pages of a process that compete for the fastest tier
  hmd explain 4711 0x7f5c80000000    the page at an address
  hmd explain redis --json           the processes of a target, for other programs
  hmd explain --slow redis           the last hour compared with the day before it
  hmd explain --slow redis --since 20min --before 2h
"""

OPTIONS = """\
--socket
PID|TARGET     a process, or all of a target
[ADDRESS]      as in 0x7f5c80000000
--slow         why a target became slower
--since TIME = 1h
               with --slow: how long it is slower already (default 1h)
--before TIME = 1d
               with --slow: the time before that to compare with (default 1d)
--json         print JSON: bytes, seconds, rates
"""

TYPES = {"since": duration, "before": duration}


def run(args: argparse.Namespace) -> None:
    """Ask the daemon and print its answer."""
    if args.slow:
        _run_slow(args)
        return
    arguments = selected_processes(args)
    if args.address is not None:
        arguments["address"] = _address(args.address)
    document = send_admin_request(args.socket, "explain", arguments)
    if args.json:
        print_json({"explained": document["explained"]})
        return
    for explained in document["explained"]:
        _print(explained)


def _run_slow(args: argparse.Namespace) -> None:
    from hmd.cli.report_command import print_events

    asked = {"target": args.subject, "since_s": args.since, "before_s": args.before}
    found = ask(args.socket, "report", asked, timeout_s=ADMIN_TIMEOUT_S)
    if args.json:
        print_json(found)
        return
    before, after = found["before"], found["after"]
    if not (before and after):
        raise TargetError(f"the history has too little of {args.subject!r}: see hmd report")
    cells: dict[str, Callable[[dict[str, Any]], str]] = {
        "in tier 0": lambda each: format_bytes(each["resident_bytes"][0]),
        "in all": lambda each: format_bytes(sum(each["resident_bytes"])),
        "accesses per second": lambda each: f"{each['accesses_per_s']:.3g}",
        "served by tier 0": lambda each: format_share(each["fast_share"]),
        "latency of loads": lambda each: format_latency(each["load_latency_s"]),
        "moved per hour": lambda each: format_bytes(_moved_per_hour(each)),
    }
    rows = [(name, cell(before), cell(after)) for name, cell in cells.items()]
    print_table((args.subject, "before", "after"), rows, right=("before", "after"))
    if not found["moved_bytes"]:
        print("hmd moved nothing of it in this time.")
    for reason in found["reasons"]:
        print(f"{reason['effect']:.1%} of its time: {reason['text']}")
    for name, size in found["gained_fast_bytes"].items():
        print(f"{name} has {format_bytes(size)} more of the fastest tier than before")
    if not found["reasons"]:
        print("Nothing that hmd sees explains it: look at CPU time, disk, network and locks.")
    print_events(found["events"])


def _moved_per_hour(figures: dict[str, Any]) -> float:
    moved = figures["promoted_bytes"] + figures["demoted_bytes"]
    return float(moved * 3600 / max(figures["seconds"], 1.0))


def _address(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise UsageError(f"{text}: write an address as in 0x7f5c80000000") from None


def _print(explained: dict[str, Any]) -> None:
    print(f"process {explained['pid']}, policy {explained['plans']}")
    if (known := explained.get("former_runs")) is not None:
        print(
            f"known from {known['runs']:.1f} former runs of {known['run_s']:.3g} s, which count"
            f" {known['trust']:.0%} in this one, and saved it {known['saved_s']:.3g} s:"
            f" hmd profile show {known['program']}"
        )
    rows = [
        (
            f"{page['address']:#x}",
            format_bytes(page["bytes"]),
            page["tier"],
            f"{page['rate']:.3g}",
            f"{page['samples']:.0f}",
            f"{page['saving_s_per_s'] * 1e6:.3g}",
            "never" if (after_s := page["repaid_after_s"]) is None else f"{after_s:.3g}",
        )
        for page in explained["pages"]
    ]
    columns = ("address", "size", "tier", "accesses/s", "samples", "saves µs/s", "repaid in s")
    print_table(columns, rows, right=columns[2:])
    before = ""
    for page in explained["pages"]:
        why = "the same" if page["why"] == before else page["why"]
        before = page["why"]
        print(f"{page['address']:#x}: {why}")
        if page["policy"]:
            figures = ", ".join(f"{name} {value:.3g}" for name, value in page["policy"].items())
            print(f"  policy: {figures}")
        for move in page["moves"]:
            print(f"  {_move(move)}")


def _move(move: dict[str, Any]) -> str:
    way = "promoted" if move["promoted"] else "demoted"
    other = "demoted" if move["promoted"] else "promoted"
    line = (
        f"{way} from node {move['from_node']} to {move['to_node']} {move['before_s']:g} s ago, "
        f"at {move['rate']:.3g} accesses/s"
    )
    if not move["others"]:
        return line
    mean = f"{move['others_rate']:.3g}"
    return f"{line}; {move['others']} pages of mean {mean} were {other} in that tick"
