# SPDX-License-Identifier: MIT
"""``hmd migrate``: move the memory of a running process to a node, once."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from hmd.base.errors import HmdError, NotPermittedError, Severity, TargetError
from hmd.base.units import HUGE_PAGE_BYTES, PAGE_BYTES
from hmd.cli.output import format_bytes, format_count, print_json, print_records
from hmd.linux.procfs import alive, format_ids, read_live_stat

if TYPE_CHECKING:
    from hmd.migrate import Mover, MoveStatus
    from hmd.migrate.process_plans import ProcessPlans
    from hmd.migrate.status import MoveTotals
    from hmd.policy.plan import Plan

DESCRIPTION = """\
Move the resident pages of a running process to a memory node. The process keeps running.

Shared code and mappings of the kernel and of devices are not moved, nor are pages that are mapped
more than once, by other processes or by this one, unless --shared is given.
"""
EXAMPLES = """\
examples:
  hmd migrate --pid 4711 --to 1                     all pages to node 1
  hmd migrate --pid 4711 --to 0 --from 1 --limit 512MiB
  hmd migrate --pid 4711 --to 1 --range 7f0000000000-7f0040000000
  hmd migrate --pid 4711 --to 1 --dry-run           only show what would move

exit codes: 0 moved, or nothing to move; 1 nothing could be moved; 5 no such process or node;
7 not permitted
"""

OPTIONS = """\
--pid PID              the process
--to NODE              destination node
--from NODE            only pages on this node (default: on all other nodes)
--range START-END ...  only these addresses, hexadecimal as in /proc/PID/maps; may be repeated
--limit SIZE           move at most this much, as in 512MiB
--rate RATE            highest rate, as in 200MiB/s (default: no limit)
--shared               also move pages that other processes map (needs CAP_SYS_NICE)
--dry-run              move nothing, show what would move
--json                 print JSON: bytes, base pages, s
"""

REQUIRED = ("pid", "to")


def run(args: argparse.Namespace) -> None:
    """Move the pages and print the result."""
    from hmd.migrate import MoveStatus

    totals = _move(_plans(args), args)
    if totals.pages[MoveStatus.PERMISSION]:
        raise _not_permitted(args)
    gone = totals.pages[MoveStatus.GONE] or totals.pages[MoveStatus.INVALID]
    if gone and not totals.moved_pages:
        raise _gone(args)
    if args.json:
        print_json(_document(totals, args))
    if totals.failures and not totals.moved_pages:
        reason = max(totals.failures, key=lambda status: totals.failures[status])
        raise HmdError(f"nothing was moved to node {args.to}: {_advice(reason, args)}")
    if not args.json:
        _print(totals, args)


def _plans(args: argparse.Namespace) -> ProcessPlans:
    """Return what is to move, slice by slice; TargetError for a wrong process or node."""
    from hmd.linux.mappings import read_mappings, repeated_views
    from hmd.linux.topology import read_topology
    from hmd.migrate.process_plans import ProcessPlans

    stat = read_live_stat(args.pid) if args.pid > 0 else None
    if stat is None:
        raise TargetError(f"no process {args.pid}: 'ps -e' or 'hmd status' lists those that run")
    if not stat.has_memory:
        what = "is a kernel thread" if stat.kernel_thread else "has exited"
        raise TargetError(f"process {args.pid} {what} and has no memory to move: name another")
    known = [node.id for node in read_topology().nodes]
    for node in (args.to, args.from_node):
        if node is not None and node not in known:
            raise TargetError(
                f"no memory on node {node}: nodes with memory are {format_ids(known)} "
                "(see 'hmd topology')"
            )
    process = stat.process
    mappings = read_mappings(process.pid)
    if mappings is None:
        raise _not_permitted(args) if alive(process) else _gone(args)
    return ProcessPlans(
        process,
        mappings,
        args.to,
        from_node=args.from_node,
        ranges=args.ranges,
        movable=mappings.movable & ~repeated_views(mappings),
    )


def _not_permitted(args: argparse.Namespace) -> NotPermittedError:
    from hmd.linux.checks import move_pages_finding

    found = move_pages_finding()
    if found.level is not Severity.OK:
        return NotPermittedError(f"move_pages(2) is {found.state}: {found.action}")
    needed = "CAP_SYS_PTRACE and CAP_SYS_NICE" if args.shared else "CAP_SYS_PTRACE"
    return NotPermittedError(
        f"no permission to move the memory of process {args.pid}: run as root or with {needed}"
    )


def _gone(args: argparse.Namespace) -> TargetError:
    return TargetError(f"process {args.pid} exited before its memory was moved: name another")


def _move(plans: ProcessPlans, args: argparse.Namespace) -> MoveTotals:
    """Apply the plans one after the other, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from hmd.linux.memory_policy import MemoryBindings
    from hmd.migrate import Mover, MoverSettings
    from hmd.migrate.status import PROCESS_WIDE, MoveTotals

    mover = Mover(
        MoverSettings(rate_bytes_per_s=args.rate, move_shared=args.shared, dry_run=args.dry_run),
        bindings=MemoryBindings(),
    )
    screen = Console(stderr=True)
    totals = MoveTotals()
    with Progress(
        TextColumn("scanning memory"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
        disable=args.json or not screen.is_terminal,
    ) as progress:
        task = progress.add_task("", total=plans.span_bytes)
        for found in plans.slices():
            totals.resident_pages += found.resident_pages
            _apply_plan(found.plan, mover, totals, args.limit)
            if found.refusal is not None:
                totals.pages[found.refusal] += 1
            progress.advance(task, found.span_bytes)
            if totals.limited or any(totals.pages[status] for status in PROCESS_WIDE):
                break
    return totals


def _apply_plan(plan: Plan, mover: Mover, totals: MoveTotals, limit_bytes: int | None) -> None:
    """Apply a plan up to the limit; rows that the rate defers are applied later."""
    import numpy as np

    from hmd.migrate import MoveStatus

    if limit_bytes is not None:
        ends = np.cumsum(plan.pages, dtype=np.int64) * PAGE_BYTES
        within = int(np.searchsorted(ends, limit_bytes - totals.moved_bytes, "right"))
        totals.limited = within < len(plan)
        plan = plan.take(np.arange(within))
    while len(plan):
        outcome = mover.apply(plan)
        totals.add(outcome)
        plan = plan.take(np.flatnonzero(outcome.status == MoveStatus.DEFERRED))
        # A row needs at most the budget of a huge page.
        while len(plan) and mover.budget_bytes() < HUGE_PAGE_BYTES:
            time.sleep(0.01)


def _advice(reason: MoveStatus, args: argparse.Namespace) -> str:
    from hmd.migrate.status import ADVICE, Advice

    return ADVICE.get(reason, Advice("")).todo.format(node=args.to, pid=args.pid)


def _document(totals: MoveTotals, args: argparse.Namespace) -> dict[str, Any]:
    return {
        "pid": args.pid,
        "to": args.to,
        "from": args.from_node,
        "dry_run": args.dry_run,
        "resident_pages": totals.resident_pages,
        "moved_pages": totals.moved_pages,
        "moved_bytes": totals.moved_bytes,
        "limited": totals.limited,
        "flows": [
            {"from": source, "to": target, "pages": pages}
            for (source, target), pages in sorted(totals.moved.items())
        ],
        "pages": {status.label: pages for status, pages in sorted(totals.pages.items())},
        "calls": totals.calls,
        "seconds": round(totals.seconds, 6),
    }


def _print(totals: MoveTotals, args: argparse.Namespace) -> None:
    if not totals.pages:
        where = f"node {args.from_node}" if args.from_node is not None else "another node"
        print(f"Nothing to move: process {args.pid} has no movable pages on {where}.")
        return
    print_records(
        sorted(totals.pages.items()),
        {
            "pages": lambda row: _words(row[0]),
            "count": lambda row: format_count(row[1]),
            "size": lambda row: format_bytes(row[1] * PAGE_BYTES),
        },
    )
    done = "Would move" if args.dry_run else "Moved"
    sources = ", ".join(f"{source}" for source, _ in sorted(totals.moved))
    come_from = f" from node {sources}" if sources else ""
    stopped = " (stopped at --limit)" if totals.limited else ""
    print(
        f"{done} {format_bytes(totals.moved_bytes)}{come_from} to node {args.to}"
        f" in {totals.seconds:.2f} s{stopped}."
    )
    for reason in sorted(totals.failures):
        print(f"{_words(reason)}: {_advice(reason, args)}")


def _words(status: MoveStatus) -> str:
    return status.label.replace("_", " ")
