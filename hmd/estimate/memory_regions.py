"""The named regions of a program's memory: files, heap, stacks, mappings.

Takes a trace's mapping snapshots and the pages of an index; gives each page's region. A named
mapping (a file, ``[heap]``) is one region with all of its parts. An anonymous one is its own
region, merged over the snapshots in which it grew. Pages of no snapshot are divided at gaps in the
address space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.estimate.page_index import PageIndex
from hmd.machine.pages.mappings import MappingKind
from hmd.trace.trace import MappingSnapshot, Trace
from hmd.units import PAGE_BYTES

GAP_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class MemoryRegions:
    """Regions: ``name`` and ``process`` of each, and ``of_page``, shape ``(pages,)``."""

    name: tuple[str, ...]
    process: tuple[int, ...]
    of_page: npt.NDArray[np.int32]

    def __len__(self) -> int:
        """Return the number of regions."""
        return len(self.name)


def find_regions(trace: Trace, pages: PageIndex) -> MemoryRegions:
    """Return the regions of a trace in which pages lie, in order of their first page."""
    number: dict[tuple[int, str], int] = {}
    of_page = np.empty(len(pages), np.int32)
    for process in np.unique(pages.process).tolist():
        mine = np.flatnonzero(pages.process == process)
        snapshots = [s for s in trace.mappings if s.process == process]
        names = _names(snapshots, pages.address[mine])
        for row, name in zip(mine.tolist(), names, strict=True):
            of_page[row] = number.setdefault((process, name), len(number))
    return MemoryRegions(tuple(name for _, name in number), tuple(of for of, _ in number), of_page)


def _names(snapshots: Sequence[MappingSnapshot], address: npt.NDArray[np.uint64]) -> list[str]:
    """Return the name of each address's region; addresses are in order."""
    spans = _anonymous(snapshots)
    label = np.full(len(address), -1)
    labels: dict[str, int] = {}
    # The last snapshot of an address counts: a process starts as a copy of another.
    for snapshot in reversed(snapshots):
        if not len(snapshot.start):
            continue
        row = np.searchsorted(snapshot.start, address, side="right") - 1
        found = np.flatnonzero((row >= 0) & (address < snapshot.end[row]) & (label < 0))
        rows, place = np.unique(row[found], return_inverse=True)
        named = [_name(snapshot, int(r), spans) for r in rows]
        own = np.array([labels.setdefault(name, len(labels)) for name in named], np.int64)
        label[found] = own[place]
    unknown = np.flatnonzero(label < 0)
    breaks = np.flatnonzero(np.diff(address[unknown]) >= np.uint64(GAP_BYTES)) + 1
    for part in np.split(unknown, breaks):
        if len(part):
            span = f"{address[part[0]]:x}-{int(address[part[-1]]) + PAGE_BYTES:x}"
            label[part] = labels.setdefault(span, len(labels))
    names = list(labels)
    return [names[i] for i in label.tolist()]


def _name(snapshot: MappingSnapshot, row: int, spans: list[tuple[int, int]]) -> str:
    if snapshot.path[row]:
        return snapshot.path[row]
    at = int(snapshot.start[row])
    start, end = next(span for span in spans if span[0] <= at < span[1])
    return f"{MappingKind(int(snapshot.kind[row])).name.lower()} {start:x}-{end:x}"


def _anonymous(snapshots: Sequence[MappingSnapshot]) -> list[tuple[int, int]]:
    """Return the ranges of unnamed mappings, overlapping ones merged."""
    nameless = {
        (int(start), int(end))
        for snapshot in snapshots
        for start, end, path in zip(snapshot.start, snapshot.end, snapshot.path, strict=True)
        if not path
    }
    spans: list[tuple[int, int]] = []
    for start, end in sorted(nameless):
        if spans and start < spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end))
        else:
            spans.append((start, end))
    return spans
