"""The mappings of a process in pieces, so that no process decides how long a read takes.

A process may have as many mappings as vm.max_map_count permits (65,530, and a million where a
database asks for it). The kernel prints /proc/PID/maps from the address that the last read reached
(fs/proc/task_mmu.c, m_start()), so a reader may stop after any piece and continue later. Costs
about 3 µs per mapping, with the details of smaps about 10 µs and a walk of the page tables.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

from hmd.machine.mappings import Mappings, parse_maps, parse_smaps
from hmd.machine.process_id import PROC
from hmd.machine.procfs import absent, open_to_read

PIECE_BYTES: Final = 1 << 15
"""Text of a piece: some 500 mappings, which take about 1.5 ms."""


def mapping_pieces(
    pid: int, proc: Path = PROC, *, details: bool = False
) -> Generator[Mappings, None, None]:
    """Yield the mappings of ``pid`` piece by piece, in order of address.

    ``details`` reads smaps, as ``read_mapping_details``. Yields nothing where the process has
    exited or may not be read, and ends early where it exits meanwhile. Closing the generator closes
    the file.
    """
    fd = open_to_read(proc / str(pid) / ("smaps" if details else "maps"))
    if fd is None:
        return
    try:
        text = b""
        while data := os.read(fd, PIECE_BYTES):
            text += data
            end = _whole(text, details=details) if len(text) >= PIECE_BYTES else 0
            if end:
                yield parse_smaps(text[:end]) if details else parse_maps(text[:end])
                text = text[end:]
        if text:
            yield parse_smaps(text) if details else parse_maps(text)
    except OSError as error:
        if not absent(error):
            raise
    finally:
        os.close(fd)


def _whole(text: bytes, *, details: bool) -> int:
    """Return where the last whole mapping of a piece of text ends; 0 where there is none."""
    if not details:
        return text.rfind(b"\n") + 1
    # The flags are the last line of a mapping in smaps (show_smap()).
    return text.find(b"\n", text.rfind(b"\nVmFlags:") + 1) + 1 if b"\nVmFlags:" in text else 0
