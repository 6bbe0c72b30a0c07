"""What moves leave in the heat table: where pages are now, and that they have moved.

Takes a plan and its outcome. Pages of chunks in detail are recorded one by one; a chunk that is
counted as a whole is recorded where all of it is, else it is to be swept first.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from hmd.heat.chunks import Chunks
from hmd.heat.geometry import ABSENT, CHUNK_BYTES, CHUNK_PAGES, FIXED, MOVE_WEAR
from hmd.machine.process_id import ProcessId
from hmd.units import PAGE_BYTES

Rows = npt.NDArray[np.intp]


class PlanColumns(Protocol):
    """The columns of a plan that the table reads (:class:`hmd.decide.plan.Plan`)."""

    @property
    def processes(self) -> tuple[ProcessId, ...]:
        """The processes that ``process`` indexes."""
        ...

    @property
    def process(self) -> npt.NDArray[np.int32]:
        """Index of each page's process."""
        ...

    @property
    def address(self) -> npt.NDArray[np.uint64]:
        """Start of each page."""
        ...

    @property
    def pages(self) -> npt.NDArray[np.uint32]:
        """Size of each page, in 4 KiB pages."""
        ...

    @property
    def from_node(self) -> npt.NDArray[np.int16]:
        """Node of each page before its move."""
        ...


class Settled:
    """The outcome of a plan; columns of shape ``(n,)``.

    ``node`` is where each page is now, below 0 where that is not known. ``stuck`` marks pages that
    cannot be moved for a reason of their own.
    """

    def __init__(
        self, moves: PlanColumns, node: npt.NDArray[np.int16], stuck: npt.NDArray[np.bool_]
    ) -> None:
        self._moves, self._node, self._stuck = moves, node, stuck

    def record(self, chunks: Chunks, rows: Rows, chunk: npt.NDArray[np.int32]) -> bool:
        """Record some rows, each of a ``chunk`` of the table; return whether any page moved."""
        columns, node = chunks.columns, self._node
        # A page whose node is not known: its chunk is swept first.
        columns.swept[chunk[node[rows] < 0]] = 0
        known = node[rows] >= 0
        rows, chunk = rows[known], chunk[known]
        moved = node[rows] != self._moves.from_node[rows]
        whole = columns.detail[chunk] < 0
        self._record_pages(chunks, rows[~whole], chunk[~whole], moved[~whole])
        self._record_wholes(chunks, rows[whole], chunk[whole])
        return bool(moved.any())

    def _record_pages(
        self,
        chunks: Chunks,
        rows: Rows,
        chunk: npt.NDArray[np.int32],
        moved: npt.NDArray[np.bool_],
    ) -> None:
        """Record pages of chunks in detail."""
        columns, moves = chunks.columns, self._moves
        row = columns.detail[chunk]
        page = (moves.address[rows] % CHUNK_BYTES // PAGE_BYTES).astype(np.int64)
        here = self._node[rows].astype(np.int8)
        coded = np.where(self._stuck[rows], FIXED - here, here).astype(np.int8)
        huge = moves.pages[rows] == CHUNK_PAGES
        present = columns.node[row[huge]] != ABSENT
        columns.node[row[huge]] = np.where(present, coded[huge, None], ABSENT)
        columns.node[row[~huge], page[~huge]] = coded[~huge]
        columns.wear[row, page] = _worn(columns.wear[row, page], moved)

    def _record_wholes(self, chunks: Chunks, rows: Rows, chunk: npt.NDArray[np.int32]) -> None:
        """Record pages of chunks that are counted as a whole, once per chunk."""
        if not len(rows):
            return
        columns, moves = chunks.columns, self._moves
        here = self._node[rows].astype(np.int64)
        found, first, index = np.unique(chunk, return_index=True, return_inverse=True)
        pages = np.bincount(index, moves.pages[rows]).astype(np.int64)
        target = here[first]
        alike = np.bincount(index, here == target[index]) == np.bincount(index)
        stuck = np.bincount(index, self._stuck[rows]) > 0
        there = alike & ~stuck & (pages >= columns.resident[found])
        moved = target != moves.from_node[rows[first]]
        settled = found[there]
        columns.code[settled], columns.strays[settled] = target[there], 0
        columns.worn[settled] = _worn(columns.worn[settled], moved[there])
        # The others are somewhere in between: no more moves before they were swept.
        between = found[~there]
        code = columns.code[between]
        columns.code[between] = np.where(code >= 0, FIXED - code, code)
        columns.swept[between] = 0
        chunks.ask(between)


def _worn(wear: npt.NDArray[np.uint8], moved: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """Return the wear of pages after some of them have moved."""
    return np.where(moved, np.minimum(wear, 255 - MOVE_WEAR) + MOVE_WEAR, wear).astype(np.uint8)
