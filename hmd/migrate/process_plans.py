"""Plans that move a whole process, or ranges of it, to one node.

Takes a process and its mappings; gives plans slice by slice of address space, so that a process of
any size takes little memory here and progress can be shown. Costs one query per mapped page
(0.2 µs), in mappings that have resident pages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import Plan
from hmd.machine import move_pages as kernel_pages
from hmd.machine.huge_pages import read_huge_pages
from hmd.machine.mappings import Mappings
from hmd.machine.process_id import PROC, ProcessId
from hmd.machine.procfs import read_bytes
from hmd.migrate.move_status import PROCESS_WIDE, MoveStatus, of_pages
from hmd.units import HUGE_PAGE_BYTES, HUGE_PAGE_PAGES, PAGE_BYTES

SLICE_BYTES: Final = 256 << 20
_WITH_PAGES = r"^([0-9a-f]{{1,16}}) [^\n]*? N{}="
_NO_BLOCKS: Final = np.empty(0, np.uint64)

Span: TypeAlias = tuple[int, int]
"""Start and end (exclusive) of addresses."""


@dataclass(frozen=True, slots=True)
class PlanSlice:
    """The plan of ``span_bytes`` of address space, which have ``resident_pages``.

    ``refusal`` is why the process could not be queried: GONE, PERMISSION or INVALID.
    """

    span_bytes: int
    resident_pages: int
    plan: Plan
    refusal: MoveStatus | None = None


class ProcessPlans:
    """The plans that move a process's pages to ``to_node``, all of them or those on ``from_node``.

    ``ranges`` are the addresses to include, all addresses if empty; a huge page that a range cuts
    stays where it is. ``movable`` marks the mappings to include, shape ``(mappings,)``; the default
    is ``mappings.movable``.
    """

    def __init__(
        self,
        process: ProcessId,
        mappings: Mappings,
        to_node: int,
        *,
        from_node: int | None = None,
        ranges: Sequence[Span] = (),
        movable: npt.NDArray[np.bool_] | None = None,
        proc: Path = PROC,
        query: Callable[[int, npt.NDArray[np.uint64]], npt.NDArray[np.int16]] = (
            kernel_pages.query_nodes
        ),
    ) -> None:
        chosen = mappings.movable if movable is None else movable
        numa_maps = read_bytes(proc / str(process.pid) / "numa_maps")
        self.spans = _spans(mappings, chosen, ranges, numa_maps, from_node)
        # To query huge pages may cost a walk of all page tables.
        huge = read_huge_pages(process.pid, mappings, proc) if self.spans else None
        self._process = process
        self._huge = huge.address if huge else _NO_BLOCKS
        self._to_node = to_node
        self._from_node = from_node
        self._query = query

    @property
    def span_bytes(self) -> int:
        """Bytes of address space that the slices cover."""
        return _length(self.spans)

    def slices(self) -> Iterator[PlanSlice]:
        """Query one slice after the other, each when it is iterated to.

        A process has many small mappings and each call of move_pages(2) has a fixed cost: a slice
        takes as many mappings as fit.
        """
        spans: list[Span] = []
        for span in self._pieces():
            if spans and _length(spans) + span[1] - span[0] > SLICE_BYTES:
                yield self._slice(spans)
                spans = []
            spans.append(span)
        if spans:
            yield self._slice(spans)

    def _pieces(self) -> Iterator[Span]:
        """Yield the spans, large ones in pieces that do not cut a huge page."""
        for start, end in self.spans:
            first = start // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
            for at in range(first, end, SLICE_BYTES):
                yield max(start, at), min(end, at + SLICE_BYTES)

    def _slice(self, spans: Sequence[Span]) -> PlanSlice:
        address = np.concatenate([np.arange(*span, PAGE_BYTES, dtype=np.uint64) for span in spans])
        node = self._query(self._process.pid, address)
        answers = {MoveStatus(code) for code in np.unique(of_pages(node, self._to_node)).tolist()}
        refusal = next(iter(answers & PROCESS_WIDE), None)
        moves = (node >= 0) & (node != self._to_node)
        if self._from_node is not None:
            moves &= node == self._from_node
        resident = int((node >= 0).sum())
        address, node = address[moves], node[moves]
        pages = self._pages(address, spans)
        rows = pages > 0
        count = int(rows.sum())
        return PlanSlice(
            _length(spans),
            resident,
            Plan(
                processes=(self._process,),
                process=np.zeros(count, np.int32),
                address=address[rows],
                pages=pages[rows],
                from_node=node[rows],
                to_node=np.full(count, self._to_node, np.int16),
                heat=np.zeros(count, np.float32),
                phase=np.zeros(count, np.int32),
            ),
            refusal,
        )

    def _pages(
        self, address: npt.NDArray[np.uint64], spans: Sequence[Span]
    ) -> npt.NDArray[np.uint32]:
        """Return the size of each row: 512 where a huge page begins, 0 for its other pages."""
        start, end = np.array(spans, np.uint64).T
        of = np.searchsorted(start, address, "right") - 1
        block = address & np.uint64(~(HUGE_PAGE_BYTES - 1) & (2**64 - 1))
        whole = (block >= start[of]) & (block + np.uint64(HUGE_PAGE_BYTES) <= end[of])
        huge = np.isin(block, self._huge)
        pages = np.ones(len(address), np.uint32)
        pages[huge] = 0
        pages[huge & whole & (address == block)] = HUGE_PAGE_PAGES
        return pages


def _length(spans: Sequence[Span]) -> int:
    return sum(end - start for start, end in spans)


def _spans(
    mappings: Mappings,
    movable: npt.NDArray[np.bool_],
    ranges: Sequence[Span],
    numa_maps: bytes | None,
    from_node: int | None,
) -> list[Span]:
    """Return the parts of movable mappings that lie in the ranges and may have pages."""
    chosen = movable.copy()
    if numa_maps is not None:
        # Leave out address space that is reserved but never accessed (terabytes, in some runtimes).
        pattern = _WITH_PAGES.format(r"\d{1,4}" if from_node is None else from_node)
        starts = {int(s, 16) for s in re.findall(pattern.encode(), numa_maps, re.MULTILINE)}
        chosen &= np.array([start in starts for start in mappings.start.tolist()], np.bool_)
    found = zip(mappings.start[chosen].tolist(), mappings.end[chosen].tolist(), strict=True)
    if not ranges:
        return list(found)
    return [
        (max(start, low), min(end, high))
        for start, end in found
        for low, high in _joined(ranges)
        if max(start, low) < min(end, high)
    ]


def _joined(ranges: Sequence[Span]) -> list[Span]:
    """Return ranges widened to whole pages, in order, without overlaps."""
    joined: list[Span] = []
    for low, high in sorted(ranges):
        start, end = low // PAGE_BYTES * PAGE_BYTES, -(-high // PAGE_BYTES) * PAGE_BYTES
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined
