# SPDX-License-Identifier: MIT
"""What the residency sweep reads of a machine, and how a part of an address space is recorded.

Each reading is small: the sweep decides between two of them whether its time is over. Pages that
several processes map are recorded for the one that owns them (:mod:`hmd.residency.shared_pages`,
:mod:`hmd.residency.forks`). They are unmovable where moves of shared pages are not permitted: the
kernel would refuse each.
"""

from __future__ import annotations

import errno
from collections.abc import Container, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import ABSENT, CHUNK_BYTES, CHUNK_PAGES, FIXED
from hmd.heat.table import HeatTable
from hmd.linux.huge_pages import HugeSource, huge_source
from hmd.linux.mappings import Mappings, compare_spaces, mapping_pieces
from hmd.linux.memory_policy import MemoryBindings
from hmd.linux.page_calls import query_nodes
from hmd.linux.processes import fork_family
from hmd.linux.procfs import PROC, ProcessId, identify, read_stat
from hmd.linux.resident_pages import (
    PageSharing,
    ResidentPart,
    every_page,
    page_sharing,
    resident_part,
)
from hmd.residency.address_spaces import AddressSpaceSummary
from hmd.residency.forks import ForkedPages
from hmd.residency.shared_pages import SharedPages

Addresses: TypeAlias = npt.NDArray[np.uint64]
Pieces: TypeAlias = Generator[Mappings, None, None]


class MemoryReader:
    """What the sweep reads from the machine, by process; here, as the kernel reports it."""

    def __init__(self, proc: Path = PROC, bindings: MemoryBindings | None = None) -> None:
        self._proc = proc
        self._source = huge_source(proc)
        self._bindings = bindings or MemoryBindings(proc)

    def pieces(self, process: ProcessId) -> Pieces:
        """Yield the mappings piece by piece; none if the process is gone or not readable.

        From /proc/PID/maps, or smaps where nothing else shows huge pages. What a memory policy
        binds to a single node is unmovable.
        """
        details = self._source is HugeSource.SMAPS
        bindings = self._bindings.of(process)
        for piece in mapping_pieces(process.pid, self._proc, details=details):
            fixed = bindings.fixed_at(piece.start) if bindings.any_bound else False
            yield replace(piece, unmovable=piece.unmovable | fixed)

    def compare(self, first: ProcessId, second: ProcessId) -> int | None:
        """Return 0 for one address space, else the sign of an order of these; None if not known."""
        return compare_spaces(first, second, self._proc)

    def resident_bytes(self, process: ProcessId) -> int:
        """Return the resident size, 0 if the process is gone."""
        stat = read_stat(process.pid, self._proc)
        return stat.resident_bytes if stat is not None and stat.process == process else 0

    def mount_namespace(self, process: ProcessId) -> int:
        """Return the number of the mount namespace that paths are valid in, 0 if not known."""
        try:
            return (self._proc / str(process.pid) / "ns/mnt").stat().st_ino
        except OSError:
            return 0  # exited, or not permitted

    def fork_family(self, process: ProcessId) -> str:
        """Return what forks of a program have in common; empty if not known."""
        return fork_family(process, self._proc)

    def sharing(self, process: ProcessId, addresses: Addresses) -> npt.NDArray[np.uint8]:
        """Return who maps each page, as ``PageSharing``; ``addresses`` are ascending."""
        return page_sharing(process.pid, addresses, self._proc)

    def resident(
        self, process: ProcessId, start: int, end: int, huge: Addresses, pages: int
    ) -> ResidentPart | None:
        """Return the next pages from ``start`` that may be resident, about ``pages``.

        None if the process is gone. ``huge`` are the huge pages that the mappings' details showed.
        """
        return resident_part(process.pid, (start, end), self._source, huge, pages, self._proc)

    def nodes(self, process: ProcessId, addresses: Addresses) -> npt.NDArray[np.int16]:
        """Return the node of each page, below 0 if not resident, or where the process is gone."""
        found = query_nodes(process.pid, addresses)
        if identify(process.pid, self._proc) != process:
            return np.full(len(addresses), -errno.ESRCH, np.int16)
        return found


class AddressSpaces(Protocol):
    """Modelled address spaces, which are small and read at once, by pid."""

    def mappings(self, pid: int) -> Mappings | None:
        """Return the mappings, None if the process is gone or access is not permitted."""
        ...

    def huge_pages(self, pid: int, mappings: Mappings) -> Addresses:
        """Return the starts of huge pages."""
        ...

    def nodes(self, pid: int, addresses: Addresses) -> npt.NDArray[np.int16]:
        """Return the node of each page, below 0 if it is not resident."""
        ...


class ModelledMemory(MemoryReader):
    """The same of modelled address spaces: no process is a fork, and none shares its pages."""

    def __init__(self, spaces: AddressSpaces) -> None:
        self._spaces = spaces
        self._huge: dict[int, Addresses] = {}

    def pieces(self, process: ProcessId) -> Pieces:
        """Yield all mappings at once."""
        found = self._spaces.mappings(process.pid)
        if found is not None:
            self._huge[process.pid] = self._spaces.huge_pages(process.pid, found)
            yield found

    def compare(self, first: ProcessId, second: ProcessId) -> int | None:
        """Return the order of the pids: each process has an address space of its own."""
        return (first.pid > second.pid) - (first.pid < second.pid)

    def resident_bytes(self, process: ProcessId) -> int:
        """Return what is mapped."""
        found = self._spaces.mappings(process.pid)
        return 0 if found is None else int((found.end - found.start).sum())

    def mount_namespace(self, process: ProcessId) -> int:
        """Return the same for all: they are on one machine."""
        return 1

    def fork_family(self, process: ProcessId) -> str:
        """Return nothing."""
        return ""

    def sharing(self, process: ProcessId, addresses: Addresses) -> npt.NDArray[np.uint8]:
        """Return ALONE for all pages."""
        return np.full(len(addresses), PageSharing.ALONE, np.uint8)

    def resident(
        self, process: ProcessId, start: int, end: int, huge: Addresses, pages: int
    ) -> ResidentPart | None:
        """Return all pages of the next chunks."""
        return every_page(start, end, self._huge[process.pid], pages)

    def nodes(self, process: ProcessId, addresses: Addresses) -> npt.NDArray[np.int16]:
        """Return what the model has."""
        return self._spaces.nodes(process.pid, addresses)


_NO_PAGES: Final = np.empty(0, np.uint64)
_CHUNK_MASK: Final = ~np.uint64(CHUNK_BYTES - 1)
_REFUSALS: Final = (-errno.EPERM, -errno.ENOSYS)
"""Errors of a whole query, after which pages may be anywhere: no permission, no such call."""
_NEAR_CHUNKS: Final = 64
"""Chunks that are looked up one by one; of more, those that the table has are searched."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What a query did: pages ``asked`` for, pages ``recorded`` and how many ``changed``.

    All is known up to the address ``until``, unless the kernel ``refused`` the query: an errno.
    """

    asked: int
    recorded: int
    changed: int
    until: int
    refused: int = 0


@dataclass(frozen=True, slots=True)
class QueryContext:
    """What a query asks, and which process counts pages that several map.

    ``refused`` are processes of which pages could not be moved because others map them too;
    ``move_shared`` says that such pages may be moved.
    """

    memory: MemoryReader
    files: SharedPages
    forks: ForkedPages
    refused: Container[ProcessId]
    move_shared: bool


def query_span(
    heat: HeatTable,
    slot: int,
    space: tuple[AddressSpaceSummary, Addresses],
    span: tuple[int, int],
    pages: int,
    machine: QueryContext,
) -> QueryResult:
    """Ask for the nodes of the next resident pages of a span, about ``pages``, and record them.

    ``space`` is the summary of the process in ``slot``, and its huge pages as far as its mappings
    show them.
    """
    (summary, huge_pages), memory, forks = space, machine.memory, machine.forks
    process, (start, end) = heat.processes[slot], span
    part = memory.resident(process, start, end, huge_pages, max(pages, CHUNK_PAGES))
    if part is None:
        part = ResidentPart(_NO_PAGES, _NO_PAGES, end)
    part = machine.files.select_owned(process, start, part)
    shared = forked = ResidentPart(_NO_PAGES, _NO_PAGES, part.until)
    follows = forks.has_family(process) and not machine.files.covers(process, start, part.until)
    if follows or process in machine.refused:
        codes = [memory.sharing(process, some) for some in (part.pages, part.huge)]
        common = [code == PageSharing.FORKED for code in codes]
        several = [code != PageSharing.ALONE for code in codes]
        shared = _chosen(part, *(several if process in machine.refused else common))
    if follows:
        forked = forks.select_owned(heat, slot, start, _chosen(part, *common))
        part = _joined(_chosen(part, ~common[0], ~common[1]), forked)
    asked = np.concatenate([part.huge, part.pages])
    answer = memory.nodes(process, asked) if len(asked) else np.empty(0, np.int16)
    if len(answer) and answer[-1] in _REFUSALS:
        return QueryResult(len(asked), 0, 0, part.until, -int(answer[-1]))
    heads = len(part.huge)
    there = answer >= 0
    present = ResidentPart(part.pages[there[heads:]], part.huge[there[:heads]], part.until)
    machine.files.record_owned(process, (start, part.until), present)
    if follows:
        within = _within(present.pages, forked.pages), _within(present.huge, forked.huge)
        forks.pages.record_owned(process, (start, part.until), _chosen(present, *within))
    movable = summary.movable_at(asked)
    if not machine.move_shared:
        movable[:heads] &= ~_within(part.huge, shared.huge)
        movable[heads:] &= ~_within(part.pages, shared.pages)
    coded = np.where(there, answer, ABSENT)
    coded = np.where(there & ~movable, FIXED - coded, coded).astype(np.int8)
    chunks = _chunks(heat, slot, start, part)
    node = np.full((len(chunks), CHUNK_PAGES), ABSENT, np.int8)
    row = np.searchsorted(chunks, asked & _CHUNK_MASK)
    node[row[:heads]] = coded[:heads, None]
    page = part.pages % np.uint64(CHUNK_BYTES) // np.uint64(PAGE_BYTES)
    node[row[heads:], page.astype(np.intp)] = coded[heads:]
    huge = np.zeros(len(chunks), np.bool_)
    huge[row[:heads]] = True
    changed = heat.record_nodes(slot, chunks, node, huge) if len(chunks) else 0
    return QueryResult(len(asked), node.size, changed, part.until)


def _chunks(heat: HeatTable, slot: int, start: int, part: ResidentPart) -> Addresses:
    """Return the chunks that a part is about, ascending: with pages, or known to the table."""
    if part.until - start <= _NEAR_CHUNKS * CHUNK_BYTES:
        return np.arange(start, part.until, CHUNK_BYTES, dtype=np.uint64)
    known = heat.chunks.columns.address[: heat.chunks.used]
    own = heat.chunks.columns.process[: heat.chunks.used] == slot
    known = known[own & (known >= np.uint64(start)) & (known < np.uint64(part.until))]
    return np.unique(np.concatenate([known, part.huge, part.pages & _CHUNK_MASK]))


def _chosen(
    part: ResidentPart, pages: npt.NDArray[np.bool_], huge: npt.NDArray[np.bool_]
) -> ResidentPart:
    """Return some pages of a part, by masks of its columns."""
    return ResidentPart(part.pages[pages], part.huge[huge], part.until)


def _joined(one: ResidentPart, other: ResidentPart) -> ResidentPart:
    """Return the pages of two parts of one span."""
    pages, huge = (
        np.sort(np.concatenate(both), kind="stable")
        for both in ((one.pages, other.pages), (one.huge, other.huge))
    )
    return ResidentPart(pages, huge, one.until)


def _within(some: Addresses, known: Addresses) -> npt.NDArray[np.bool_]:
    """Return which addresses are among others, which are ascending."""
    if not len(known):
        return np.zeros(len(some), np.bool_)
    at = np.minimum(np.searchsorted(known, some), len(known) - 1)
    found: npt.NDArray[np.bool_] = known[at] == some
    return found
