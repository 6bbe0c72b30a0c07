# SPDX-License-Identifier: MIT
"""``hmd drain``: empty memory nodes, with progress and a summary of what is left."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from typing import Any

from hmd.base.errors import Exit, HmdError
from hmd.base.units import PAGE_BYTES
from hmd.cli.admin_request import NODES, REQUEST, lifetime, selected_nodes
from hmd.cli.output import format_bytes, format_count, print_json
from hmd.control.client import ask, send_admin_request

Drain = Mapping[str, Any]

DESCRIPTION = """\
Empty memory nodes before maintenance or hot-remove. hmd moves nothing to them any more, and moves
their pages to the nearest nodes with free memory, within migrate.rate: first pages of targets,
hottest first, then pages of all other processes. Waits until no more pages can be moved, and prints
what is left and why. For root and the daemon's user.

The node stays drained until 'hmd undrain', even if this command is interrupted or the daemon is
restarted. Programs may still allocate there (only a cpuset prevents that), and these pages are
moved as well.
"""
EXAMPLES = """\
examples:
  hmd drain 1                        empty node 1, and wait until it is
  hmd drain --tier 1 --no-wait       all nodes of the second tier; hmd status shows the progress
  hmd drain 2 --timeout 10min        wait at most 10 minutes
  hmd undrain 1                      use it again

exit codes: 0 no page of a program is left there; 1 some are (with reasons), hmd is paused, the
timeout has passed, or refused: no node would be left, or a pin is there; 2 wrong usage; 5 no such
node; 6 no daemon answers; 7 not permitted
"""

REASONS = {
    "waiting": "not moved yet",
    "no_room": "no other node has room for them",
    "pinned": "of pinned processes (hmd unpin)",
    "kept": "in mappings that the configuration keeps (targets: keep)",
    "unread": "of processes whose mappings cannot be read",
}
"""Why a drain leaves pages, besides the statuses of moves."""

POLL_S = 1.0
MAX_DIFFERENCE = 32 << 20
"""Bytes by which the kernel's count of a node may exceed what was found in processes."""

OPTIONS = f"""\
{NODES}--no-wait      return at once
--until-restart
--timeout TIME  longest wait, as in 10min
{REQUEST}"""


def run(args: argparse.Namespace) -> int:
    """Send the request and wait for the result."""
    answer = send_admin_request(args.socket, "drain", selected_nodes(args) | lifetime(args))
    if args.no_wait:
        if args.json:
            print_json(answer)
        else:
            print(answer["done"])
        return Exit.OK
    drains, late = _wait(args, set(answer["nodes"]))
    if args.json:
        print_json({"drains": drains, "timed_out": late})
    else:
        for drain in drains:
            _print(drain)
    if late:
        raise HmdError("timeout: the node stays drained, and hmd goes on emptying it")
    undone = any(left_pages(drain) or unseen_bytes(drain) for drain in drains)
    return Exit.FAILURE if undone else Exit.OK


def left_pages(drain: Drain) -> dict[str, int]:
    """Return the pages of programs that are left on a node, by reason."""
    left = dict(drain["left"])
    if drain["waiting_pages"]:
        left["waiting"] = drain["waiting_pages"]
    # Pages that ticks could not move are also counted by the drain thread after its pass.
    if drain["settled"]:
        left.pop("waiting", None)
    return left


def unseen_bytes(drain: Drain) -> int:
    """Return how much of programs the kernel counts on a node beyond the pages that were found.

    0 where that is no more than its counters, which CPUs update from time to time, may be off.
    """
    found = sum(left_pages(drain).values()) * PAGE_BYTES
    beyond = drain["use"]["program_bytes"] - found
    return beyond if drain["there"] and drain["settled"] and beyond > MAX_DIFFERENCE else 0


def _wait(args: argparse.Namespace, nodes: set[int]) -> tuple[list[Drain], bool]:
    """Return the state of each node's drain, and whether the timeout passed first."""
    deadline_s = time.monotonic() + (args.timeout if args.timeout is not None else float("inf"))
    screen = sys.stderr.isatty() and not args.json
    while True:
        control = ask(args.socket, "status", timeout_s=30)["control"]
        drains: list[Drain] = [d for d in control["drains"] if d["node"] in nodes]
        if len(drains) < len(nodes):
            raise HmdError("the node was undrained meanwhile, or the daemon was restarted")
        if control["paused"]:
            raise HmdError("the node is drained, but hmd is paused: no page moves until hmd resume")
        if screen:
            print(f"\r\033[K{'; '.join(map(_progress, drains))}", end="", file=sys.stderr)
        late = time.monotonic() >= deadline_s
        if late or all(drain["settled"] for drain in drains):
            if screen:
                print("\r\033[K", end="", file=sys.stderr, flush=True)
            return drains, late
        sys.stderr.flush()
        time.sleep(POLL_S)


def _progress(drain: Drain) -> str:
    use = drain["use"]
    return f"node {drain['node']}: {format_bytes(use['program_bytes'])} of programs to move"


def _print(drain: Drain) -> None:
    node, use = drain["node"], drain["use"]
    if not drain["there"]:
        print(f"node {node} has been removed")
        return
    from hmd.migrate.status import ADVICE

    reasons = REASONS | {status.label: advice.left for status, advice in ADVICE.items()}
    left, unseen = left_pages(drain), unseen_bytes(drain)
    going_on = not drain["settled"] and use["program_bytes"] > MAX_DIFFERENCE
    print(f"node {node}: {'' if left or unseen or going_on else 'no '}pages of programs are left")
    if going_on:
        print(f"  {format_bytes(use['program_bytes'])} by the kernel's count, and hmd goes on")
    if unseen:
        print(f"  {format_bytes(unseen)} by the kernel's count, in no process that can be read")
    for reason, pages in sorted(left.items(), key=lambda item: -item[1]):
        text = reasons.get(reason, reason.replace("_", " "))
        print(f"  {format_bytes(pages * PAGE_BYTES)}, {format_count(pages)} pages: {text}")
    print(
        f"  {format_bytes(use['used_bytes'])} in use: page cache "
        f"{format_bytes(use['cache_bytes'])} (hot-remove migrates it), kernel "
        f"{format_bytes(use['kernel_bytes'])} (slabs, stacks, page tables; not movable), huge page "
        f"pools {format_bytes(use['pool_bytes'])} (hugetlb; a pool shrinks by nr_hugepages)"
    )
