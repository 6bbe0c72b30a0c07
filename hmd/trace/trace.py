# SPDX-License-Identifier: MIT
"""A trace in memory: samples as columns, mappings, placement, progress and metadata.

Readers and importers return it, the estimator takes it. Addresses are virtual addresses of the
row's process; times are nanoseconds of the trace's clock: CLOCK_MONOTONIC of the machine
that ran it, or modelled time of the emulated machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.linux.emulator_memory import ClockKind
from hmd.sample.access_batch import Samples

Pages: TypeAlias = npt.NDArray[np.uint64]
"""Addresses of base pages."""
Nodes: TypeAlias = npt.NDArray[np.int16]

UNMAPPED = np.int16(-1)
"""The node of a page that is not present."""


@dataclass(frozen=True, slots=True)
class TracedProcess:
    """A process of a trace; rows name it by its index in ``Trace.processes``."""

    pid: int
    name: str


@dataclass(frozen=True, slots=True)
class MappingSnapshot:
    """The mappings of a process at one time; columns have shape ``(n,)``, in order of address.

    ``offset`` is where in its file a mapping begins, in bytes; None where it is unknown.
    """

    time_ns: int
    process: int
    start: npt.NDArray[np.uint64]
    end: npt.NDArray[np.uint64]
    kind: npt.NDArray[np.uint8]
    access: npt.NDArray[np.uint8]
    path: tuple[str, ...]
    offset: npt.NDArray[np.uint64] | None = None


@dataclass(frozen=True, slots=True)
class PlacementChange:
    """Runs of pages and their node at one time; columns of shape ``(n,)``.

    ``start`` is the address of the first page of a run, ``pages`` their number (base pages),
    ``node`` is ``UNMAPPED`` where they have gone. Pages of no run are where they were before.
    """

    time_ns: int
    process: int
    start: npt.NDArray[np.uint64]
    pages: npt.NDArray[np.uint32]
    node: npt.NDArray[np.int16]

    @classmethod
    def of_pages(cls, time_ns: int, process: int, page: Pages, node: Nodes) -> PlacementChange:
        """Return the change of these pages, ascending; adjacent pages of one node are one run."""
        if not len(page):
            return cls(time_ns, process, page, np.empty(0, np.uint32), node)
        breaks = (np.diff(page) != PAGE_BYTES) | (np.diff(node) != 0)
        first = np.concatenate([[0], np.flatnonzero(breaks) + 1])
        count = np.diff(np.append(first, len(page))).astype(np.uint32)
        return cls(time_ns, process, page[first], count, node[first])

    def by_page(self) -> tuple[Pages, Nodes]:
        """Return the address and the node of each page."""
        count = self.pages.astype(np.int64)
        within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        page = np.repeat(self.start, count) + within.astype(np.uint64) * np.uint64(PAGE_BYTES)
        return page, np.repeat(self.node, count)


@dataclass(frozen=True, slots=True)
class InstructionProgress:
    """Progress of each process over time; columns have shape ``(n,)``.

    ``cpu_ns`` is the CPU time of its threads since it started, by the kernel's clock (schedstat);
    ``instructions`` counts those executed since the recording began, 0 if they are not counted or
    are part of the parent's count: ``about["instructions"]`` names the counter. ``stalled_ns`` is
    the time since then in which its threads waited for memory and executed nothing, 0 likewise.
    """

    time_ns: npt.NDArray[np.uint64]
    process: npt.NDArray[np.uint16]
    cpu_ns: npt.NDArray[np.uint64]
    instructions: npt.NDArray[np.uint64]
    stalled_ns: npt.NDArray[np.uint64]

    def last_sum(self, name: Literal["instructions", "stalled_ns"]) -> int:
        """Return the sum of all processes' last counts."""
        most = np.zeros(int(self.process.max(initial=0)) + 1, np.uint64)
        np.maximum.at(most, self.process, getattr(self, name))
        return int(most.sum())


@dataclass(frozen=True, slots=True)
class ThreadProgress:
    """How long each thread ran, over time; columns have shape ``(n,)``.

    ``busy_ns`` is the time that it ran since it started: CPU time by the kernel's clock
    (schedstat). In the emulated machine rows are about CPUs: ``thread`` is 0, and ``busy_ns`` the
    modelled time for which the CPU was not halted since the recording began.
    """

    time_ns: npt.NDArray[np.uint64]
    process: npt.NDArray[np.uint16]
    thread: npt.NDArray[np.uint32]
    cpu: npt.NDArray[np.uint16]
    busy_ns: npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class NodeTraffic:
    """What the memory of each node has moved, over time; columns have shape ``(n,)``.

    Bytes are those of all CPUs since the recording began, as the memory itself counts them: whole
    blocks of persistent memory, for example.
    """

    time_ns: npt.NDArray[np.uint64]
    node: npt.NDArray[np.uint16]
    read_bytes: npt.NDArray[np.uint64]
    write_bytes: npt.NDArray[np.uint64]


RowTable: TypeAlias = InstructionProgress | ThreadProgress | NodeTraffic

ROW_TABLES: Final[Mapping[str, type[RowTable]]] = {
    "PROG": InstructionProgress,
    "THRD": ThreadProgress,
    "TRAF": NodeTraffic,
}
"""Tables of which the file has blocks, by their tag."""

LATER_COLUMNS: Final = frozenset({"stalled_ns"})
"""Columns that blocks of earlier recorders lack, which stand for 0."""

_NARROW: Final = {"process": "<u2", "cpu": "<u2", "node": "<u2", "thread": "<u4"}


def column_types(table: type[RowTable] | RowTable) -> dict[str, np.dtype[Any]]:
    """Return the types of a table's columns in a file, by name."""
    return {field.name: np.dtype(_NARROW.get(field.name, "<u8")) for field in fields(table)}


@dataclass(frozen=True, slots=True)
class Losses:
    """Lost samples and throttled events since the start."""

    lost: int = 0
    throttled: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a recording; ``exit_code`` is None for a program that hmd did not start.

    ``begin_ns`` is the start of the program, ``runtime_ns`` its runtime, both by the trace's clock;
    ``elapsed_ns`` is the runtime by CLOCK_MONOTONIC, None if it was not recorded.
    """

    begin_ns: int
    runtime_ns: int
    exit_code: int | None
    elapsed_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded run.

    ``about`` is the metadata: program, machine, sampler, period, tier. ``ending`` is None if the
    recorder was killed; ``damage`` says from where on a damaged file was not read. A thinned trace
    (``hmd.trace.reader``) has every ``stride``-th sample.
    """

    about: Mapping[str, Any]
    processes: tuple[TracedProcess, ...]
    samples: Samples
    mappings: tuple[MappingSnapshot, ...] = ()
    placement: tuple[PlacementChange, ...] = ()
    progress: InstructionProgress | None = None
    losses: Losses = field(default_factory=Losses)
    ending: Ending | None = None
    damage: str | None = None
    stride: int = 1
    threads: ThreadProgress | None = None
    traffic: NodeTraffic | None = None

    @property
    def thinned(self) -> Trace:
        """The trace itself: a :class:`hmd.trace.reader.TraceSource` whose samples fit in memory."""
        return self

    @property
    def recorded(self) -> int:
        """Number of samples that ``batches`` yields."""
        return len(self.samples)

    def batches(self) -> Iterator[Samples]:
        """Yield all samples, at once."""
        yield self.samples

    def last_nodes(self) -> dict[int, tuple[Pages, Nodes]]:
        """Return by process its pages, ascending, and the node where each was last seen."""
        changes: dict[int, list[tuple[Pages, Nodes]]] = {}
        for change in reversed(self.placement):
            changes.setdefault(change.process, []).append(change.by_page())
        found = {}
        for process, newest_first in changes.items():
            page, node = map(np.concatenate, zip(*newest_first, strict=True))
            pages, first = np.unique(page, return_index=True)
            found[process] = pages, node[first]
        return found

    def rows_by_process(self) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
        """Yield each process that has samples, and their rows."""
        order = np.argsort(self.samples.process, kind="stable")
        found, begin = np.unique(self.samples.process[order], return_index=True)
        # Without samples, split gives one part of none.
        yield from zip(found.tolist(), np.split(order, begin[1:]), strict=False)

    def located(
        self, address: npt.NDArray[np.uint64]
    ) -> Iterator[tuple[MappingSnapshot, npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
        """Yield which mappings hold an address of each sample, of its data or its code; ``(n,)``.

        A snapshot, the mapping's row in it of each sample found there, and the samples' rows. A
        sample belongs to what was mapped last at its address; what was never seen is left out.
        """
        newest_first: dict[int, list[MappingSnapshot]] = {}
        for mapped in reversed(self.mappings):
            newest_first.setdefault(mapped.process, []).append(mapped)
        for index, rows in self.rows_by_process():
            for mapped in newest_first.get(index, []):
                if not len(rows) or not len(mapped.start):
                    continue
                at = np.searchsorted(mapped.start, address[rows], "right") - 1
                inside = (at >= 0) & (address[rows] < mapped.end[at])
                if inside.any():
                    yield mapped, at[inside], rows[inside]
                rows = rows[~inside]  # noqa: PLW2901

    @property
    def clock(self) -> ClockKind:
        """Clock of all times: "monotonic", or "modelled" of the emulated machine."""
        return "modelled" if self.about.get("clock") == "modelled" else "monotonic"

    @property
    def begin_ns(self) -> int:
        """Start of the program; of a recording without an end, start of the recording."""
        if self.ending is not None:
            return self.ending.begin_ns
        begin_ns = self.about.get("begin_ns")
        if isinstance(begin_ns, int):
            return begin_ns
        return int(self.samples.time_ns[0]) if len(self.samples) else 0

    @property
    def runtime_ns(self) -> int:
        """Runtime of the program; of a recording without an end, up to its last row."""
        if self.ending is not None:
            return self.ending.runtime_ns
        last = [each.time_ns for each in self.mappings]
        last += [each.time_ns for each in self.placement]
        if len(self.samples):
            last.append(int(self.samples.time_ns.max()))
        if self.progress is not None and len(self.progress.time_ns):
            last.append(int(self.progress.time_ns.max()))
        return max(0, max(last, default=0) - self.begin_ns)
