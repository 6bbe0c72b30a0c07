# SPDX-License-Identifier: MIT
"""``hmd record``: a program's sampled accesses, mappings and placement, into a trace file."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hmd.base.atomic_file import check_writable
from hmd.base.errors import Exit, UsageError
from hmd.cli.arguments import add_options, whole_number
from hmd.cli.output import in_seconds, write_json
from hmd.sample.sampler import CAPABILITIES

if TYPE_CHECKING:
    from hmd.trace.session import RecordResult

DESCRIPTION = """\
Record the memory accesses of a program and its children, or of running processes, in a trace:
sampled accesses with time, address, thread and latency; mappings; the node of each page; the
runtime.

From two traces of one program, one with --tier slow and one with --tier fast, 'hmd estimate'
predicts the runtime of any other placement.
"""

EXAMPLES = """\
examples:
  hmd record -o run.hmdt -- ./program --its options
  hmd record -o slow.hmdt --tier slow -- ./program    all memory on the slowest tier
  hmd record -o fast.hmdt --tier fast -- ./program    all memory on the fastest tier
  hmd record -o db.hmdt --pid 4711 --seconds 30       a running process, for 30 seconds
  hmd record -o db.hmdt --unit postgresql@15-main --seconds 5min   all processes of a service
  hmd record -o all.hmdt --all --seconds 30           the whole machine
  hmd record -o run.hmdt --json run.json -- ./program  the summary as JSON, in a file
  hmd trace info run.hmdt                             what was recorded

The exit code is the program's own, or 0 if the program runs on. Ctrl-C and SIGTERM end the
recording and keep it.
"""

OPTIONS = f"""\
-o, --output FILE   the trace to write
--pid PID ...       record a running process and its children; may be repeated
--cgroup PATH ...   record the processes of a control group and of those below it; may be repeated
--unit NAME ...     record those of a systemd unit; may be repeated
--user NAME         record those of a user, by name or number
--all               record all processes
--tier {{fast,slow}}  place all memory of the command on the fastest or the slowest tier, without
                    address randomisation
--randomize         with --tier, keep address randomisation: 'hmd estimate' can then use the samples
                    of the slow run only
--period N          accesses per sample; for damon, milliseconds between two cycles (default: the
                    sampler's own)
--sampler {{auto,{",".join(CAPABILITIES)}}} = auto
                    sampler (default auto: the best that works here)
--loads {{auto,miss,latency}} = auto
                    loads that a PMU samples: those that miss the last-level cache, or slow ones,
                    whose latencies are known then, but not how many there are (default auto: misses
                    where the CPU can)
--no-pairs          sample loads with one counter only. By default a second counter with another
                    period samples them as well, so that some samples are pairs of misses close
                    together, which show 'hmd estimate' which misses overlap
--interval TIME = 200ms
                    time between two reads of rings and mappings, as in 500ms or 0.5 (seconds;
                    default 200ms)
--seconds TIME      stop recording after this time, as in 5min or 30 (seconds); the program runs on
--json [FILE]       write a summary as JSON at the end (without FILE: to standard error, since
                    standard output is the program's)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hmd record``."""
    add_options(parser, OPTIONS, ("output",), period=whole_number(1 << 31), cgroup=str)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Record until the program ends."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from hmd.linux.targets import TargetSpec
    from hmd.sample.sampler import SampleSettings
    from hmd.trace.recorder import RecordSettings
    from hmd.trace.session import RecordRequest, record_command, record_running

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    target = TargetSpec(
        "recorded",
        pids=tuple(dict.fromkeys(args.pid)),
        user=args.user,
        cgroup=tuple(args.cgroup) or None,
        unit=tuple(args.unit) or None,
    )
    selected = target != TargetSpec("recorded")
    if (command and (selected or args.all)) or not (command or selected or args.all):
        raise UsageError(
            "record: name either a command after --, or running processes by --pid, --cgroup,"
            " --unit, --user or --all"
        )
    if selected and args.all:
        raise UsageError("record: --all is all processes: leave out the other, or --all")
    if not command and args.tier is not None:
        raise UsageError("record: --tier is for a command; 'hmd migrate' moves a running process")
    if args.randomize and args.tier is None:
        raise UsageError("record: --randomize goes with --tier; else addresses are the kernel's")
    if args.json not in (None, "-"):
        check_writable(Path(args.json))
    request = RecordRequest(
        path=args.output,
        tier=args.tier,
        randomize=args.randomize,
        seconds=args.seconds,
        settings=RecordSettings(interval_s=args.interval),
        sample=SampleSettings(
            sampler=args.sampler, period=args.period, loads=args.loads, pairs=not args.no_pairs
        ),
    )
    recorded = record_command(request, command) if command else record_running(request, target)
    _report(args, recorded)
    return Exit.OK if recorded.exit_code is None else recorded.exit_code


def _report(args: argparse.Namespace, recorded: RecordResult) -> None:
    """Report what was recorded on stderr: stdout is the program's."""
    if args.json:
        write_json(args.json, in_seconds(recorded), sys.stderr)
        return
    lost = f", {recorded.lost:,} lost" if recorded.lost else ""
    paired = "" if recorded.pair_period is None else f", loads one in {recorded.pair_period} too"
    modelled = " of modelled time" if recorded.clock == "modelled" else ""
    print(
        f"hmd: {args.output}: {recorded.runtime_ns / 1e9:.3f} s{modelled}, "
        f"{recorded.processes} processes, "
        f"{recorded.samples:,} samples{lost} ({recorded.detail}, one in {recorded.period}{paired})",
        file=sys.stderr,
    )
    if not recorded.samples:
        print(
            "hmd: there are no samples: the program accessed less than one in "
            f"{recorded.period}, or ended before the sampler saw it: take a shorter --period, or "
            "let it run for longer",
            file=sys.stderr,
        )
    if recorded.short_lived:
        print(
            f"hmd: {recorded.short_lived} of {recorded.processes} processes ended before their "
            f"mappings were read: take a shorter --interval (now {args.interval:g} s)",
            file=sys.stderr,
        )
    if recorded.unread:
        print(
            f"hmd: {recorded.unread} of {recorded.processes} processes have no mappings: they are "
            "read in turn, the largest first; record for longer, or fewer processes",
            file=sys.stderr,
        )
