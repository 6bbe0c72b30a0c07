# SPDX-License-Identifier: MIT
"""``hmd numa``: the memory of all processes or cgroups by node, which needs no daemon.

``hmd top`` shows the same, live, where no daemon answers.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from hmd.base.errors import MissingError, UsageError
from hmd.cli.arguments import whole_number
from hmd.cli.output import console, format_bytes, print_json_line, table

if TYPE_CHECKING:
    from rich.console import Group

    from hmd.linux.machine_memory import MemoryRow
    from hmd.linux.topology import Topology

DESCRIPTION = """\
Show on which nodes the memory of every process, or of every cgroup, is. It needs no daemon; other
users' processes are shown to root only.
"""

EXAMPLES = """\
examples:
  hmd numa                             all processes, largest first
  hmd numa --sort 1 --rows 10          the ten with most memory on node 1
  hmd numa --filter postgresql@15      those whose name, pid or cgroup contains this
  hmd numa --cgroups                   cgroups, with those below them
  hmd numa --json | jq '.rows[0]'      for programs
  hmd top --all                        the same, live

"~" marks shares of the process's cgroup: the process itself was not read.
"""

VIEW = """\
--cgroups        memory of cgroups, not of processes
--sort COLUMN = total
                 total, name, pid, or a node by its number (default total)
--filter TEXT    only rows whose name, pid or cgroup contains TEXT
--cpu TIME = 1s  CPU time to read processes, at most; what it does not suffice for is said (1s)
-n N             number of tables
"""

OPTIONS = f"""\
{VIEW}--interval TIME = 1s
                 time between two tables, as in 500ms or 10 (seconds; default 1s)
--rows N         only the first N rows
--json           print one line of JSON per table
"""

KEYS: Final = "q leaves, arrows scroll, s next column, c cgroups, / filter"
_UNREAD: Final = {
    "forbidden": "which the kernel does not let this user read"
    + (" (try as root)" if os.geteuid() else ""),
    "late": "for which --cpu does not suffice",
}
_STEPS: Final = {"\x1b[A": -1, "k": -1, "\x1b[B": 1, "j": 1, "\x1b[5~": -20, "\x1b[6~": 20}

TYPES = {"n": whole_number(), "rows": whole_number()}


@dataclass(slots=True)
class View:
    """What is shown: ``first`` is the row at the top of a terminal."""

    sort: str
    filter: str
    cgroups: bool
    first: int = 0
    typing: bool = False
    live: bool = False

    def press(self, keys: str, columns: Sequence[str]) -> bool:
        """Take the keys that were read at once; returns whether to leave."""
        if keys in _STEPS and not self.typing:
            self.first = max(self.first + _STEPS[keys], 0)
            return False
        for key in keys:
            if self.typing:
                self.typing = key not in "\n\r\x1b"
                self.filter = self.filter[:-1] if key in "\b\x7f" else self.filter
                self.filter += key if key.isprintable() else ""
            elif key == "q":
                return True
            elif key == "s":
                self.sort = columns[(columns.index(self.sort) + 1) % len(columns)]
            elif key == "c":
                self.cgroups, self.first = not self.cgroups, 0
            elif key == "/":
                self.typing, self.filter, self.first = True, "", 0
        return False

    def select(self, rows: Sequence[MemoryRow]) -> list[MemoryRow]:
        """Return the rows that the filter lets through, sorted: numbers fall."""
        found = [row for row in rows if self.filter in f"{row.name} {row.pid} {row.group}"]
        if self.sort in ("name", "pid"):
            return sorted(found, key=attrgetter(self.sort, "pid"))
        if self.sort == "total":
            return sorted(found, key=lambda row: -row.total_bytes)
        return sorted(found, key=lambda row: -row.node_bytes.get(int(self.sort), 0))


class _Machine:
    def __init__(self, cpu_s: float) -> None:
        from hmd.linux.machine_memory import ProcessMemory
        from hmd.linux.topology import read_topology

        self._cpu_s = cpu_s
        self._processes = ProcessMemory()
        self.topology: Topology = read_topology()
        self.columns = ["total", "name", "pid", *(str(node.id) for node in self.topology.nodes)]

    def read(self, view: View) -> tuple[list[MemoryRow], str]:
        """Return the rows, and what was not read; live, processes where there are no cgroups."""
        from hmd.linux.machine_memory import read_cgroups

        unread: list[str] = []
        if view.cgroups:
            try:
                rows, all_read = read_cgroups(self._cpu_s)
                return rows, "" if all_read else "not all cgroups were read: raise --cpu"
            except MissingError as error:
                if not view.live:
                    raise
                view.cgroups, unread = False, [str(error)]
        rows = self._processes.read(self._cpu_s)
        for known, why in _UNREAD.items():
            sizes = [row.total_bytes for row in rows if row.known == known]
            if sizes:
                unread.append(
                    f"not read: {len(sizes)} processes, {format_bytes(sum(sizes))}, {why}"
                )
        return rows, "; ".join(unread)


def run(args: argparse.Namespace) -> None:
    """Print one table, or as many as were asked for."""
    print_views(args, args.n or 1)


def print_views(args: argparse.Namespace, count: int | None) -> None:
    """Print ``count`` tables, or show them live on a terminal and else for ever."""
    machine = _Machine(args.cpu)
    if args.sort not in machine.columns:
        raise UsageError(f"--sort {args.sort}: sort by {', '.join(machine.columns)}")
    view = View(args.sort, args.filter or "", args.cgroups)
    if count is None and not args.json and sys.stdout.isatty() and not console().is_dumb_terminal:
        view.live = True
        _show_live(machine, view, args.interval)
        return
    for _ in each_interval(args.interval, count):
        rows, unread = machine.read(view)
        shown = view.select(rows)[: getattr(args, "rows", None)]
        if args.json:
            found = [asdict(row) for row in shown]
            print_json_line({"tiers": machine.topology.tiers, "rows": found, "unread": unread})
        else:
            console().print(_screen(machine, view, shown, unread), crop=False)
            sys.stdout.flush()


def each_interval(interval_s: float, count: int | None) -> Iterator[None]:
    """Yield at once and then after every interval, ``count`` times or for ever."""
    for number in itertools.count() if count is None else range(count):
        if number:
            time.sleep(interval_s)
        yield


def _screen(machine: _Machine, view: View, rows: Sequence[MemoryRow], unread: str) -> Group:
    """Return a table of these rows below what was not read."""
    from rich.console import Group
    from rich.text import Text

    nodes = machine.topology.nodes
    tiered = not machine.topology.one_tier
    named = [f"node {node.id}" + f" (tier {node.tier})" * tiered for node in nodes]
    numbers = [*(() if view.cgroups else ("pid",)), "total", *named]
    body = []
    for row in rows:
        mark = "" if row.known == "exact" else "~"
        sizes = [row.node_bytes.get(node.id, 0) for node in nodes]
        cells = [mark + format_bytes(size) if row.node_bytes else "-" for size in sizes]
        labels = [row.name] if view.cgroups else [row.name, row.group, row.pid]
        body.append([*labels, format_bytes(row.total_bytes), *cells])
    texts = ["cgroup"] if view.cgroups else ["process", "cgroup"]
    lines = [Text(line) for line in (unread,) if line]
    return Group(*lines, table([*texts, *numbers], body, right=numbers))


def _show_live(machine: _Machine, view: View, interval_s: float) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from hmd.cli.top_command import single_keys

    def show(live: Live, rows: Sequence[MemoryRow], unread: str) -> None:
        found = view.select(rows)
        height = max(live.console.height - 5 - bool(unread), 1)
        view.first = min(view.first, max(len(found) - height, 0))
        screen = _screen(machine, view, found[view.first : view.first + height], unread)
        where = f"rows from {view.first + 1} of {len(found)}, by {view.sort}"
        if view.filter or view.typing:
            where += f", filter {view.filter}{'_' * view.typing}"
        live.update(Group(Text(f"{where}. {KEYS}", no_wrap=True), screen), refresh=True)

    with single_keys() as wait, Live(console=console(), screen=True, auto_refresh=False) as live:
        while True:
            rows, unread = machine.read(view)
            next_s = time.monotonic() + interval_s
            while (left_s := next_s - time.monotonic()) > 0:
                show(live, rows, unread)
                grouped = view.cgroups
                if view.press(wait(left_s), machine.columns):
                    return
                if view.cgroups != grouped:
                    break
