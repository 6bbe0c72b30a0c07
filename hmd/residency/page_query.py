"""The nodes of a part of an address space: asked of the machine, recorded in the heat table.

Pages that several processes map are asked for, and recorded, where one of them counts
(:mod:`hmd.residency.shared_pages`, :mod:`hmd.residency.forked_pages`). They are unmovable where
moves of shared pages are not permitted: the kernel would refuse each.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.heat.geometry import ABSENT, CHUNK_BYTES, CHUNK_PAGES, FIXED
from hmd.heat.heat_table import HeatTable
from hmd.machine.pages.page_sharing import PageSharing
from hmd.machine.pages.resident_pages import ResidentPart
from hmd.machine.process_id import ProcessId
from hmd.residency.forked_pages import ForkedPages
from hmd.residency.shared_pages import SharedPages
from hmd.residency.space_outline import SpaceOutline
from hmd.residency.swept_memory import SweptMemory
from hmd.units import PAGE_BYTES

Addresses: TypeAlias = npt.NDArray[np.uint64]

_NO_PAGES: Final = np.empty(0, np.uint64)
_CHUNK_MASK: Final = ~np.uint64(CHUNK_BYTES - 1)
_NEAR_CHUNKS: Final = 64
"""Chunks that are looked up one by one; of more, those that the table has are searched."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What a query did: pages ``asked`` for, pages ``recorded`` and how many ``changed``.

    All is known up to the address ``until``.
    """

    asked: int
    recorded: int
    changed: int
    until: int


@dataclass(frozen=True, slots=True)
class QueriedMachine:
    """What a query asks, and which process counts pages that several map.

    ``refused`` are processes of which pages could not be moved because others map them too;
    ``move_shared`` says that such pages may be moved.
    """

    memory: SweptMemory
    files: SharedPages
    forks: ForkedPages
    refused: Container[ProcessId]
    move_shared: bool


def ask_nodes(
    heat: HeatTable,
    slot: int,
    space: tuple[SpaceOutline, Addresses],
    span: tuple[int, int],
    pages: int,
    machine: QueriedMachine,
) -> Answered:
    """Ask for the nodes of the next resident pages of a span, about ``pages``, and record them.

    ``space`` is the outline of the process in ``slot``, and its huge pages as far as its mappings
    show them.
    """
    (outline, huge_pages), memory, forks = space, machine.memory, machine.forks
    process, (start, end) = heat.processes[slot], span
    part = memory.resident(process, start, end, huge_pages, max(pages, CHUNK_PAGES))
    if part is None:
        part = ResidentPart(_NO_PAGES, _NO_PAGES, end)
    part = machine.files.own(process, start, part)
    shared = forked = ResidentPart(_NO_PAGES, _NO_PAGES, part.until)
    follows = forks.follows(process) and not machine.files.covers(process, start, part.until)
    if follows or process in machine.refused:
        codes = [memory.sharing(process, some) for some in (part.pages, part.huge)]
        common = [code == PageSharing.FORKED for code in codes]
        several = [code != PageSharing.ALONE for code in codes]
        shared = _chosen(part, *(several if process in machine.refused else common))
    if follows:
        forked = forks.own(heat, slot, start, _chosen(part, *common))
        part = _joined(_chosen(part, ~common[0], ~common[1]), forked)
    asked = np.concatenate([part.huge, part.pages])
    answer = memory.nodes(process, asked) if len(asked) else np.empty(0, np.int16)
    heads = len(part.huge)
    there = answer >= 0
    present = ResidentPart(part.pages[there[heads:]], part.huge[there[:heads]], part.until)
    machine.files.claim(process, (start, part.until), present)
    if follows:
        within = _within(present.pages, forked.pages), _within(present.huge, forked.huge)
        forks.claim(process, (start, part.until), _chosen(present, *within))
    movable = outline.movable_at(asked)
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
    changed = heat.place(slot, chunks, node, huge) if len(chunks) else 0
    return Answered(len(asked), node.size, changed, part.until)


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
