# SPDX-License-Identifier: MIT
"""Memory that a recorded program gives back: from the plugin's file to pages of the stream."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hmd.emulate.recordings.misses import MissFlag, MissStream
from hmd.emulate.recordings.recorder import RECORD, read_recording

KERNEL_CLEARS = MissFlag.KERNEL | MissFlag.STORE
KERNEL_BASE = 0xFFFF888000000000
ALL_PAGES = 1 << 35


def access(page: int, frame: int, flags: int = 0, cpu: int = 1) -> tuple[int, ...]:
    """Return a record of an access to a page of the program."""
    return (0, page << 12, frame * 64, 0, 0, 0, flags, cpu)


def cleared(frame: int) -> tuple[int, ...]:
    """Return a record of the kernel's clearing of a frame."""
    return (0, KERNEL_BASE + (frame << 12), frame * 64, 0, 0, 0, KERNEL_CLEARS, 1)


def written_back(frame: int) -> tuple[int, ...]:
    """Return a record of a line that goes to memory."""
    return (0, 0, frame * 64, 0, 0, 0, MissFlag.STORE | MissFlag.WRITE_BACK, 1)


def freed(page: int, pages: int) -> tuple[int, ...]:
    """Return a record of a call that gives pages back; of brk(2) with 0."""
    return (0, page << 12, 0, pages & 0xFFFFFFFF, pages >> 32, 0, MissFlag.FREE, 1)


def read(tmp_path: Path, records: list[tuple[int, ...]]) -> MissStream:
    rows = [(number, *record[1:]) for number, record in enumerate(records)]
    path = tmp_path / "recording"
    path.write_bytes(np.array(rows, RECORD).tobytes())
    return read_recording(path, len(rows)).stream


def frees_of(stream: MissStream) -> list[tuple[int, int]]:
    """Return row and virtual page number of each free."""
    if stream.frees is None:
        return []
    pages = (stream.page_address[stream.frees.page] >> np.uint64(12)).tolist()
    return list(zip(stream.frees.row.tolist(), pages, strict=True))


def pages_of(stream: MissStream) -> list[int]:
    """Return the virtual page number of each row, the frame of the kernel's."""
    return [int(one) >> 12 for one in stream.page_address[stream.page]]


def test_free_is_before_next_miss_of_pages_accessed(tmp_path: Path) -> None:
    stream = read(tmp_path, [access(7, 1), access(9, 2), freed(6, 3), access(20, 5)])
    assert len(stream) == 3
    assert frees_of(stream) == [(2, 7)]
    assert stream.instructions.tolist() == [0, 1, 3]


def test_page_freed_again_only_after_another_access(tmp_path: Path) -> None:
    records = [access(7, 1), freed(7, 1), freed(7, 1), access(8, 1), freed(7, 1), access(7, 2)]
    stream = read(tmp_path, [*records, freed(0, ALL_PAGES)])
    assert frees_of(stream) == [(1, 7), (3, 7), (3, 8)]


def test_clearing_of_freed_frame_counts_for_its_next_page(tmp_path: Path) -> None:
    records = [access(7, 1), cleared(1), freed(7, 1), written_back(1), cleared(1), access(8, 1)]
    stream = read(tmp_path, [*records, written_back(1)])
    # The write-back of what was page 7 is of no page: page 8 is not allocated yet.
    assert pages_of(stream) == [7, 7, 1, 8, 8, 8]
    assert stream.page_address[: stream.user_pages].tolist() == [7 << 12, 8 << 12]


def test_shrunk_heap_is_given_back_up_to_its_end(tmp_path: Path) -> None:
    records = [freed(100, 0), freed(120, 0), access(105, 1), access(115, 2), freed(110, 0)]
    assert frees_of(read(tmp_path, [*records, access(105, 1)])) == [(2, 115)]


def test_heap_of_another_program_is_not_a_shrunk_one(tmp_path: Path) -> None:
    records = [freed(1 << 33, 0), access(1 << 32, 1), freed(100, 0), access(105, 2)]
    assert frees_of(read(tmp_path, records)) == []


def test_frees_of_several_cpus_left_out(tmp_path: Path) -> None:
    records = [access(7, 1), access(8, 2, cpu=2), freed(7, 1), access(9, 3)]
    stream = read(tmp_path, records)
    assert stream.cpus == 2 and len(stream) == 3
    assert frees_of(stream) == []


@pytest.mark.parametrize("seed", range(5))
def test_frees_equal_those_of_a_page_by_page_model(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    records, expected, resident, rows = list[tuple[int, ...]](), [], set[int](), 0
    for _ in range(400):
        page, pages = int(rng.integers(1, 40)), int(rng.integers(1, 12))
        if rng.random() < 0.2:
            records.append(freed(page, pages))
            gone = sorted(resident & set(range(page, page + pages)))
            expected += [(rows, one) for one in gone]
            resident -= set(gone)
        else:
            records.append(access(page, page))
            resident.add(page)
            rows += 1
    stream = read(tmp_path, records)
    assert sorted(frees_of(stream)) == sorted(expected)
    assert pages_of(stream) == [record[1] >> 12 for record in records if record[6] == 0]
    stream.write(tmp_path / "file.misses")
    assert frees_of(MissStream.read(tmp_path / "file.misses")) == frees_of(stream)
