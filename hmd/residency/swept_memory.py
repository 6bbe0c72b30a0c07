"""What the residency sweep asks of a machine, and the kernel's answers.

Each question is small: a piece of a process's mappings, a part of its resident pages, the nodes of
some pages. The sweep decides between two of them whether its time is over.
"""

from __future__ import annotations

import errno
from collections.abc import Generator
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.machine.fork_family import fork_family
from hmd.machine.pages.address_space import compare_spaces
from hmd.machine.pages.huge_pages import HugeSource, huge_source
from hmd.machine.pages.mappings import Mappings
from hmd.machine.pages.maps_pieces import mapping_pieces
from hmd.machine.pages.move_pages import query_nodes
from hmd.machine.pages.page_sharing import PageSharing, page_sharing
from hmd.machine.pages.resident_pages import ResidentPart, every_page, resident_part
from hmd.machine.process_id import PROC, ProcessId, identify, read_stat

Addresses: TypeAlias = npt.NDArray[np.uint64]
Pieces: TypeAlias = Generator[Mappings, None, None]


class SweptMemory(Protocol):
    """What the sweep reads from the machine, by process."""

    def pieces(self, process: ProcessId) -> Pieces:
        """Yield the mappings piece by piece; none if the process is gone or not readable."""
        ...

    def compare(self, first: ProcessId, second: ProcessId) -> int | None:
        """Return 0 for processes of one address space, else the sign of an order of these.

        None if not known.
        """
        ...

    def resident_bytes(self, process: ProcessId) -> int:
        """Return the resident size, 0 if the process is gone."""
        ...

    def mount_namespace(self, process: ProcessId) -> int:
        """Return the number of the mount namespace that paths are valid in, 0 if not known."""
        ...

    def fork_family(self, process: ProcessId) -> str:
        """Return what forks of a program have in common; empty if not known."""
        ...

    def sharing(self, process: ProcessId, addresses: Addresses) -> npt.NDArray[np.uint8]:
        """Return who maps each page, as ``PageSharing``; ``addresses`` are ascending."""
        ...

    def resident(
        self, process: ProcessId, start: int, end: int, huge: Addresses, pages: int
    ) -> ResidentPart | None:
        """Return the next pages from ``start`` that may be resident, about ``pages``.

        None if the process is gone. ``huge`` are the huge pages that the mappings' details showed.
        """
        ...

    def nodes(self, process: ProcessId, addresses: Addresses) -> npt.NDArray[np.int16]:
        """Return the node of each page, below 0 if it is not resident."""
        ...


class KernelMemory:
    """Memory as the kernel reports it."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._source = huge_source(proc)

    def pieces(self, process: ProcessId) -> Pieces:
        """Read /proc/PID/maps, or smaps where nothing else shows huge pages."""
        details = self._source is HugeSource.SMAPS
        return mapping_pieces(process.pid, self._proc, details=details)

    def compare(self, first: ProcessId, second: ProcessId) -> int | None:
        """Ask kcmp(2)."""
        return compare_spaces(first, second, self._proc)

    def resident_bytes(self, process: ProcessId) -> int:
        """Read /proc/PID/stat."""
        stat = read_stat(process.pid, self._proc)
        return stat.resident_bytes if stat is not None and stat.process == process else 0

    def mount_namespace(self, process: ProcessId) -> int:
        """Return the inode of /proc/PID/ns/mnt (namespaces(7))."""
        try:
            return (self._proc / str(process.pid) / "ns/mnt").stat().st_ino
        except OSError:
            return 0  # exited, or not permitted

    def fork_family(self, process: ProcessId) -> str:
        """Compare addresses that execve(2) chooses."""
        return fork_family(process, self._proc)

    def sharing(self, process: ProcessId, addresses: Addresses) -> npt.NDArray[np.uint8]:
        """Read pagemap."""
        return page_sharing(process.pid, addresses, self._proc)

    def resident(
        self, process: ProcessId, start: int, end: int, huge: Addresses, pages: int
    ) -> ResidentPart | None:
        """Query PAGEMAP_SCAN, or kpageflags."""
        return resident_part(process.pid, (start, end), self._source, huge, pages, self._proc)

    def nodes(self, process: ProcessId, addresses: Addresses) -> npt.NDArray[np.int16]:
        """Query move_pages(2); -ESRCH for all pages where the pid is another process's now."""
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


class ModelledMemory:
    """Modelled address spaces as the sweep reads a machine."""

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
        del process
        return 1

    def fork_family(self, process: ProcessId) -> str:
        """Return nothing: no process is a fork."""
        del process
        return ""

    def sharing(self, process: ProcessId, addresses: Addresses) -> npt.NDArray[np.uint8]:
        """Return ALONE for all pages."""
        del process
        return np.full(len(addresses), PageSharing.ALONE, np.uint8)

    def resident(
        self, process: ProcessId, start: int, end: int, huge: Addresses, pages: int
    ) -> ResidentPart | None:
        """Return all pages of the next chunks."""
        del huge
        return every_page(start, end, self._huge[process.pid], pages)

    def nodes(self, process: ProcessId, addresses: Addresses) -> npt.NDArray[np.int16]:
        """Return what the model has."""
        return self._spaces.nodes(process.pid, addresses)
