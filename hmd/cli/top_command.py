"""``hmd top``: a live table of where memory lies and what moves."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING

from hmd.cli.status_command import add_socket
from hmd.errors import Exit

if TYPE_CHECKING:
    from rich.console import Group

    from hmd.cli.main import Subparsers
    from hmd.cli.status_tables import Rates, Status

EXAMPLES = """\
examples:
  hmd top                      refresh every second; q or Ctrl-C leaves
  hmd top --once               one table, and done
  hmd top --json --interval 5  a line of JSON every 5 seconds, for programs

columns:
  tier N      resident memory in that tier, by the kernel's count
  fast share  share of recent sampled accesses that the fastest tier served
  up, down    bytes a second moved to a faster, to a slower tier
  failed      pages that could not be moved, since the start
"""


def add_parser(subparsers: Subparsers) -> None:
    """Register ``hmd top``."""
    parser = subparsers.add_parser(
        "top",
        help="watch processes' memory and page moves, live",
        description="Show, per target and process, memory by tier, and what moves, live.",
        epilog=EXAMPLES,
    )
    add_socket(parser)
    parser.add_argument(
        "--interval",
        type=_interval,
        default=1.0,
        metavar="SECONDS",
        help="time between two looks (default 1)",
    )
    parser.add_argument("--once", action="store_true", help="look once and leave")
    parser.add_argument("--json", action="store_true", help="print a line of JSON a look")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Show looks until one leaves."""
    from hmd.control.client import ask

    def look() -> Status:
        return ask(args.socket, "status")

    if args.json:
        return _stream(look, args.interval, args.once)
    if args.once:
        from hmd.cli.output import console

        console().print(_screen(look(), None))
        return Exit.OK
    return _live(look, args.interval)


def rates_between(before: Status, after: Status) -> Rates:
    """Return bytes moved a second between two looks, by target and by process.

    Empty where no tick ended between them. A process or target that is new counts from zero.
    """
    from hmd.cli.status_tables import process_key

    seconds = after["uptime_s"] - before["uptime_s"]
    if seconds <= 0 or before["pid"] != after["pid"]:
        return {}
    rates = {}
    for rows, key in (("targets", itemgetter("name")), ("processes", process_key)):
        old = {key(row): row for row in before[rows]}
        for row in after[rows]:
            was = old.get(key(row), {"promoted_bytes": 0, "demoted_bytes": 0})
            rates[key(row)] = (
                (row["promoted_bytes"] - was["promoted_bytes"]) / seconds,
                (row["demoted_bytes"] - was["demoted_bytes"]) / seconds,
            )
    return rates


class Keys:
    """Keys as they are pressed, while a terminal is the standard input."""

    def __init__(self, terminal: bool) -> None:
        """Wait for keys, or only for time where there is no terminal."""
        self._terminal = terminal

    def wait(self, seconds: float) -> str:
        """Return the keys pressed within ``seconds``, at once when there are some."""
        if not self._terminal:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return os.read(sys.stdin.fileno(), 64).decode("ascii", "replace") if ready else ""


@contextlib.contextmanager
def single_keys() -> Iterator[Keys]:
    """Let keys arrive one by one and unseen, and put the terminal back at the end."""
    if not sys.stdin.isatty():
        yield Keys(terminal=False)
        return
    fd = sys.stdin.fileno()
    saved = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield Keys(terminal=True)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, saved)


def _interval(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError("an interval is 0.1 to 3600 seconds")
    return seconds


def _stream(look: Callable[[], Status], interval_s: float, once: bool) -> int:
    from hmd.cli.output import print_json_line

    previous = look()
    print_json_line({**previous, "rates": {}})
    while not once:
        time.sleep(interval_s)
        status = look()
        print_json_line({**status, "rates": rates_between(previous, status)})
        previous = status
    return Exit.OK


def _live(look: Callable[[], Status], interval_s: float) -> int:
    from rich.live import Live

    from hmd.cli.output import console

    previous, rates = look(), None
    with single_keys() as keys, Live(console=console(), screen=True, auto_refresh=False) as live:
        while True:
            status = look()
            # Between two ticks nothing can have moved: what was shown stays.
            rates = rates_between(previous, status) or rates
            live.update(_screen(status, rates), refresh=True)
            previous = status
            if "q" in keys.wait(interval_s):
                return Exit.OK


def _screen(status: Status, rates: Rates | None) -> Group:
    from rich.console import Group
    from rich.text import Text

    from hmd.cli.status_tables import process_table, summary

    return Group(*map(Text, summary(status)), process_table(status, rates))
