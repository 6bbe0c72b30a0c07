"""The layouts of ``hmd estimate``: the options, and the pages that they select."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hmd.cli.arguments import address_range, share, size

if TYPE_CHECKING:
    from hmd.estimate.layout import Layout
    from hmd.estimate.page_index import PageIndex


def add_layouts(parser: argparse.ArgumentParser) -> None:
    """Register the options that select pages for fast memory; they exclude each other."""
    group = parser.add_argument_group("which pages are fast (all others are slow)")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--hot-first", type=share, metavar="P%", help="the hottest pages: this share of them"
    )
    which.add_argument(
        "--cold-first", type=share, metavar="P%", help="the coldest pages: this share of them"
    )
    which.add_argument(
        "--fast-bytes", type=size, metavar="SIZE", help="the hottest pages that fit, as in 512MiB"
    )
    which.add_argument(
        "--interleave", type=share, metavar="P%", help="this share of pages, evenly spread"
    )
    which.add_argument(
        "--range",
        dest="ranges",
        type=address_range,
        action="append",
        metavar="START-END",
        help="pages at these addresses, hexadecimal, END exclusive; may be repeated",
    )
    which.add_argument(
        "--layout",
        type=Path,
        metavar="FILE",
        help="pages in a file's ranges: one START-END per line, # starts a comment; or a JSON list",
    )
    which.add_argument(
        "--sweep",
        action="store_true",
        help="the hottest pages, from none to all: how much fast memory the program needs",
    )


def by_heat(args: argparse.Namespace) -> bool:
    """Return whether the layout is selected by samples."""
    options = (args.hot_first, args.cold_first, args.fast_bytes)
    return args.sweep or any(option is not None for option in options)


def asked_layout(args: argparse.Namespace, pages: PageIndex) -> tuple[str, Layout] | None:
    """Return the requested layout and its name, None without one."""
    from hmd.estimate import layout
    from hmd.units import PAGE_BYTES

    def heat(part: float, *, hot_first: bool) -> Layout:
        return layout.by_heat(pages, round(part * len(pages)), hot_first=hot_first)

    if args.hot_first is not None:
        return f"hottest {args.hot_first:.0%}", heat(args.hot_first, hot_first=True)
    if args.cold_first is not None:
        return f"coldest {args.cold_first:.0%}", heat(args.cold_first, hot_first=False)
    if args.interleave is not None:
        return f"interleaved {args.interleave:.0%}", layout.interleaved(pages, args.interleave)
    if args.fast_bytes is not None:
        return "hottest that fit", layout.by_heat(pages, args.fast_bytes // PAGE_BYTES)
    if args.ranges:
        return "ranges", layout.in_ranges(pages, args.ranges)
    if args.layout is not None:
        from hmd.estimate import read_layout

        return args.layout.name, read_layout(args.layout, pages)
    return None
