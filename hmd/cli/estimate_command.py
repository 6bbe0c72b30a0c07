"""``hmd estimate``: how long a program would take with its pages placed otherwise."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmd.cli.estimate_layouts import add_layouts, asked_layout
from hmd.errors import Exit, UsageError

if TYPE_CHECKING:
    from hmd.cli.estimate_model import Subject
    from hmd.cli.main import Subparsers
    from hmd.cli.tables.estimate_tables import Answer, EstimateRow
    from hmd.estimate import Layout

DESCRIPTION = """\
Predict how long a program takes with some of its pages in fast memory and the rest in slow memory,
from two recorded runs: one with all pages slow, one with all pages fast. Without a layout: where
the slow run spends its time, and what each region would save in fast memory.

Only sampled pages count; pages without samples cost no time in either memory. Addresses are those
of the slow run.
"""

EXAMPLES = """\
examples:
  hmd record -o slow.hmdt --tier slow -- ./program
  hmd record -o fast.hmdt --tier fast -- ./program
  hmd estimate slow.hmdt fast.hmdt                     which regions should be fast
  hmd estimate slow.hmdt fast.hmdt --sweep             how much fast memory it needs
  hmd estimate slow.hmdt fast.hmdt --sweep --steps 50 --picture sweep.png
  hmd estimate slow.hmdt fast.hmdt --hot-first 25%     the hottest quarter of its pages fast
  hmd estimate slow.hmdt fast.hmdt --fast-bytes 512MiB  the hottest that fit
  hmd estimate slow.hmdt fast.hmdt --range 7f0000000000-7f0040000000 --by region
  hmd estimate slow.hmdt fast.hmdt --layout hot.txt --json
  hmd estimate slow.hmdt fast.hmdt --schedule moves.csv --move-ns 3000

A schedule has one line per move: 1500,7f0000001000,fast moves the page at that address to fast
memory 1500 ms after the start. It starts from the given layout, or from all-slow.

exit codes: 0 done, 1 a trace cannot be read, 2 wrong usage or traces that do not match, 3 an error
in a layout or schedule (with file and line), 4 no matplotlib for the picture
"""

STEPS = 20

_REGIONS = "'hmd estimate SLOW FAST --by region' lists regions with their addresses"


def add_parser(subparsers: Subparsers) -> None:
    """Register ``hmd estimate``."""
    parser = subparsers.add_parser(
        "estimate",
        help="predict the runtime of a placement from two traces",
        usage="hmd estimate [options] SLOW FAST",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    parser.add_argument("slow", type=Path, metavar="SLOW", help="trace with all pages slow")
    parser.add_argument("fast", type=Path, metavar="FAST", help="trace with all pages fast")
    add_layouts(parser)
    _add_answers(parser)
    _add_model(parser)
    parser.set_defaults(func=run)


def _add_answers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--by",
        choices=("phase", "region"),
        help="break the runtime down by one of these only (default: both)",
    )
    group.add_argument(
        "--steps",
        type=_count,
        metavar="N",
        help=f"steps of the sweep, of equally many pages (default {STEPS})",
    )
    group.add_argument(
        "--picture", type=Path, metavar="FILE", help="draw the sweep: a .png, .svg or .pdf"
    )
    group.add_argument(
        "--schedule",
        type=Path,
        metavar="FILE",
        help="add the cost of these migrations: CSV, see below",
    )
    group.add_argument(
        "--move-ns",
        type=_positive,
        metavar="NS",
        help="time that moving a page costs the program, in nanoseconds (default 2000)",
    )
    group.add_argument("--json", action="store_true", help="print JSON: seconds, bytes, shares")


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the model")
    group.add_argument(
        "--model",
        choices=("hmd", "isc22"),
        default="hmd",
        help="hmd's model, or the published differential tracing of ISC 2022 (default hmd)",
    )
    group.add_argument(
        "--cut-by",
        choices=("time", "accesses", "instructions"),
        help="quantity that all windows of a run have in equal parts (default: instructions if "
        "both traces count them, else accesses; isc22: time)",
    )
    group.add_argument(
        "--windows", type=_count, metavar="N", help="hmd: number of windows (default 60)"
    )
    group.add_argument(
        "--window",
        type=_positive,
        metavar="MS",
        help="isc22: length of a window of the slow run in milliseconds (default 50)",
    )


def _count(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if not 1 <= value <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r}: take a whole number from 1 to 100000")
    return value


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1e-3 <= value <= 1e9:
        raise argparse.ArgumentTypeError(f"{text!r}: take a number from 0.001, as in 50")
    return value


def run(args: argparse.Namespace) -> int:
    """Predict, and print."""
    from hmd.cli.output import print_json
    from hmd.cli.tables.estimate_tables import show

    if args.json:
        print_json(answer_document(args))
    else:
        show(*_answer(args))
    return Exit.OK


def answer_document(args: argparse.Namespace) -> dict[str, Any]:
    """Return what ``--json`` prints for these arguments; raises HmdError as the command does."""
    from hmd.cli.tables.estimate_tables import as_json

    return as_json(args.model, *_answer(args))


def _answer(args: argparse.Namespace) -> tuple[Subject, Answer]:
    _refuse(args)
    from hmd.cli.estimate_model import read_subject
    from hmd.cli.plots.plotting import check_picture

    check_picture(args.picture, "or use --json")
    subject = read_subject(args)
    return subject, _swept(args, subject) if args.sweep else _priced(args, subject)


def _refuse(args: argparse.Namespace) -> None:
    """Raise UsageError where options do not go together."""
    published = args.model == "isc22"
    for wrong, why in (
        (published and args.windows is not None, "--windows is hmd's: take --window MS"),
        (published and args.schedule is not None, "--schedule takes --model hmd"),
        (not published and args.window is not None, "--window is isc22's: take --windows N"),
        (args.schedule is not None and args.sweep, "take either --schedule or --sweep"),
        (args.schedule is None and args.move_ns is not None, "--move-ns goes with --schedule"),
        (args.schedule is not None and args.by == "region", "a schedule goes --by phase"),
        (not args.sweep and args.picture is not None, "--picture draws a --sweep: ask for it"),
        (not args.sweep and args.steps is not None, "--steps goes with --sweep"),
        (args.sweep and args.by is not None, "--by goes with one layout, not with --sweep"),
    ):
        if wrong:
            raise UsageError(f"estimate: {why}")


def _swept(args: argparse.Namespace, subject: Subject) -> Answer:
    from hmd.cli.plots.sweep_plot import draw
    from hmd.cli.tables.estimate_tables import Answer

    curve = subject.swept(args.steps or STEPS)
    if args.picture is not None:
        command = " ".join(map(str, subject.slow.about.get("command") or []))
        draw(curve, args.picture, command or None)
    return Answer(_ends(subject), "sweep", curve=curve)


def _priced(args: argparse.Namespace, subject: Subject) -> Answer:
    """Return one layout's answer, or that of a schedule that starts from it."""
    from hmd.cli.tables.estimate_tables import Answer
    from hmd.estimate import by_phase, by_region, find_regions, layout

    slow, fast = _ends(subject)
    asked = asked_layout(args, subject.pages)
    if asked and (args.ranges or args.layout) and not asked[1].any():
        subject.note(f"no sampled page lies in these ranges; {_REGIONS}")
    name, chosen = asked or (slow.layout, layout.all_slow(subject.pages))
    rows = [slow, *([_row(subject, name, chosen)] if asked else []), fast]
    schedule = None
    found = subject.estimate(chosen)
    if args.schedule is not None and subject.model is not None:
        from hmd.estimate import MOVE_NS, price_schedule, read_schedule

        moves, start = read_schedule(args.schedule, subject.pages, chosen)
        if len(moves.page) and (moves.page >= len(subject.pages)).all():
            subject.note(f"no sampled page lies at the addresses of the schedule; {_REGIONS}")
        schedule = price_schedule(subject.model, start, moves, args.move_ns or MOVE_NS)
        found, name = schedule.estimate, args.schedule.name
    phases = by_phase(found, subject.slow_ns, subject.fast_ns) if args.by != "region" else None
    regions = None
    if schedule is None and args.by != "phase":
        within = find_regions(subject.slow, subject.pages)
        regions = by_region(within, subject.accesses, chosen, subject.estimate)
    return Answer(rows, name, phases, regions, schedule=schedule)


def _ends(subject: Subject) -> tuple[EstimateRow, EstimateRow]:
    """Return the layouts that were recorded."""
    from hmd.estimate import layout

    return (
        _row(subject, "all slow", layout.all_slow(subject.pages)),
        _row(subject, "all fast", layout.all_fast(subject.pages)),
    )


def _row(subject: Subject, name: str, chosen: Layout) -> EstimateRow:
    from hmd.cli.tables.estimate_tables import EstimateRow
    from hmd.estimate import interval
    from hmd.units import PAGE_BYTES

    low_s = high_s = None
    if subject.model is not None:
        bounds = interval(subject.model, chosen)
        runtime_ns, low_s, high_s = bounds.runtime_ns, bounds.low_ns / 1e9, bounds.high_ns / 1e9
    else:
        runtime_ns = subject.estimate(chosen).runtime_ns
    return EstimateRow(
        name,
        int(chosen.sum()) * PAGE_BYTES,
        subject.access_share(chosen),
        runtime_ns / 1e9,
        low_s,
        high_s,
        subject.over_all_fast(runtime_ns),
    )
