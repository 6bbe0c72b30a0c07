# SPDX-License-Identifier: MIT
"""``hmd top``: a live table of memory by tier and of page moves."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING

from hmd.base.errors import UnreachableError
from hmd.base.paths import SOCKET
from hmd.cli.arguments import whole_number
from hmd.cli.numa_command import VIEW, each_interval, print_views
from hmd.cli.output import console, print_json_line
from hmd.cli.status_command import process_key, process_table, summary
from hmd.control.client import ask

if TYPE_CHECKING:
    from rich.console import Group

    from hmd.cli.status_command import Rates, Status

DESCRIPTION = """\
Show live, per target and process, memory by tier and bytes moved.

Where no daemon answers, or with --all: on which nodes the memory of all processes is ('hmd numa').
"""

EXAMPLES = """\
examples:
  hmd top                        refresh every second; q or Ctrl-C leaves
  hmd top -n 1                   one table, then exit
  hmd top --all                  all processes of the machine; arrows scroll, / filters, s sorts
  hmd top --cgroups              all cgroups
  hmd top --interval 10 >> log   not on a terminal: one more table every 10 seconds
  hmd top --json --interval 5    one line of JSON every 5 seconds, for programs

columns:
  tier N      resident memory in that tier, by the kernel's count
  fast share  share of recent sampled accesses that the fastest tier served
  up, down    bytes per second moved to a faster, to a slower tier
  failed      pages that could not be moved, since the start
"""

OPTIONS = f"""\
--socket
--all            all processes of the machine, whether a daemon runs or not
{VIEW}--interval TIME = 1s
                 time between two requests, as in 500ms or 10 (seconds; default 1s)
--json           print one line of JSON per request
"""

TYPES = {"n": whole_number()}


def run(args: argparse.Namespace) -> None:
    """Show the daemon's status repeatedly, until the user leaves."""

    def read() -> Status:
        return ask(args.socket, "status")

    if args.all or args.cgroups:
        print_views(args, args.n)
        return
    try:
        read()
    except UnreachableError as error:
        # Programs get one kind of document, and who names a daemon means it.
        if args.json or args.socket != SOCKET:
            raise
        print(f"hmd: {error}; until then all processes are shown (hmd top --all)", file=sys.stderr)
        print_views(args, args.n)
        return
    if args.json:
        _stream(read, args.interval, args.n, lambda s, r: print_json_line({**s, "rates": r or {}}))
    elif args.n or console().is_dumb_terminal or not sys.stdout.isatty():
        _stream(read, args.interval, args.n, _print_screen)
    else:
        _live(read, args.interval)


def rates_between(before: Status, after: Status) -> Rates:
    """Return bytes moved per second between two answers, by target and by process.

    Empty if no tick ended between them. A new process or target counts from zero.
    """
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


@contextlib.contextmanager
def single_keys() -> Iterator[Callable[[float], str]]:
    """Give a function that waits so many seconds, or for keys of a terminal, and returns them.

    Keys are read one by one without echo; at the end the terminal is as it was.
    """
    fd = sys.stdin.fileno()
    terminal = sys.stdin.isatty()

    def wait(seconds: float) -> str:
        ready, _, _ = select.select([fd] if terminal else [], [], [], seconds)
        return os.read(fd, 64).decode("ascii", "replace") if ready else ""

    if not terminal:
        yield wait
        return
    saved = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield wait
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, saved)


def _stream(
    read: Callable[[], Status],
    interval_s: float,
    count: int | None,
    show: Callable[[Status, Rates | None], None],
) -> None:
    """Show the status ``count`` times, once per interval, or until the reader leaves."""
    previous: Status | None = None
    for _ in each_interval(interval_s, count):
        status = read()
        show(status, previous and rates_between(previous, status))
        previous = status


def _print_screen(status: Status, rates: Rates | None) -> None:
    console().print(_screen(status, rates))
    sys.stdout.flush()


def _live(read: Callable[[], Status], interval_s: float) -> None:
    from rich.live import Live

    previous, rates = read(), None
    with single_keys() as wait, Live(console=console(), screen=True, auto_refresh=False) as live:
        while True:
            status = read()
            # Nothing moves between two ticks: the rates shown stay.
            rates = rates_between(previous, status) or rates
            live.update(_screen(status, rates), refresh=True)
            previous = status
            if "q" in wait(interval_s):
                return


def _screen(status: Status, rates: Rates | None) -> Group:
    from rich.console import Group
    from rich.text import Text

    return Group(*map(Text, summary(status)), process_table(status, rates))
