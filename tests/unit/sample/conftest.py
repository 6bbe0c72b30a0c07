# SPDX-License-Identifier: MIT
"""Memory of a ring between pages without access."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator

import numpy as np
import pytest

from hmd.sample.access_batch import Kind
from hmd.sample.perf_ring import Ring, SampleType

DATA_HEAD, DATA_TAIL = 1024, 1032
PAGE = mmap.PAGESIZE


class GuardedRing:
    """Ring memory between pages without access: one byte out of bounds ends the test run.

    ``data_bytes`` up to a page lie directly before a guard page, header and data apart.
    """

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, 5 * PAGE)
        self._bytes = np.frombuffer(self._map, np.uint8)
        start = self._bytes.ctypes.data
        libc = ctypes.CDLL(None, use_errno=True)
        for guard in (0, 2, 4):
            assert libc.mprotect(ctypes.c_void_p(start + guard * PAGE), PAGE, 0) == 0
        self._start = start
        self.header = self._bytes[PAGE : 2 * PAGE]

    def ring(self, data: bytes, sample_type: SampleType, kind: Kind = Kind.LOAD) -> Ring:
        end = 4 * PAGE
        self.data = self._bytes[end - len(data) : end]
        self.data[:] = np.frombuffer(data, np.uint8)
        return Ring(self._start + PAGE, self._start + end - len(data), len(data), sample_type, kind)

    def place(self, head: int, tail: int) -> None:
        self.header[DATA_HEAD : DATA_HEAD + 16].view(np.uint64)[:] = (head, tail)

    @property
    def tail(self) -> int:
        return int(self.header[DATA_TAIL : DATA_TAIL + 8].view(np.uint64)[0])


@pytest.fixture(scope="module")
def memory() -> Iterator[GuardedRing]:
    yield GuardedRing()
