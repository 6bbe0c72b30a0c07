# SPDX-License-Identifier: MIT
"""On which nodes pages are: what a sweep has found, and what moves have changed.

Pages of chunks with page slots are recorded one by one. A coarse chunk is recorded where most of
its pages are; after moves of parts of it, it is to be swept first.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import Bools, Int8Plane, Int16s, Int32s, Uint8s, Uint64s
from hmd.base.units import PAGE_BYTES
from hmd.heat.chunks import NEW, Chunks
from hmd.heat.settings import ABSENT, CHUNK_BYTES, CHUNK_PAGES, FIXED, MOVE_WEAR
from hmd.linux.procfs import ProcessId

Rows = npt.NDArray[np.intp]


def record_page_nodes(chunks: Chunks, chunk: Int32s, node: Int8Plane) -> int:
    """Record the nodes of chunks with page slots; return how many pages differ from the record."""
    columns = chunks.columns
    slots = columns.page_slot[chunk]
    changed = int(np.count_nonzero(columns.node[slots] != node))
    # A page that came since, and was not sampled before this sweep found it, is new.
    was, present = columns.node[slots] != ABSENT, node != ABSENT
    new = ~present | (~was & (columns.idle[slots] >= NEW))
    columns.idle[slots] = np.where(new, np.uint8(NEW), columns.idle[slots])
    columns.node[slots] = node
    columns.resident[chunk] = present.sum(axis=1)
    return changed


def record_coarse_nodes(chunks: Chunks, chunk: Int32s, node: Int8Plane) -> int:
    """Record the nodes of coarse chunks, mixed ones request slots; return how many pages differ."""
    columns = chunks.columns
    code, resident = columns.chunk_node[chunk], columns.resident[chunk].astype(np.int64)
    chunks.record_nodes(chunk, node)
    now = columns.resident[chunk].astype(np.int64)
    changed = np.where(columns.chunk_node[chunk] == code, np.abs(now - resident), now)
    mixed = (columns.minority_pages[chunk] > 0) & ~columns.huge[chunk]
    chunks.request_page_slots(chunk[mixed])
    return int(changed.sum())


class PlanColumns(Protocol):
    """The columns of a plan that the table reads (:class:`hmd.policy.plan.Plan`)."""

    @property
    def processes(self) -> tuple[ProcessId, ...]:
        """The processes that ``process`` indexes."""

    @property
    def process(self) -> Int32s:
        """Index of each page's process."""

    @property
    def address(self) -> Uint64s:
        """Start of each page."""

    @property
    def pages(self) -> npt.NDArray[np.uint32]:
        """Size of each page, in base pages."""

    @property
    def from_node(self) -> Int16s:
        """Node of each page before its move."""


class MoveResults:
    """The outcome of a plan; columns of shape ``(n,)``.

    ``node`` is where each page is now, below 0 where that is not known. ``stuck`` marks pages that
    cannot be moved for a reason of their own.
    """

    def __init__(self, moves: PlanColumns, node: Int16s, stuck: Bools) -> None:
        self._moves, self._node, self._stuck = moves, node, stuck

    def record(self, chunks: Chunks, rows: Rows, chunk: Int32s) -> bool:
        """Record some rows, each of a ``chunk`` of the table; return whether any page moved."""
        columns, node = chunks.columns, self._node
        # A page whose node is not known: its chunk is swept first.
        columns.swept[chunk[node[rows] < 0]] = 0
        known = node[rows] >= 0
        rows, chunk = rows[known], chunk[known]
        moved = node[rows] != self._moves.from_node[rows]
        coarse = columns.page_slot[chunk] < 0
        self._record_pages(chunks, rows[~coarse], chunk[~coarse], moved[~coarse])
        self._record_coarse(chunks, rows[coarse], chunk[coarse])
        return bool(moved.any())

    def _record_pages(
        self,
        chunks: Chunks,
        rows: Rows,
        chunk: Int32s,
        moved: Bools,
    ) -> None:
        """Record pages of chunks with page slots."""
        columns, moves = chunks.columns, self._moves
        slot = columns.page_slot[chunk]
        page = (moves.address[rows] % CHUNK_BYTES // PAGE_BYTES).astype(np.int64)
        node = self._node[rows].astype(np.int8)
        code = np.where(self._stuck[rows], FIXED - node, node).astype(np.int8)
        huge = moves.pages[rows] == CHUNK_PAGES
        present = columns.node[slot[huge]] != ABSENT
        columns.node[slot[huge]] = np.where(present, code[huge, None], ABSENT)
        # A page that the table lacks, as a policy from elsewhere may plan, is not added: the
        # resident pages of a chunk are counted where it is swept.
        base = slot[~huge], page[~huge]
        columns.node[base] = np.where(columns.node[base] != ABSENT, code[~huge], ABSENT)
        columns.wear[slot, page] = _add_wear(columns.wear[slot, page], moved)

    def _record_coarse(self, chunks: Chunks, rows: Rows, chunk: Int32s) -> None:
        """Record pages of coarse chunks, once per chunk."""
        if not len(rows):
            return
        columns, moves = chunks.columns, self._moves
        node = self._node[rows].astype(np.int64)
        found, first, index = np.unique(chunk, return_index=True, return_inverse=True)
        pages = np.bincount(index, moves.pages[rows]).astype(np.int64)
        target = node[first]
        alike = np.bincount(index, node == target[index]) == np.bincount(index)
        stuck = np.bincount(index, self._stuck[rows]) > 0
        together = alike & ~stuck & (pages >= columns.resident[found])
        moved = target != moves.from_node[rows[first]]
        arrived = found[together]
        columns.chunk_node[arrived], columns.minority_pages[arrived] = target[together], 0
        columns.chunk_wear[arrived] = _add_wear(columns.chunk_wear[arrived], moved[together])
        # The others are on several nodes: no more moves before they were swept.
        split = found[~together]
        code = columns.chunk_node[split]
        columns.chunk_node[split] = np.where(code >= 0, FIXED - code, code)
        columns.swept[split] = 0
        chunks.request_page_slots(split)


def _add_wear(wear: Uint8s, moved: Bools) -> Uint8s:
    """Return the wear of pages after some of them have moved."""
    return np.where(moved, np.minimum(wear, 255 - MOVE_WEAR) + MOVE_WEAR, wear).astype(np.uint8)
