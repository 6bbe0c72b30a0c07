# SPDX-License-Identifier: MIT
"""Which nodes a process's memory is bound to: MPOL_BIND, of the process or of a mapping.

move_pages(2) observes cpusets, but no memory policy (mm/mempolicy.c, mm/migrate.c): it moves a page
off the nodes that ``numactl --membind``, mbind(2) or a virtual machine's ``policy=bind`` bind it
to, and the kernel never moves it back. hmd leaves such pages there.

Only /proc/PID/numa_maps shows another process's policies, and it counts the pages of each mapping:
0.1 µs per page, with the process's mmap lock held for reading. So it is read seldom, and only the
first mapping's line, which has the policy of the process, where page tables are larger than
``MAX_TABLE_BYTES``; mappings with a policy of their own are not seen then.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.linux.procfs import PROC, ProcessId, list_pids, parse_ids, read_bytes

MAX_TABLE_BYTES: Final = 16 << 20
"""Page tables of a process whose mappings are all read: 8 GiB in pages of 4 KiB, 0.2 s."""
_MIN_AGE_S: Final = 60.0
_AGE_OF_COST: Final = 1000
"""Policies are read again after a minute at the earliest, and take a thousandth of the time."""
_MAX_EDGES: Final = 1024
_MAX_PROCESSES: Final = 1 << 14

_LINE = re.compile(rb"^([0-9a-f]{1,16}) (?:bind(?:[=|][a-z|]+)?:([0-9,-]+))?", re.MULTILINE)
_COUNT = re.compile(rb" N(\d{1,5})=(\d{1,15})")
_OTHER_SIZE = re.compile(rb"^(.*) kernelpagesize_kB=(?!%d$)(\d{1,9})$" % (PAGE_BYTES >> 10), re.M)
_OWN = re.compile(rb"^.* (?:anon|dirty)=.*$", re.MULTILINE)
_TABLES = re.compile(rb"^VmPTE:\s+(\d{1,15}) kB", re.MULTILINE)
_POLICY_LINE_BYTES = 64
"""Of a read of this size the kernel prints no more mappings than it takes to fill it."""

Nodes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bindings:
    """The nodes that each address of a process is bound to; columns of shape ``(k,)``.

    From ``edges`` on, ascending, ``choice`` is a number in ``nodes``, -1 where not bound. What lies
    between two mappings counts to the first, and what lies below all of them is ``process_nodes``.
    ``node_pages`` are nodes with the base pages of the process there, empty where not counted.
    """

    process_nodes: Nodes = ()
    edges: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    choice: npt.NDArray[np.int16] = field(default_factory=lambda: np.empty(0, np.int16))
    nodes: tuple[Nodes, ...] = ()
    node_pages: tuple[tuple[int, int], ...] = ()

    @property
    def any_bound(self) -> bool:
        """Whether an address may be bound."""
        return bool(self.nodes or self.process_nodes)

    def nodes_at(self, address: int) -> Nodes:
        """Return the nodes that an address is bound to; empty where it is not."""
        row = int(np.searchsorted(self.edges, np.uint64(address), side="right")) - 1
        if row < 0:
            return self.process_nodes
        return self.nodes[self.choice[row]] if self.choice[row] >= 0 else ()

    def permits(
        self, addresses: npt.NDArray[np.uint64], node: npt.NDArray[np.int16]
    ) -> npt.NDArray[np.bool_]:
        """Return for each address whether its page may be on a node; all of one shape."""
        return self._lookup(addresses, lambda nodes: np.isin(node, nodes))

    def fixed_at(self, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return which addresses are bound to a single node, so that no move is left."""
        here = np.zeros(len(addresses), np.int16)
        return ~self._lookup(addresses, lambda nodes: np.full(len(here), len(nodes) != 1))

    def _lookup(
        self,
        addresses: npt.NDArray[np.uint64],
        answer: Callable[[Nodes], npt.NDArray[np.bool_]],
    ) -> npt.NDArray[np.bool_]:
        """Return the answers of the nodes that addresses are bound to; True where not bound."""
        found = np.ones(len(addresses), np.bool_)
        row = np.searchsorted(self.edges, addresses, side="right") - 1
        chosen = np.append(self.choice, np.int16(-1))[row]
        if self.process_nodes:
            np.copyto(found, answer(self.process_nodes), where=row < 0)
        for number, nodes in enumerate(self.nodes):
            np.copyto(found, answer(nodes), where=(row >= 0) & (chosen == number))
        return found


UNBOUND: Final = Bindings()


def parse_numa_maps(text: bytes) -> Bindings:
    """Return the bindings that numa_maps shows (numa(7)); lines that are not its are skipped."""
    lines = _LINE.findall(text)
    if not any(bound for _, bound in lines):
        return UNBOUND
    nodes: dict[Nodes, int] = {}
    edges, choices = list[int](), list[int]()
    for start, bound in lines:
        number = nodes.setdefault(parse_ids(bound.decode()), len(nodes)) if bound else -1
        if not choices or choices[-1] != number:
            edges.append(int(start, 16))
            choices.append(number)
    first = parse_ids(lines[0][1].decode())
    return Bindings(
        first,
        np.array(edges[:_MAX_EDGES], np.uint64),
        np.array(choices[:_MAX_EDGES], np.int16),
        tuple(nodes),
    )


def read_bindings(pid: int, proc: Path = PROC) -> Bindings:
    """Return the bindings of a process; none where it has exited or may not be read."""
    folder = proc / str(pid)
    whole = _has_small_tables(folder)
    text = read_bytes(folder / "numa_maps", None if whole else _POLICY_LINE_BYTES) or b""
    found = parse_numa_maps(text if whole else text.partition(b"\n")[0])
    return replace(found, node_pages=count_pages(text)) if whole else found


def _has_small_tables(folder: Path) -> bool:
    tables = _TABLES.search(read_bytes(folder / "status") or b"")
    return tables is not None and int(tables[1]) << 10 <= MAX_TABLE_BYTES


def count_own_pages(pid: int, proc: Path = PROC) -> tuple[tuple[int, int], ...] | None:
    """Return nodes and the base pages of a process's own memory there, as numa_maps counts now.

    That is anonymous and shared memory, and pages of files that it has changed, but not the page
    cache of files such as libraries. None where page tables are too large, or may not be read.
    """
    folder = proc / str(pid)
    text = read_bytes(folder / "numa_maps") if _has_small_tables(folder) else None
    return count_pages(b"\n".join(_OWN.findall(text))) if text else None


def count_pages(text: bytes) -> tuple[tuple[int, int], ...]:
    """Return nodes and how many base pages numa_maps counts there, of pages of any size."""
    pages: dict[int, int] = {}
    for node, count in _COUNT.findall(text):
        pages[int(node)] = pages.get(int(node), 0) + int(count)
    for line, kib in _OTHER_SIZE.findall(text):  # hugetlbfs
        for node, count in _COUNT.findall(line):
            pages[int(node)] += int(count) * (int(kib) * 1024 // PAGE_BYTES - 1)
    return tuple(sorted(pages.items()))


def bound_processes(proc: Path = PROC) -> Iterator[tuple[int, Nodes]]:
    """Yield the processes that are bound as a whole, and their nodes; one small read each."""
    for pid in list_pids(proc):
        text = read_bytes(proc / str(pid) / "numa_maps", _POLICY_LINE_BYTES) or b""
        nodes = parse_numa_maps(text.partition(b"\n")[0]).process_nodes
        if nodes:
            yield pid, nodes


class MemoryBindings:
    """The bindings of processes, kept as long as reading them again would cost too much."""

    def __init__(self, proc: Path = PROC, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc, self._clock = proc, clock
        self._known: dict[ProcessId, tuple[Bindings, float]] = {}

    def is_known(self, process: ProcessId) -> bool:
        """Return whether the bindings of a process need not be read now."""
        known = self._known.get(process)
        return known is not None and self._clock() < known[1]

    def of(self, process: ProcessId) -> Bindings:
        """Return the bindings of a process; a change of policy shows after a minute or more."""
        known, begun_s = self._known.get(process), self._clock()
        if known is not None and begun_s < known[1]:
            return known[0]
        if len(self._known) >= _MAX_PROCESSES:
            self._known.clear()
        found, now_s = read_bindings(process.pid, self._proc), self._clock()
        due_s = now_s + max(_MIN_AGE_S, _AGE_OF_COST * (now_s - begun_s))
        self._known[process] = found, due_s
        return found
