# SPDX-License-Identifier: MIT
"""Pages that several modelled processes map, through sweeps and samples."""

from __future__ import annotations

import errno

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_BYTES, CHUNK_PAGES
from hmd.heat.table import HeatTable
from hmd.linux.mappings import (
    LEAST_BYTES,
    PROCESS_MOST,
    FileKey,
    Mappings,
    SharedRange,
    in_namespace,
    parse_maps,
)
from hmd.linux.procfs import ProcessId
from hmd.residency.memory_reader import ModelledMemory
from hmd.residency.shared_pages import MAX_MAPPINGS, SharedMappings
from hmd.residency.sweep import ResidencySweep, SweepSettings
from hmd.sample.access_batch import AccessBatch

SIZE = 8 * CHUNK_BYTES
PAGES = SIZE // PAGE_BYTES
MEMFD = "/memfd:segment (deleted)"


class Segments:
    """Processes that map parts of one file, and huge pages of it; nodes by page of the file."""

    def __init__(self) -> None:
        self.maps: dict[int, list[tuple[int, int, int]]] = {}
        self.node = dict.fromkeys(range(PAGES), 1)
        self.huge: dict[int, list[int]] = {}
        self.queried = 0

    def mappings(self, pid: int) -> Mappings | None:
        lines = [
            f"{start:x}-{start + size:x} rw-s {offset:x} 00:01 77 {MEMFD}\n"
            for start, size, offset in self.maps.get(pid, [])
        ]
        return parse_maps("".join(lines).encode()) if lines else None

    def huge_pages(self, pid: int, mappings: Mappings) -> npt.NDArray[np.uint64]:
        del mappings
        return np.array(self.huge.get(pid, []), np.uint64)

    def nodes(self, pid: int, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.int16]:
        self.queried += len(addresses)
        found = np.full(len(addresses), -errno.ENOENT, np.int16)
        for start, size, offset in self.maps.get(pid, []):
            for row, address in enumerate(addresses.tolist()):
                if start <= address < start + size:
                    found[row] = self.node.get((address - start + offset) // PAGE_BYTES, -2)
        return found


def setting(*maps: tuple[int, int, int]) -> tuple[HeatTable, Segments, ResidencySweep]:
    """Return a table of one process for each mapping: address, size, offset."""
    table, segments = HeatTable(), Segments()
    for pid, one in enumerate(maps, 1):
        segments.maps[pid] = [one]
    table.track_processes([ProcessId(pid, 1) for pid in segments.maps])
    settings = SweepSettings(max_sweep_ticks=2, mappings_ticks=1)
    return table, segments, ResidencySweep(settings, ModelledMemory(segments), lambda: 0.0)


def tick(table: HeatTable, sweep: ResidencySweep, batch: AccessBatch | None = None) -> None:
    table.update(sweep.attribute_to_owner(batch or AccessBatch.empty(), table))
    sweep.step(table)


def pages(table: HeatTable) -> list[int]:
    movable, _ = table.resident_pages(2)
    return [int(count) for count in movable.sum(axis=1)]


def samples(process: list[int], address: list[int]) -> AccessBatch:
    return AccessBatch.of(np.array(address, np.uint64), np.array(process, np.int32))


def test_segment_of_many_processes_counted_and_queried_once() -> None:
    # Mappings need not begin at a multiple of 2 MiB.
    table, segments, sweep = setting(
        *[(number * (1 << 32) + number * PAGE_BYTES, SIZE, 0) for number in range(1, 21)]
    )
    for _ in range(4):
        tick(table, sweep)
    assert sum(pages(table)) == PAGES
    assert sorted(pages(table))[:-1] == [0] * 19
    segments.queried = 0
    for _ in range(4):
        tick(table, sweep)
    # Two sweeps: the segment, and of each process the rest of its first and last chunk.
    assert segments.queried == 2 * (PAGES + 20 * CHUNK_PAGES)


def test_segment_mapped_in_overlapping_parts_counted_once() -> None:
    half = SIZE // 2
    table, _, sweep = setting((1 << 32, half, 0), (2 << 32, half + CHUNK_BYTES, half - CHUNK_BYTES))
    for _ in range(4):
        tick(table, sweep)
    assert pages(table) == [PAGES // 2, PAGES // 2]


def test_segment_mapped_twice_by_one_process_counted_once() -> None:
    table, segments, sweep = setting((1 << 32, SIZE, 0))
    segments.maps[1].append((2 << 32, SIZE, 0))
    for _ in range(4):
        tick(table, sweep)
    assert pages(table) == [PAGES]


def test_segment_unmapped_by_the_process_that_counts_it_taken_over() -> None:
    table, segments, sweep = setting((1 << 32, SIZE, 0), (2 << 32, SIZE, 0))
    tick(table, sweep)
    assert pages(table) == [PAGES, 0]
    segments.maps[1] = [(3 << 32, PAGE_BYTES, SIZE)]
    for _ in range(4):
        tick(table, sweep)
    assert pages(table) == [0, PAGES]


def test_pages_that_are_gone_not_counted_any_more() -> None:
    table, segments, sweep = setting((1 << 32, SIZE, 0), (2 << 32, SIZE, 0))
    tick(table, sweep)
    segments.node = {page: 1 for page in segments.node if page % 2}
    for _ in range(6):
        tick(table, sweep)
    assert sum(pages(table)) == PAGES // 2


def test_huge_page_of_which_another_counts_a_part_counted_in_pages() -> None:
    table, segments, sweep = setting((1 << 32, SIZE, 0), (2 << 32, SIZE, 0))
    segments.huge[2] = [2 << 32]
    # The first process has a part of the huge page only.
    segments.maps[1] = [(1 << 32, LEAST_BYTES, CHUNK_BYTES - 100 * PAGE_BYTES)]
    for _ in range(4):
        tick(table, sweep)
    assert sum(pages(table)) == PAGES


def test_samples_of_all_processes_heat_one_row() -> None:
    table, _, sweep = setting((1 << 32, SIZE, 0), (2 << 32, SIZE, 0), (3 << 32, SIZE, PAGE_BYTES))
    tick(table, sweep)
    page = 5 * PAGE_BYTES
    # The first two, the third at its own offset, and an address outside the mappings.
    batch = samples([0, 1, 2, 1], [(1 << 32) + page, (2 << 32) + page, (3 << 32) + page, page])
    folded = sweep.attribute_to_owner(batch, table)
    assert folded.process.tolist() == [0, 0, 0, 1]
    assert folded.address.tolist() == [
        (1 << 32) + page,
        (1 << 32) + page,
        (1 << 32) + page + PAGE_BYTES,
        page,
    ]


def test_samples_after_the_counting_process_exits_stay_where_they_are() -> None:
    table, _, sweep = setting((1 << 32, SIZE, 0), (2 << 32, SIZE, 0))
    tick(table, sweep)
    table.track_processes([ProcessId(2, 1)])
    batch = samples([0], [(2 << 32) + PAGE_BYTES])
    assert sweep.attribute_to_owner(batch, table) is batch
    tick(table, sweep, batch)
    assert pages(table) == [PAGES]


def test_private_mapping_of_a_file_not_shared() -> None:
    line = b"100000000-200000000 rw-%s 00000000 08:01 5 /data/table\n"
    assert parse_maps(line % b"p").shared == ()
    [one] = parse_maps(line % b"s").shared
    assert one == SharedRange(1 << 32, 2 << 32, 0, FileKey(b"08:01", 5, "/data/table"))


def test_small_mapping_and_offset_beyond_bounds_not_followed() -> None:
    small = b"100000000-100200000 rw-s 00000000 00:01 5 /memfd:x\n"
    beyond = b"100000000-200000000 rw-s ffffffffffff0000 00:01 5 /memfd:x\n"
    assert parse_maps(small).shared == ()
    assert parse_maps(beyond).shared == ()


def test_system_v_segment_and_memfd_of_one_number_differ() -> None:
    text = (
        b"100000000-200000000 rw-s 00000000 00:01 5 /memfd:x (deleted)\n"
        b"300000000-400000000 rw-s 00000000 00:01 5 /SYSV00000000 (deleted)\n"
    )
    memfd, segment = parse_maps(text).shared
    assert memfd.file != segment.file


def test_files_of_one_path_in_other_mount_namespaces_differ() -> None:
    line = b"100000000-200000000 rw-s 00000000 00:2a 257 /data/table\n"
    ranges = parse_maps(line).shared
    assert in_namespace(ranges, 1) != in_namespace(ranges, 2)
    assert in_namespace(ranges, 0) == []
    memory = parse_maps(line.replace(b"/data/table", b"/memfd:x")).shared
    assert in_namespace(memory, 0) == in_namespace(memory, 1) == list(memory)


def test_views_beyond_bounds_left_out_and_numbers_used_again() -> None:
    views = SharedMappings()
    file = FileKey(b"0:1", 5)
    many = [SharedRange(n << 32, (n << 32) + LEAST_BYTES + n, 0, file) for n in range(100)]
    for pid in range(1, MAX_MAPPINGS // PROCESS_MOST + 3):
        views.set_ranges(ProcessId(pid, 1), many)
    assert len(views) == MAX_MAPPINGS
    # The largest are followed, in order of address.
    first = views.of(ProcessId(1, 1))
    assert [view.range for view in first] == many[100 - PROCESS_MOST :]
    gone = views.retain_processes([ProcessId(2, 1)])
    assert len(gone) == MAX_MAPPINGS - PROCESS_MOST
    assert len(views) == PROCESS_MOST
    assert not views.of(ProcessId(1, 1))
