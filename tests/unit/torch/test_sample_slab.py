# SPDX-License-Identifier: MIT
"""Samples in shared memory, as forked, spawned and killed processes see them."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmd.torch.sample_slab import SampleSlab

NONE = np.empty(0, np.int64)


def slab_of(count: int, length: int = 1000) -> SampleSlab:
    return SampleSlab((np.full(length, each, np.int32) for each in range(count)), count)


def swap_in(slab: SampleSlab, slot: int, sample: SampleSlab) -> None:
    with sample.view(0) as data:
        slab.replace(NONE, NONE, {slot: data})


def anonymous_kib() -> int:
    """Return the KiB of memory that this process alone has, copies after a fork in them."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if "RssAnon" in line).split()[1])


def read_all(slab: SampleSlab, replies: Connection) -> None:
    int(slab[0][-1])
    before = anonymous_kib()
    values = [int(slab[slot][-1]) for slot in range(len(slab))]
    replies.send((values, anonymous_kib() - before))
    replies.recv()
    replies.send((int(slab[0][-1]), len(slab[0])))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_process_reads_samples_in_place_and_what_replaces_them(method: str) -> None:
    slab = slab_of(500, 10_000)
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    reader = context.Process(target=read_all, args=(slab, theirs))
    reader.start()
    values, copied_kib = ours.recv()
    assert values == list(range(500))
    assert copied_kib < 4000  # of 20,000
    # Longer, so that the mapping grows.
    swap_in(slab, 0, SampleSlab([np.full(100_000, 7, np.int32)], 1))
    ours.send("again")
    assert ours.recv() == (7, 100_000)
    reader.join(60)
    assert reader.exitcode == 0


def test_killed_process_leaves_no_shared_memory() -> None:
    before = set(Path("/dev/shm").iterdir())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        slab = slab_of(2000)
        os.write(writing, f"{len(slab)}".encode())
        signal.pause()
        os._exit(1)
    assert os.read(reading, 10) == b"2000"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)
    assert set(Path("/dev/shm").iterdir()) <= before


def test_samples_lie_one_after_the_other() -> None:
    slab = slab_of(3)
    assert np.diff(slab.offsets).tolist() == slab.lengths[:-1].tolist()
    assert slab.sample_bytes == slab.lengths.sum()


def test_sample_of_the_same_length_takes_the_memory_of_the_lost_one() -> None:
    slab = slab_of(3)
    before = slab.offsets.tolist()
    swap_in(slab, 1, slab_of(1))
    assert [int(slab[slot][0]) for slot in range(3)] == [0, 0, 2]
    assert slab.offsets.tolist() == before


def test_samples_move_between_slots_without_being_copied() -> None:
    slab = slab_of(3)
    first, second, third = slab.offsets.tolist()
    slab.replace(np.array([0, 2]), np.array([2, 0]), {})
    assert slab.offsets.tolist() == [third, second, first]
    assert [int(slab[slot][0]) for slot in range(3)] == [2, 1, 0]


def test_object_of_a_slot_is_not_the_slab() -> None:
    slab = slab_of(2)
    slab[0][:] = 9
    assert int(slab[0][0]) == 0


def test_slot_that_is_not_there_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        slab_of(2)[2]
