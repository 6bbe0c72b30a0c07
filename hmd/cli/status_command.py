# SPDX-License-Identifier: MIT
"""``hmd status``: the daemon's state, and the memory of each process by tier.

The daemon's status document as lines and a table, for ``hmd status`` and ``hmd top``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from hmd.base.errors import Exit, HmdError
from hmd.base.units import PAGE_BYTES
from hmd.cli.output import console, format_bytes, format_count, format_share, print_json, table
from hmd.control.client import ask
from hmd.sample.sampler import CAPABILITIES

if TYPE_CHECKING:
    from rich.table import Table

Status = Mapping[str, Any]
SAID_KNOWN: Final = 0.95
"""Below this share of pages that are known one by one, memory by tier is marked."""
Rates = Mapping[str, tuple[float, float]]
"""Promoted and demoted bytes per second, by target name and by ``pid:start``."""


def summary(status: Status) -> list[str]:
    """Return the lines above the table: daemon, sampler, moves, and problems."""
    sampler, moves = status["sampler"], status["moves"]
    up_s = int(status["uptime_s"])
    lines = [
        f"hmd {status['version']}, pid {status['pid']}, up {_age(up_s)}, "
        f"{format_count(status['ticks'])} ticks of {status['tick_s']:.3g} s, "
        f"policy {status['policy']}, {status['config_file']}"
        + (", dry run: nothing is moved" if status["dry_run"] else ""),
        f"sampler {sampler['name']}, period {sampler['period']}, "
        f"{format_count(sampler['samples'])} samples, {format_count(sampler['lost'])} lost"
        f"{_overhead(status)}; daemon: {status['cpu_s'] / max(up_s, 1) * 100:.1f} % of a CPU, "
        f"{format_bytes(status['resident_bytes'])}",
        f"moved {format_bytes(moves['promoted_bytes'])} up, "
        f"{format_bytes(moves['demoted_bytes'])} down" + _failures(moves),
    ]
    lines += dry_run_state(status)
    lines += budget_state(status)
    lines += far_state(status.get("far") or {})
    lines += profile_state(status.get("profiles") or {})
    lines += admin_state(status.get("control") or {})
    if len(status["tiers"]) < 2:
        lines.append("only one memory tier: hmd has nowhere to move pages (hmd topology)")
    able = CAPABILITIES.get(sampler["name"])
    if able is not None and not able.ranks_heat:
        lines.append("no PMU: page faults stand in for accesses, which is coarse (hmd doctor)")
    if status.get("compiling"):
        lines.append("compiling kernels, for about a minute: no process is followed until then")
    for target in status["targets"]:
        if reason := target.get("empty_reason"):
            lines.append(f"target {target['name']}: {reason}")
        if target.get("resting"):
            lines.append(f"target {target['name']} is outside of its hours: it is only observed")
        if (off := target.get("off_fastest_bytes")) is not None:
            why = " (hmd config check says what keeps more from going there)" if off else ""
            size = format_bytes(off)
            lines.append(f"target {target['name']} is never slow: {size} off the fastest tier{why}")
    if rates := status.get("tier_rates"):
        limits = ", ".join(f"{tier}: {format_bytes(each)}/s" for tier, each in enumerate(rates))
        lines.append(f"most that moves into and out of tiers, {limits}")
    if not status["reload"]["successful"]:
        lines.append(
            f"last reload failed, the old configuration stays: {status['reload']['error']}"
        )
    return lines


def dry_run_state(status: Status) -> list[str]:
    """Return what dry runs would have done: a line per target, and what the last plan names."""
    dry = {target["name"]: target["would"] for target in status["targets"] if target.get("dry_run")}
    if len(dry) > 1:
        whole = {key: sum(each[key] for each in dry.values()) for key in next(iter(dry.values()))}
        dry["all of them"] = whole | {"seconds": max(each["seconds"] for each in dry.values())}
    lines = []
    for name, would in dry.items():
        net_s = would["saved_s"] - would["lost_s"]
        hours = max(would["seconds"], 1.0) / 3600
        lines.append(
            f"dry run of {name} for {_age(int(would['seconds']))}: would have moved"
            f" {format_bytes(would['promoted_bytes'])} up,"
            f" {format_bytes(would['demoted_bytes'])} down, and saved"
            f" {net_s:.3g} s of waiting for memory ({net_s / hours:.3g} s per hour)"
        )
    planned = next((tick for tick in reversed(status.get("rounds", ())) if tick["dry_run"]), None)
    for flow in planned["flows"] if lines and planned else ():
        lines.append(
            f"  planned now: {flow['target']} {format_bytes(flow['planned_pages'] * PAGE_BYTES)}"
            f" from node {flow['from_node']} to node {flow['to_node']},"
            f" {flow['heat']:.3g} accesses per second and page"
        )
    return lines


def _overhead(status: Status) -> str:
    """Return the share of a CPU that samples take of programs, nothing where that is not known."""
    taken = (status.get("budget") or {}).get("overhead", 0.0)
    return f", {taken:.1%} of programs' time" if taken else ""


def budget_state(status: Status) -> list[str]:
    """Return a line on what gives way so that the CPU quota is kept, none where nothing does."""
    budget = status.get("budget") or {}
    given = []
    if budget.get("stretch", 1.0) > 1:
        given.append(f"ticks {budget['stretch']:.3g} times as long")
    if budget.get("plan_ticks", 1) > 1:
        given.append(f"a plan every {budget['plan_ticks']} ticks")
    if not given:
        return []
    quota = budget.get("quota") or status["cpu_quota"]
    return [f"for the CPU quota of {format_share(quota)}: {', '.join(given)}"]


def far_state(far: Mapping[str, Any]) -> list[str]:
    """Return a line on memory that is paged out, and why no more is."""
    lines = [f"page-out is stopped: {far['stopped']} (hmd doctor)"] if far.get("stopped") else []
    if far.get("out_bytes") or far.get("held_processes"):
        lines.append(
            f"paged out {format_bytes(far['out_bytes'])}, read ahead of use"
            f" {format_bytes(far['ahead_bytes'])}, {far['held_processes']} processes held since"
            " their cgroups wait for memory"
        )
    return lines


def profile_state(profiles: Mapping[str, Any]) -> list[str]:
    """Return what is known of programs from former runs, and why nothing is learned."""
    if profiles.get("stopped"):
        return [f"nothing is learned of programs: {profiles['stopped']}"]
    if not profiles.get("count") and not profiles.get("refused"):
        return []
    saved_s = profiles.get("saved_s", 0.0)
    saved = f"; moves by profiles {'saved' if saved_s > 0 else 'cost'} {abs(saved_s):.3g} s"
    refused = f", {profiles['refused']} refused (see the log)" if profiles["refused"] else ""
    return [
        f"programs known from former runs: {profiles['count']}; processes that run one:"
        f" {profiles['processes']}{refused}{saved if saved_s else ''}"
    ]


def admin_state(control: Mapping[str, Any]) -> list[str]:
    """Return a line for each admin request in force."""
    lines = []
    if control.get("paused"):
        lines.append("paused: no page moves (hmd resume)")
    if control.get("policy_ordered"):
        lines.append("the policy is set by an admin request (hmd policy use --default)")
    for drain in control.get("drains", ()):
        state = "nothing more can be moved" if drain["settled"] else "under way"
        size = format_bytes(drain["use"]["program_bytes"])
        lines.append(
            f"node {drain['node']} is drained, {size} of programs left, {state} (hmd undrain)"
            if drain["there"]
            else f"node {drain['node']} was drained and has been removed (hmd undrain)"
        )
    if control.get("pinned"):
        first = ", ".join(_pin(pin) for pin in control["pins"][:4])
        more = ", …" if control["pinned"] > 4 else ""
        lines.append(f"pinned: {first}{more} (hmd unpin)")
    if control.get("until_restart"):
        lines.append(f"ends with the daemon: {', '.join(control['until_restart'][:8])}")
    if control.get("restored"):
        lines.append(f"restored at the start: {control['restored']}")
    if control.get("not_restored"):
        lines.append(f"NOT restored at the start: {control['not_restored']}")
    return lines


def _pin(pin: Mapping[str, Any]) -> str:
    who = f"pid {pin['pid']}" if pin["pid"] else f"target {pin['target']}"
    return who if pin["node"] is None else f"{who} to node {pin['node']}"


def process_table(status: Status, rates: Rates | None = None) -> Table:
    """Return a row for each target, and below it one for each of its processes.

    With ``rates`` the moves are bytes per second, else sums since the start.
    """
    tiers = [
        f"tier {i} (node {','.join(map(str, nodes))})" for i, nodes in enumerate(status["tiers"])
    ]
    moved = ["up/s", "down/s"] if rates is not None else ["moved up", "moved down"]
    numbers = [*tiers, "fast share", *moved, "failed"]
    rows: list[list[str]] = []
    for target in status["targets"]:
        processes = [p for p in status["processes"] if p["target"] == target["name"]]
        rows.append([target["name"], "", *_cells(target, target["name"], rates)])
        for process in sorted(processes, key=lambda p: -sum(p["resident_bytes"])):
            key = process_key(process)
            name = f"  {process['name']}"
            rows.append([name, str(process["pid"]), *_cells(process, key, rates)])
    return table(["target", "pid", *numbers], rows, right=["pid", *numbers])


def process_key(process: Mapping[str, Any]) -> str:
    """Return the identity of a process: pid and start time."""
    return f"{process['pid']}:{process['start_ticks']}"


def _cells(row: Mapping[str, Any], key: str, rates: Rates | None) -> list[str]:
    up, down = row["promoted_bytes"], row["demoted_bytes"]
    if rates is not None:
        up, down = rates.get(key, (0.0, 0.0))
    sizes = [*map(format_bytes, row["resident_bytes"])]
    if row.get("known", 1.0) < SAID_KNOWN:
        sizes[0] += f" ({row['known']:.0%} known)"
    return [
        *sizes,
        format_share(row["fast_share"]),
        format_bytes(up),
        format_bytes(down),
        format_count(row["failed_pages"]),
    ]


def _failures(moves: Mapping[str, Any]) -> str:
    reasons = ", ".join(
        f"{_word(reason)} {format_count(pages)}"
        for reason, pages in sorted(moves["failures"].items(), key=lambda item: -item[1])
    )
    return f", {format_count(moves['failed_pages'])} pages failed ({reasons})" if reasons else ""


def _word(reason: str) -> str:
    """Return what tables say of a reason; a newer daemon may have one that is not known here."""
    from hmd.migrate.status import MoveStatus

    status = MoveStatus.__members__.get(reason.upper())
    return reason.replace("_", " ") if status is None else status.word


def _age(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    return f"{days}d {hours:02}:{minutes:02}" if days else f"{hours}:{minutes:02}:{rest:02}"


DESCRIPTION = "Show what the running daemon does, and the memory of each process by tier."

EXAMPLES = """\
examples:
  hmd status                                    daemon, sampler, memory of each process by tier
  hmd status --json | jq .moves                 the same for programs
  hmd status --check                            exit code 1 where ticks do not end in time
  hmd status --socket /run/user/1000/hmd.sock   a daemon with another observe.socket

Exit code 6 if no daemon answers.
"""

OPTIONS = """\
--socket
--json     print JSON: bytes, seconds, shares
--check    print the age of the last tick only; exit code 1 where it is too old (for probes)
"""


def run(args: argparse.Namespace) -> int:
    """Print the daemon's answer."""
    if args.check:
        health = ask(args.socket, "health")
        if args.json:
            print_json(health)
        else:
            print(health["text"])
        return Exit.OK if health["healthy"] is True else Exit.FAILURE
    status: dict[str, Any] = ask(args.socket, "status")

    if args.json:
        print_json(status)
        return Exit.OK
    out = console()
    for line in summary(status):
        out.print(line, markup=False)
    from hmd.cli.report_command import balance

    with suppress(HmdError):  # a daemon without history
        whole = ask(args.socket, "report", {"since_s": 3600.0})["whole"]
        out.print(f"last hour: {balance(whole)} (hmd report)", markup=False)
    out.print(process_table(status), crop=False)
    hidden = sum(target["process_count"] for target in status["targets"]) - len(status["processes"])
    if hidden > 0 and os.geteuid() != 0:
        out.print(f"{hidden} more processes; those of other users are shown to root only")
    return Exit.OK
