# SPDX-License-Identifier: MIT
"""A recording of the guest says which pages its program gave back, and when."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hmd.base.units import PAGE_BYTES
from hmd.emulate.assets import WORKLOADS, compile_static
from hmd.emulate.preset import load
from hmd.emulate.recordings.misses import MissStream
from hmd.emulate.recordings.recorder import ALL_SLOW, RECORDED_ON, guest, run_in, widest_core
from hmd.emulate.vm.guest import BASE_ENVIRONMENT, Command

SOURCE = Path(__file__).parents[1] / "programs" / "give_back.c"
SIZES = {"munmap": 50, "madvise": 40, "brk": 30, "kept": 80}


def numbers_of(text: str) -> dict[str, range]:
    """Return the page numbers that the program gave back, by way."""
    words = [line.split() for line in text.splitlines()]
    return {
        way: range(int(start) // PAGE_BYTES, int(start) // PAGE_BYTES + int(pages))
        for way, start, pages in words
    }


def frees_before_end(stream: MissStream) -> tuple[Counter[int], Counter[int]]:
    """Return how often each page number was given back, while running and at the end."""
    assert stream.frees is not None
    page = (stream.page_address[stream.frees.page] // np.uint64(PAGE_BYTES)).tolist()
    user = np.flatnonzero(stream.sampled())
    ended = (stream.frees.row > int(user[-1])).tolist()
    during = Counter(one for one, late in zip(page, ended, strict=True) if not late)
    return during, Counter(one for one, late in zip(page, ended, strict=True) if late)


@pytest.mark.timeout(600)
def test_recording_has_what_its_program_gave_back() -> None:
    program, placed = compile_static(SOURCE), compile_static(WORKLOADS / "placed.c")
    command = Command((str(program),), BASE_ENVIRONMENT, expect="kept")
    with guest(widest_core(load(RECORDED_ON)), command) as machine:
        recording = run_in(machine, command, ALL_SLOW).recording
        # Without random addresses they are the same in every run.
        said = machine.run([str(placed), "0", "default", "0", str(program)], check=True).stdout
    stream = recording.stream
    ranges = numbers_of(said)
    assert {way: len(pages) for way, pages in ranges.items()} == SIZES
    during, at_end = frees_before_end(stream)
    assert [during[page] for page in ranges["munmap"]] == [1] * 50
    assert [during[page] for page in ranges["brk"]] == [1] * 30
    assert [during[page] for page in ranges["kept"]] == [0] * 80
    assert [at_end[page] for page in ranges["kept"]] == [1] * 80
    assert [during[page] + at_end[page] for page in ranges["madvise"]] == [2] * 40
    # The second time comes after the second access to each.
    frees = stream.frees
    assert frees is not None
    numbers = stream.page_address[: stream.user_pages] // np.uint64(PAGE_BYTES)
    first = int(np.searchsorted(numbers, ranges["madvise"][0]))
    rows = frees.row[frees.page == first]
    accessed = np.flatnonzero(stream.page == first)
    assert ((accessed > rows[0]) & (accessed < rows[1])).any()
