# SPDX-License-Identifier: MIT
"""Reading a ring while another process writes it: no record is torn, lost or repeated."""

from __future__ import annotations

import mmap
import os

import numpy as np
import numpy.typing as npt
import pytest

from hmd.sample.perf_ring import HEADER_BYTES, RecordColumns, Ring, SampleType

TYPE = SampleType.TID | SampleType.TIME | SampleType.ADDR | SampleType.WEIGHT | SampleType.PHYS_ADDR
RECORD_WORDS = 6
HEAD, TAIL = 1024 // 8, 1032 // 8
SAMPLE_HEADER = 9 | RECORD_WORDS * 8 << 48


def write(memory: mmap.mmap, count: int) -> None:
    """Write records whose every field is a function of their number, never over unread ones."""
    words = np.frombuffer(memory, np.uint64)
    data = words[HEADER_BYTES // 8 :]
    place = np.arange(RECORD_WORDS, dtype=np.int64)
    head = 0
    for number in range(1, count + 1):
        while head + RECORD_WORDS * 8 - int(words[TAIL]) > len(data) * 8:
            os.sched_yield()
        record = (SAMPLE_HEADER, number, number * 3, number * 5, number * 7, number * 11)
        data[(head // 8 + place) % len(data)] = record
        head += RECORD_WORDS * 8
        words[HEAD] = head


@pytest.mark.parametrize("data_bytes", [64, 4096])
def test_ring_read_during_writes_loses_and_invents_nothing(data_bytes: int) -> None:
    count = 30_000
    memory = mmap.mmap(-1, HEADER_BYTES + 4096)
    array: npt.NDArray[np.uint8] = np.frombuffer(memory, np.uint8)[: HEADER_BYTES + data_bytes]
    whole = memoryview(memory)[: HEADER_BYTES + data_bytes]
    writer = os.fork()
    if writer == 0:
        status = 1
        try:
            write(whole, count)  # type: ignore[arg-type]
            status = 0
        finally:
            os._exit(status)
    ring = Ring.over(array, TYPE)
    columns = RecordColumns(1000)
    last = 0
    while last < count:
        columns.clear()
        ring.drain(columns)
        n = columns.count
        if not n:
            os.sched_yield()
            continue
        number = np.arange(last + 1, last + n + 1, dtype=np.uint64)
        assert (columns.pid[:n] == number).all()
        assert (columns.time_ns[:n] == number * 3).all()
        assert (columns.address[:n] == number * 5).all()
        assert (columns.latency[:n] == number * 7).all()
        assert (columns.physical[:n] == number * 11).all()
        last += n
    assert os.waitpid(writer, 0)[1] == 0
    assert (ring.counts.corrupt, ring.counts.skipped) == (0, 0)
    assert int(array[1024:1040].view(np.uint64)[1]) == count * RECORD_WORDS * 8
