"""The result of ``hmd migrate``: a table or JSON, with advice for each failure."""

from __future__ import annotations

import argparse
from typing import Any

from hmd.cli.output import format_bytes, format_count, print_table
from hmd.errors import HmdError
from hmd.migrate import MoveStatus
from hmd.migrate.totals import MoveTotals
from hmd.units import PAGE_BYTES


def failure(totals: MoveTotals, args: argparse.Namespace) -> HmdError | None:
    """Return the error of a migration that moved none of its pages, else None."""
    if totals.moved_pages or not totals.failures:
        return None
    reason = max(totals.failures, key=lambda status: totals.failures[status])
    return HmdError(f"nothing was moved to node {args.to}: {_advice(reason, args)}")


def _advice(reason: MoveStatus, args: argparse.Namespace) -> str:
    node, pid = args.to, args.pid
    return {
        MoveStatus.NO_MEMORY: "it is full; free memory there ('hmd topology' shows it)"
        " or move less with --limit",
        MoveStatus.CPUSET: f"the cpuset of process {pid} excludes this node; "
        f"add {node} to cpuset.mems of its cgroup",
        MoveStatus.OFFLINE: "it has no memory now; bring it online or choose another",
        MoveStatus.SHARED: "other processes map these pages too; --shared moves them",
        MoveStatus.BUSY: "a device or the kernel uses the pages; try again later",
        MoveStatus.UNMOVABLE: "these pages cannot be moved (the zero page, devices)",
        MoveStatus.NOT_PRESENT: "the process freed its pages meanwhile; try again",
        MoveStatus.GONE: f"process {pid} has exited",
    }.get(reason, "the kernel refused; see 'dmesg'")


def document(totals: MoveTotals, args: argparse.Namespace) -> dict[str, Any]:
    """Return the JSON form; pages are of 4 KiB."""
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
        "pages": {status.name.lower(): pages for status, pages in sorted(totals.pages.items())},
        "calls": totals.calls,
        "seconds": round(totals.seconds, 6),
    }


def print_totals(totals: MoveTotals, args: argparse.Namespace) -> None:
    """Print a table of pages by result, the sum, and advice on failures."""
    if not totals.pages:
        where = f"node {args.from_node}" if args.from_node is not None else "another node"
        print(f"Nothing to move: process {args.pid} has no movable pages on {where}.")
        return
    rows = [
        (
            status.name.lower().replace("_", " "),
            format_count(pages),
            format_bytes(pages * PAGE_BYTES),
        )
        for status, pages in sorted(totals.pages.items())
    ]
    print_table(("pages", "count", "size"), rows, right=("count", "size"))
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
    return status.name.lower().replace("_", " ")
