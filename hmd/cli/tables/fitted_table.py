"""A table that keeps every column at every width of the terminal.

A wide terminal shows one line per row. On a narrower one, headings and texts wrap, numbers do
not. Where the numbers alone are too wide, each row becomes a block of lines, one per column.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

LEAST_TEXT_COLUMNS = 10
"""Least width of a column of text, in characters, unless all of its cells are narrower."""
UNLIMITED = 1 << 16
"""A width in characters at which nothing wraps."""


@dataclass(frozen=True, slots=True)
class FittedTable:
    """Columns and rows; ``right`` names the columns of numbers, which do not wrap."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Text]]
    title: str | None = None
    right: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the widest form that fits."""
        wide = self._table(gap=None)
        measured = console.measure(wide, options=options.update(width=UNLIMITED))
        if measured.maximum <= options.max_width:
            yield wide
            return
        for gap in (2, 1):
            if self._least_width(gap) <= options.max_width:
                yield self._table(gap=gap)
                return
        if self.title is not None:
            yield Text(self.title, style="bold")
        yield from map(self._block, self.rows)

    def _table(self, *, gap: int | None) -> Table:
        """Return a table whose texts wrap, with ``gap`` spaces between columns; None: the widest.

        A box puts one space between columns; the rest is padding.
        """
        made = Table(
            title=self.title,
            title_justify="left",
            title_style="bold",
            box=SIMPLE_HEAD,
            padding=(0, 1 if gap != 1 else 0),
            collapse_padding=gap is not None,
            pad_edge=gap is None,
        )
        for index, column in enumerate(self.columns):
            number = column in self.right
            wraps = gap is not None
            made.add_column(
                "\n".join(self._heading(index)) if wraps and number else column,
                justify="right" if number else "left",
                no_wrap=number or not wraps,
                overflow="fold",
            )
        for row in self.rows:
            made.add_row(*row)
        return made

    def _heading(self, index: int) -> list[str]:
        """Return the lines of a heading that is no wider than its cells, if its words allow."""
        width = max(self._widest_cell(index), *map(len, self.columns[index].split()), 1)
        return textwrap.wrap(self.columns[index], width) or [""]

    def _widest_cell(self, index: int) -> int:
        return max((row[index].cell_len for row in self.rows), default=0)

    def _least_width(self, gap: int) -> int:
        """Return the width in characters below which a number or a heading no longer fits."""
        least = gap * (len(self.columns) - 1) + 2  # the box has a space at both ends
        for index, column in enumerate(self.columns):
            widest = self._widest_cell(index)
            if column in self.right:
                least += max(widest, *map(len, self._heading(index)))
            else:
                words = max(map(len, column.split()), default=0)
                least += max(words, min(widest, LEAST_TEXT_COLUMNS))
        return least

    def _block(self, row: Sequence[Text]) -> Table:
        """Return a row as lines of heading and cell, below its first cell."""
        made = Table(box=None, show_header=False, pad_edge=False)
        made.add_column(no_wrap=True)
        made.add_column(overflow="fold")
        made.add_row(Text(self.columns[0], style="bold"), row[0])
        for column, cell in zip(self.columns[1:], row[1:], strict=True):
            made.add_row(Text(f"  {column}"), cell)
        return made
