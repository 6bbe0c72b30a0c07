"""The mappings of a process in pieces, so that no process decides how long a read takes.

A process may have as many mappings as vm.max_map_count permits (65,530, and a million where a
database asks for it). The kernel prints /proc/PID/maps from the address that the last read reached
(fs/proc/task_mmu.c, m_start()), so a reader may stop after any piece and continue later. Costs
about 3 µs per mapping, with the details of smaps about 10 µs and a walk of the page tables.

Of a process with more than ``EXACT_MAPPINGS`` the rest is looked up by the unit of ``STRIDE_BYTES``
where the kernel can be asked so (:mod:`hmd.machine.pages.mapping_queries`): a million mappings of
some pages take no longer than the memory that they span.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from hmd.machine.pages.mapping_queries import query_from
from hmd.machine.pages.mappings import MappingKind, Mappings, parse_maps, parse_smaps
from hmd.machine.process_id import PROC
from hmd.machine.procfs import absent, open_to_read
from hmd.units import HUGE_PAGE_BYTES

PIECE_BYTES: Final = 1 << 15
"""Text of a piece: some 500 mappings, which take about 1.5 ms."""
EXACT_MAPPINGS: Final = 1 << 14
"""Mappings of a process that are read one by one: about 50 ms."""
STRIDE_BYTES: Final = HUGE_PAGE_BYTES
"""Unit of address space of which, beyond ``EXACT_MAPPINGS``, one anonymous mapping is read."""


def mapping_pieces(
    pid: int, proc: Path = PROC, *, details: bool = False
) -> Generator[Mappings, None, None]:
    """Yield the mappings of ``pid`` piece by piece, in order of address.

    ``details`` reads smaps, as ``read_mapping_details``. Yields nothing where the process has
    exited or may not be read, and ends early where it exits meanwhile. Closing the generator closes
    the file. After ``EXACT_MAPPINGS`` what follows accessible anonymous memory in the same
    ``STRIDE_BYTES`` is left out, unless it reaches beyond.
    """
    fd = open_to_read(proc / str(pid) / ("smaps" if details else "maps"))
    if fd is None:
        return
    try:
        read, queried = 0, details
        for piece in _text_pieces(fd, details=details):
            yield piece
            read += len(piece)
            if read >= EXACT_MAPPINGS and not queried:
                queried = True
                if (yield from _strides(fd, int(piece.end[-1]))):
                    break
    except OSError as error:
        if not absent(error):
            raise
    finally:
        os.close(fd)


def covering_mappings(pid: int, proc: Path = PROC) -> Mappings | None:
    """Return mappings that cover the pages of ``pid``; None where it has none or may not be read.

    They are those of ``mapping_pieces``, of which the process's own memory reaches over what was
    left out after it. They ascend and are disjoint, also where the process maps meanwhile.
    """
    pieces = list(mapping_pieces(pid, proc))
    if not pieces:
        return None
    found = pieces[0].joined(pieces[1:])
    before = np.append(np.uint64(0), np.maximum.accumulate(found.end)[:-1])
    found = replace(found, start=np.maximum(found.start, before))
    found = found.take(np.flatnonzero(found.start < found.end))
    own = (found.kind == MappingKind.ANON) | (found.kind == MappingKind.HEAP)
    own &= found.accessible & (np.arange(len(found)) >= EXACT_MAPPINGS)
    stride, nowhere = np.uint64(STRIDE_BYTES), np.iinfo(np.uint64).max
    reach = ((found.end - np.uint64(1)) // stride + np.uint64(1)) * stride
    reach = np.minimum(reach, np.append(found.start[1:], nowhere))
    return replace(found, end=np.where(own, reach, found.end))


def _text_pieces(fd: int, *, details: bool) -> Generator[Mappings, None, None]:
    text = b""
    while data := os.read(fd, PIECE_BYTES):
        text += data
        end = _whole(text, details=details) if len(text) >= PIECE_BYTES else 0
        if end:
            yield parse_smaps(text[:end]) if details else parse_maps(text[:end])
            text = text[end:]
    if text:
        yield parse_smaps(text) if details else parse_maps(text)


def _strides(fd: int, address: int) -> Generator[Mappings, None, bool]:
    """Yield mappings from an address on, one per stride; return whether the kernel answers."""
    while True:
        try:
            piece, address = query_from(fd, address, STRIDE_BYTES)
        except OSError as error:
            if error.errno == errno.ENOTTY:
                return False
            raise
        if not len(piece):
            return True
        yield piece


def _whole(text: bytes, *, details: bool) -> int:
    """Return where the last whole mapping of a piece of text ends; 0 where there is none."""
    if not details:
        return text.rfind(b"\n") + 1
    # The flags are the last line of a mapping in smaps (show_smap()).
    return text.find(b"\n", text.rfind(b"\nVmFlags:") + 1) + 1 if b"\nVmFlags:" in text else 0
