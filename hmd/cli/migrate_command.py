"""``hmd migrate``: move the memory of a running process to a node, once."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hmd.cli.arguments import address_range, rate, size
from hmd.errors import Exit, NotPermittedError, TargetError

if TYPE_CHECKING:
    from hmd.cli.main import Subparsers
    from hmd.decide.plan import Plan
    from hmd.machine.process_id import ProcessId
    from hmd.migrate import Mover
    from hmd.migrate.process_plans import ProcessPlans
    from hmd.migrate.totals import MoveTotals

DESCRIPTION = """\
Move the resident pages of a running process to a memory node. The process keeps running.

Shared code and mappings of the kernel and of devices are not moved, nor are pages that other
processes map, unless --shared is given.
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


def add_parser(subparsers: Subparsers) -> None:
    """Register ``hmd migrate``."""
    parser = subparsers.add_parser(
        "migrate",
        help="move the memory of a process to a node",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    parser.add_argument("--pid", type=int, required=True, help="the process")
    parser.add_argument("--to", type=int, required=True, metavar="NODE", help="destination node")
    parser.add_argument(
        "--from",
        dest="from_node",
        type=int,
        metavar="NODE",
        help="only pages on this node (default: on all other nodes)",
    )
    parser.add_argument(
        "--range",
        dest="ranges",
        type=address_range,
        action="append",
        default=[],
        metavar="START-END",
        help="only these addresses, hexadecimal as in /proc/PID/maps; may be repeated",
    )
    parser.add_argument(
        "--limit", type=size, metavar="SIZE", help="move at most this much, as in 512MiB"
    )
    parser.add_argument(
        "--rate",
        type=rate,
        metavar="RATE",
        help="highest rate, as in 200MiB/s (default: no limit)",
    )
    parser.add_argument(
        "--shared",
        action="store_true",
        help="also move pages that other processes map (needs CAP_SYS_NICE)",
    )
    parser.add_argument("--dry-run", action="store_true", help="move nothing, show what would move")
    parser.add_argument("--json", action="store_true", help="print JSON: bytes, pages of 4 KiB, s")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Move the pages and print the result."""
    from hmd.cli.output import print_json
    from hmd.cli.tables.migration_report import document, failure, print_totals

    process = _process(args.pid)
    _check_nodes(args)
    survey = _survey(process, args)
    totals = _apply(survey, _mover(args), args)
    _check_permission(totals, args)
    error = failure(totals, args)
    if args.json:
        print_json(document(totals, args))
    elif error is None:
        print_totals(totals, args)
    if error is not None:
        raise error
    return Exit.OK


def _process(pid: int) -> ProcessId:
    from hmd.machine.process_id import read_stat

    stat = read_stat(pid) if pid > 0 else None
    if stat is None:
        raise TargetError(f"no process {pid}: 'ps -e' or 'hmd status' lists those that run")
    if not stat.has_memory:
        what = "is a kernel thread" if stat.kernel_thread else "has exited"
        raise TargetError(f"process {pid} {what} and has no memory to move: name another")
    return stat.process


def _check_nodes(args: argparse.Namespace) -> None:
    from hmd.machine.nodes.numa_nodes import read_topology
    from hmd.machine.procfs import format_ids

    known = [node.id for node in read_topology().nodes]
    for node in (args.to, args.from_node):
        if node is not None and node not in known:
            raise TargetError(
                f"no memory on node {node}: nodes with memory are {format_ids(known)} "
                "(see 'hmd topology')"
            )


def _survey(process: ProcessId, args: argparse.Namespace) -> ProcessPlans:
    from hmd.machine.pages.mappings import read_mappings
    from hmd.machine.process_id import alive
    from hmd.migrate.process_plans import ProcessPlans

    mappings = read_mappings(process.pid)
    if mappings is None:
        raise _not_permitted(args) if alive(process) else _gone(args)
    return ProcessPlans(process, mappings, args.to, from_node=args.from_node, ranges=args.ranges)


def _not_permitted(args: argparse.Namespace) -> NotPermittedError:
    needed = "CAP_SYS_PTRACE and CAP_SYS_NICE" if args.shared else "CAP_SYS_PTRACE"
    return NotPermittedError(
        f"no permission to move the memory of process {args.pid}: run as root or with {needed}"
    )


def _gone(args: argparse.Namespace) -> TargetError:
    return TargetError(f"process {args.pid} exited before its memory was moved: name another")


def _mover(args: argparse.Namespace) -> Mover:
    from hmd.migrate import Mover, MoverSettings

    return Mover(
        MoverSettings(rate_bytes_per_s=args.rate, move_shared=args.shared, dry_run=args.dry_run)
    )


def _apply(survey: ProcessPlans, mover: Mover, args: argparse.Namespace) -> MoveTotals:
    """Apply the survey's plans one after the other, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from hmd.migrate.move_status import PROCESS_WIDE
    from hmd.migrate.totals import MoveTotals

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
        task = progress.add_task("", total=survey.span_bytes)
        for found in survey.slices():
            totals.resident_pages += found.resident_pages
            left = None if args.limit is None else args.limit - totals.moved_bytes
            plan, totals.limited = _within(found.plan, left)
            _apply_plan(plan, mover, totals)
            if found.refusal is not None:
                totals.pages[found.refusal] += 1
            progress.advance(task, found.span_bytes)
            if totals.limited or any(totals.pages[status] for status in PROCESS_WIDE):
                break
    return totals


def _within(plan: Plan, left_bytes: int | None) -> tuple[Plan, bool]:
    """Return the leading rows of a plan within a limit, and whether it cut any off."""
    import numpy as np

    from hmd.units import PAGE_BYTES

    if left_bytes is None:
        return plan, False
    total = np.cumsum(plan.pages, dtype=np.int64) * PAGE_BYTES
    count = int(np.searchsorted(total, left_bytes, "right"))
    return plan.take(np.arange(count)), count < len(plan)


def _apply_plan(plan: Plan, mover: Mover, totals: MoveTotals) -> None:
    """Apply a whole plan: rows that the rate limit defers are applied later."""
    import time

    import numpy as np

    from hmd.migrate import MoveStatus
    from hmd.units import HUGE_PAGE_BYTES

    while len(plan):
        outcome = mover.apply(plan)
        rest = np.flatnonzero(outcome.status == MoveStatus.DEFERRED)
        totals.add(outcome)
        plan = plan.take(rest)
        # A row needs at most the budget of a huge page.
        while len(plan) and mover.budget_bytes() < HUGE_PAGE_BYTES:
            time.sleep(0.01)


def _check_permission(totals: MoveTotals, args: argparse.Namespace) -> None:
    from hmd.migrate import MoveStatus

    if totals.pages[MoveStatus.PERMISSION]:
        raise _not_permitted(args)
    if (
        totals.pages[MoveStatus.GONE] or totals.pages[MoveStatus.INVALID]
    ) and not totals.moved_pages:
        raise _gone(args)
