"""``hmd estimate``: how long a program would take with its pages placed otherwise."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hmd.cli.arguments import address_range, share, size
from hmd.errors import Exit, TargetError

if TYPE_CHECKING:
    from hmd.cli.main import Subparsers
    from hmd.estimate.layout import Layout
    from hmd.estimate.pages import PageIndex

DESCRIPTION = """\
Predict how long a program takes with some of its pages in fast memory and the rest in slow, from
two recorded runs: one with all pages slow, one with all fast.

The model is the published differential tracing of ISC 2022: both runs are cut into windows; in
each, the gain of the fast run is shared out by how many accesses would go to fast memory.
"""

EXAMPLES = """\
examples:
  hmd record -o slow.hmdt --tier slow -- ./program
  hmd record -o fast.hmdt --tier fast -- ./program
  hmd estimate slow.hmdt fast.hmdt --hot-first 25%     the hottest quarter of its pages fast
  hmd estimate slow.hmdt fast.hmdt --fast-bytes 512MiB the hottest that fit
  hmd estimate slow.hmdt fast.hmdt --interleave 50%    every second page
  hmd estimate slow.hmdt fast.hmdt --sweep             a table from 0 to 100 % of its pages
  hmd estimate slow.hmdt fast.hmdt --range 7f0000000000-7f0040000000

Pages are those that were sampled; addresses are those of the slow run.
"""

SWEEP_STEPS = 10


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
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--hot-first", type=share, metavar="P%", help="the hottest pages fast: this share of them"
    )
    which.add_argument("--cold-first", type=share, metavar="P%", help="the coldest pages fast")
    which.add_argument(
        "--interleave", type=share, metavar="P%", help="this share of pages fast, evenly spread"
    )
    which.add_argument(
        "--fast-bytes", type=size, metavar="SIZE", help="the hottest pages that fit, as in 512MiB"
    )
    which.add_argument(
        "--range",
        dest="ranges",
        type=address_range,
        action="append",
        metavar="START-END",
        help="pages at these addresses fast, hexadecimal; may be repeated",
    )
    which.add_argument(
        "--sweep", action="store_true", help="the hottest pages fast, from none of them to all"
    )
    parser.add_argument(
        "--window",
        type=_milliseconds,
        default=50.0,
        metavar="MS",
        help="length of a window of the slow run in milliseconds (default 50)",
    )
    parser.add_argument(
        "--cut-by",
        choices=("time", "accesses", "instructions"),
        default="time",
        help="what windows are equal parts of, in each run (default time)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(func=run)


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1e-3 <= value <= 1e9:
        raise argparse.ArgumentTypeError(f"{text!r}: take milliseconds, as in 50")
    return value


def run(args: argparse.Namespace) -> int:
    """Predict, and print."""
    from hmd.cli.output import print_json, print_table
    from hmd.estimate.isc22 import estimate
    from hmd.estimate.pages import index_pages
    from hmd.estimate.windows import CutBy, cut, window_count
    from hmd.machine.process import PAGE_BYTES
    from hmd.trace.reader import read_trace

    slow, fast = read_trace(args.slow), read_trace(args.fast)
    if not len(slow.samples):
        raise TargetError(f"{args.slow} has no samples: record with a shorter --period")
    pages = index_pages(slow)
    count = window_count(slow, args.window * 1e6)
    by = CutBy(args.cut_by)
    slow_windows, fast_windows = cut(slow, count, by), cut(fast, count, by)
    accesses = max(float(pages.accesses.sum()), 1.0)
    rows = [
        _Row(
            name,
            int(layout.sum()) * PAGE_BYTES,
            float(pages.accesses[layout].sum()) / accesses,
            found.runtime_ns / 1e9,
            found.runtime_ns / max(fast.runtime_ns, 1),
        )
        for name, layout in _layouts(args, pages)
        for found in [estimate(slow_windows, fast_windows, pages, layout)]
    ]
    if args.json:
        print_json(
            {
                "model": "isc22",
                "windows": count,
                "pages": len(pages),
                "slow_s": slow.runtime_ns / 1e9,
                "fast_s": fast.runtime_ns / 1e9,
                "estimates": rows,
            }
        )
    else:
        columns = ["layout", "fast memory", "accesses there", "runtime", "over all fast"]
        print_table(columns, [row.cells() for row in rows], right=columns[1:])
    return Exit.OK


@dataclass(frozen=True, slots=True)
class _Row:
    """One layout's prediction."""

    layout: str
    fast_bytes: int
    access_share: float
    runtime_s: float
    over_all_fast: float

    def cells(self) -> list[str]:
        """Return it for people."""
        return [
            self.layout,
            f"{self.fast_bytes / 2**20:,.1f} MiB",
            f"{self.access_share:.1%}",
            f"{self.runtime_s:.3f} s",
            f"{self.over_all_fast:.3f}",
        ]


def _layouts(args: argparse.Namespace, pages: PageIndex) -> list[tuple[str, Layout]]:
    """Return the layouts that were asked for, between those that were recorded."""
    from hmd.estimate import layout
    from hmd.machine.process import PAGE_BYTES

    def heat(part: float, *, hot_first: bool) -> Layout:
        return layout.by_heat(pages, round(part * len(pages)), hot_first=hot_first)

    asked: list[tuple[str, Layout]] = []
    if args.hot_first is not None:
        asked.append((f"hottest {args.hot_first:.0%}", heat(args.hot_first, hot_first=True)))
    elif args.cold_first is not None:
        asked.append((f"coldest {args.cold_first:.0%}", heat(args.cold_first, hot_first=False)))
    elif args.interleave is not None:
        asked.append(
            (f"interleaved {args.interleave:.0%}", layout.interleaved(pages, args.interleave))
        )
    elif args.fast_bytes is not None:
        fits = args.fast_bytes // PAGE_BYTES
        asked.append(("hottest that fit", layout.by_heat(pages, fits)))
    elif args.ranges:
        asked.append(("ranges", layout.in_ranges(pages, args.ranges)))
    elif args.sweep:
        parts = [step / SWEEP_STEPS for step in range(1, SWEEP_STEPS)]
        asked += [(f"hottest {part:.0%}", heat(part, hot_first=True)) for part in parts]
    return [
        ("all slow", layout.all_slow(pages)),
        *asked,
        ("all fast", layout.all_fast(pages)),
    ]
