# SPDX-License-Identifier: MIT
"""``hmd report``: what hmd did in the last hour, day or week, and whether it was worth it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

from hmd.base.errors import HmdError, TargetError
from hmd.cli.arguments import duration
from hmd.cli.output import format_bytes, format_latency, format_share, print_json, print_table
from hmd.control.client import ADMIN_TIMEOUT_S, ask

DESCRIPTION = """\
Show what hmd did: moves and why, what they saved and cost, what hmd itself took, what
administrators did; of a dry run, what it would have saved. From the history that the daemon keeps
in its state folder (/var/lib/hmd/history.hmd): by minute for about a day, by hour for weeks, by day
for a year. The saving is stall time: waiting for memory, by later samples of the moved pages.
"""

EXAMPLES = """\
examples:
  hmd report                                     the last hour
  hmd report --since 7d redis                    a week of one target, as after a dry run
  hmd report --since 1d --json                   bytes, seconds, shares, for other programs
  hmd report --file /var/lib/hmd/history.hmd     without a daemon

Means are over the time that is recorded. Exit code 5 for a target that the history lacks, 6 if no
daemon answers.
"""

OPTIONS = """\
--socket
[TARGET]       one target instead of all
--since TIME = 1h
               as in 30min, 7d (default 1h)
--file FILE    read this history
--json         print JSON: bytes, seconds, rates
"""

TYPES = {"since": duration}


def run(args: argparse.Namespace) -> None:
    """Print the report."""
    if args.file is not None:
        from hmd.metrics.history import History, report

        now_s = time.time()
        found = report(History(args.file), now_s - args.since, now_s)
    else:
        found = ask(args.socket, "report", {"since_s": args.since}, timeout_s=ADMIN_TIMEOUT_S)
    targets = found["targets"]
    if args.target is not None:
        if args.target not in targets:
            known = ", ".join(targets) or "none"
            raise TargetError(f"no target {args.target!r} in this time: there are {known}")
        targets = found["targets"] = {args.target: targets[args.target]}
    if args.json:
        print_json(found)
    elif not found["whole"]["seconds"]:
        raise HmdError("nothing is recorded of this time yet: the first minute is not over")
    else:
        _print(found, targets)


def _print(found: Mapping[str, Any], targets: Mapping[str, Any]) -> None:
    whole = found["whole"]
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(found["since_s"]))
    print(f"since {since}, {whole['seconds'] / 3600:.2g} h recorded")
    tiers = max((_used(t["resident_bytes"]) for t in targets.values()), default=1)
    numbers = [*(f"tier {tier}" for tier in range(tiers)), "accesses/s", "fast share", "latency"]
    numbers += ["moved up", "down", "by request", "saved s", "cost s"]
    print_table(
        ["target", *numbers],
        [
            (
                name,
                *map(format_bytes, row["resident_bytes"][:tiers]),
                f"{row['accesses_per_s']:.3g}",
                format_share(row["fast_share"]),
                format_latency(row["load_latency_s"]),
                *(
                    format_bytes(row[f"{way}_bytes"])
                    for way in ("promoted", "demoted", "requested")
                ),
                f"{row['saved_s'] - row['lost_s']:.3g}",
                f"{row['move_cost_s']:.3g}",
            )
            for name, row in targets.items()
        ],
        right=numbers,
    )
    for name, row in {**targets, **({"all targets": whole} if len(targets) > 1 else {})}.items():
        dry, seconds = row["dry_run"], min(row["dry_run"]["seconds"], whole["seconds"])
        if seconds:
            net_s = dry["saved_s"] - dry["lost_s"]
            print(
                f"{name}: in {seconds / 3600:.3g} h of dry run hmd would have moved"
                f" {format_bytes(dry['promoted_bytes'])} up,"
                f" {format_bytes(dry['demoted_bytes'])} down, and saved {net_s:.3g} s of waiting"
                f" ({net_s / seconds:.2%} of the time)"
            )
    print(balance(whole))
    failed = ", ".join(f"{reason} {pages:.0f}" for reason, pages in whole["failures"].items())
    print(
        f"hmd took {whole['cpu_s'] / whole['seconds']:.2%} of a CPU and"
        f" {format_bytes(whole['memory_bytes'])}; records of samples took"
        f" {whole['sampling_overhead']:.2%} of programs' time; paused {whole['paused_s']:.0f} s"
        + (f"; pages that could not be moved: {failed}" if failed else "")
    )
    print_events(found["events"])


def balance(whole: Mapping[str, Any]) -> str:
    """Return what moves saved and cost, in one line."""
    if not whole["promoted_bytes"] + whole["demoted_bytes"]:
        return "hmd moved nothing"
    net_s = whole["saved_s"] - whole["lost_s"] - whole["move_cost_s"]
    return (
        f"moves saved {whole['saved_s']:.3g} s of waiting for memory, and cost"
        f" {whole['lost_s']:.3g} s for pages that made room and about {whole['move_cost_s']:.3g} s"
        f" of copying: {'worth it' if net_s > 0 else 'not worth it'}, {net_s:.3g} s"
    )


def _used(sizes: list[float]) -> int:
    return max((tier + 1 for tier, size in enumerate(sizes) if size), default=1)


def print_events(events: list[dict[str, Any]]) -> None:
    """Print what administrators did, and what happened to the daemon."""
    for event in events:
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(event["at_s"]))
        who = f"uid {event['uid']}: " if event["uid"] >= 0 else ""
        print(f"  {at} {who}{event['text']}")
