# SPDX-License-Identifier: MIT
"""Command output: JSON for programs, tables and units for people.

rich is imported where a table is printed: ``--json`` and ``--help`` do not pay for it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

from hmd import __version__, revision
from hmd.base.atomic_file import write_finished

if TYPE_CHECKING:
    import argparse

    import numpy as np
    import numpy.typing as npt
    from rich.console import Console
    from rich.table import Table

_Record = TypeVar("_Record")

SCHEMA: Final = 1
"""The version of what ``--json`` prints (docs/reference/commands.md)."""

PIPE_COLUMNS = 240
"""Width of tables that go to a file or a pipe, in characters."""
MIN_TEXT_COLUMNS = 10
"""Width in characters to which a column of text may shrink."""

_invocation: Final[dict[str, Any]] = {}


def plain(value: Any) -> Any:
    """Return the JSON form of dataclasses, enums, paths, sets and numpy arrays and scalars."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(value, "tolist"):  # numpy, without importing it
        return value.tolist()
    raise TypeError(f"no JSON form for {type(value).__name__}")


def in_seconds(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, those in nanoseconds (``_ns``) in seconds (``_s``)."""
    return {
        f"{name.removesuffix('_ns')}_s" if name.endswith("_ns") else name: (
            value / 1e9 if name.endswith("_ns") else value
        )
        for name, value in dataclasses.asdict(record).items()
    }


def described(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with ``schema`` and ``made_by``: what made it, where, with what settings.

    ``SCHEMA`` grows when a field goes or changes its meaning.
    """
    return {"schema": SCHEMA, **document, "made_by": {**_maker(), **_invocation}}


def note_invocation(words: Sequence[str], args: argparse.Namespace) -> None:
    """Remember the command line and the settings it stands for, for ``described``."""
    settings = {name: value for name, value in vars(args).items() if name != "func"}
    _invocation.update(arguments=list(words), settings=settings)


@cache
def _maker() -> dict[str, Any]:
    system = os.uname()
    machine = {"kernel": system.release, "machine": system.machine, "cpus": os.cpu_count()}
    return {
        "hmd": __version__,
        "commit": revision() or _checked_out(),
        "host": {"name": system.nodename, **machine},
    }


def _checked_out() -> str:
    """Return the commit of a checkout, with ``-dirty`` where files differ; "" without one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    import subprocess

    words = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"]
    with suppress(OSError):
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document, as ``described``, indented, keys in the order given."""
    write_json("-", document, sys.stdout)


def write_json(target: str, document: Mapping[str, Any], stream: TextIO) -> None:
    """Write a document, as ``described``, into a file; to ``stream`` if ``target`` is ``-``."""
    text = json.dumps(described(document), indent=2, default=plain) + "\n"
    if target == "-":
        stream.write(text)
    else:
        write_finished(Path(target), text)


def print_json_line(document: Mapping[str, Any]) -> None:
    """Print a document, as ``described``, on one line and flush it: a stream of records."""
    text = json.dumps(described(document), separators=(",", ":"), default=plain)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def console() -> Console:
    """Return a console on stdout, as wide as ``COLUMNS`` or the terminal, else PIPE_COLUMNS."""
    from rich.console import Console

    class PipedConsole(Console):
        """A console whose closed pipe is an error, not rich's exit with code 1."""

        def on_broken_pipe(self) -> None:
            """Let ``main`` end the command as it ends others whose reader has exited."""
            raise BrokenPipeError

    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked) > 0:
        width: int | None = int(asked)
    else:
        width = None if sys.stdout.isatty() else PIPE_COLUMNS
    return PipedConsole(width=width, highlight=False)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    right: Sequence[str] = (),
) -> Table:
    """Return a table; ``right`` names the columns of numbers.

    On a narrow terminal texts and headings wrap, numbers do not. Cells are not markup.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    cells = [
        [cell if isinstance(cell, Text) else Text(printable(str(cell))) for cell in row]
        for row in rows
    ]
    made = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    for index, column in enumerate(columns):
        widest = max((row[index].cell_len for row in cells), default=0)
        number = column in right
        made.add_column(
            column,
            justify="right" if number else "left",
            overflow="fold",
            min_width=widest if number else min(widest, MIN_TEXT_COLUMNS),
        )
    for row in cells:
        made.add_row(*row)
    return made


def printable(text: str) -> str:
    """Return a text without control characters: names of processes must not control a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    right: Sequence[str] = (),
) -> None:
    """Print a table to stdout; its numbers are whole even on a terminal too narrow for them."""
    console().print(table(columns, rows, title=title, right=right), crop=False)


def print_heat(heat: npt.NDArray[np.float64], addresses: npt.NDArray[np.uint64], over: str) -> None:
    """Print heat of shape (address, time) as text, the highest address first.

    Three decades of heat have nine signs; NaN and 0 are blank. ``over`` is the time of all columns.
    """
    import numpy as np

    out = console()
    height, width = min(len(heat), 24), min(heat.shape[1], 100, max(10, out.width - 15))
    first, at = (np.arange(n) * of // n for n, of in zip((height, width), heat.shape, strict=True))
    seen = np.fmax.reduceat(np.fmax.reduceat(np.nan_to_num(heat), first, axis=0), at, axis=1)
    warmest = float(seen.max(initial=0.0)) or 1.0
    sign = np.ceil(9 + 3 * np.log10(np.maximum(seen, 1e-300) / warmest)).clip(1, 9)
    rows = np.where(seen > 0, sign, 0).astype(int)
    for address, row in zip(addresses[first].tolist()[::-1], rows[::-1].tolist(), strict=True):
        text = "".join(" .:-=+*#%@"[each] for each in row)
        out.print(f"{address:12x} {text}", markup=False, highlight=False)
    out.print(f"{'':12} {over}, @: {warmest:.3g}", markup=False, highlight=False)


def print_records(
    records: Iterable[_Record],
    columns: Mapping[str, Callable[[_Record], object]],
    *,
    texts: int = 1,
    title: str | None = None,
) -> None:
    """Print a table with a row for each record; columns behind the first ``texts`` are numbers."""
    headings = list(columns)
    rows = [[cell(record) for cell in columns.values()] for record in records]
    print_table(headings, rows, title=title, right=headings[texts:])


def format_bytes(value: float | None) -> str:
    """Return bytes in binary units, ``1.5 GiB``; ``-`` where unknown."""
    if value is None:
        return "-"
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_seconds(value: float | None) -> str:
    """Return a time as ``1.234 s``, ``123.40 ms`` or ``12.34 us``; ``-`` where unknown."""
    if value is None:
        return "-"
    if 0 < abs(value) < 1e-4:
        return f"{value * 1e6:.2f} us"
    return f"{value:.3f} s" if abs(value) >= 1 else f"{value * 1e3:.2f} ms"


def format_latency(seconds: float | None) -> str:
    """Return the latency of a load in nanoseconds; ``-`` where unknown."""
    return f"{seconds * 1e9:.0f} ns" if seconds else "-"


def format_share(value: float | None) -> str:
    """Return a share of 0..1 as per cent, ``93.1 %``; ``-`` where unknown."""
    return "-" if value is None else f"{value * 100:.1f} %"


def format_count(value: float | None) -> str:
    """Return a count with thousands apart, ``12 345``; ``-`` where unknown."""
    return "-" if value is None else f"{value:,.0f}".replace(",", " ")
