# SPDX-License-Identifier: MIT
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmd.linux.huge_pages import HugeSource, huge_pages_in, huge_source
from hmd.linux.mappings import (
    MappingAccess,
    MappingKind,
    hugetlb_devices,
    kind_of,
    parse_maps,
    parse_smaps,
    read_mapping_details,
    read_mappings,
    repeated_views,
)

MAPS = b"""\
559c42e4c000-559c42e51000 r-xp 00002000 fe:00 260131                     /usr/bin/cat
559c7f327000-559c7f348000 rw-p 00000000 00:00 0                          [heap]
7f1200000000-7f1240000000 rw-p 00000000 00:00 0\x20
7f1240000000-7f1240200000 rw-s 00000000 00:01 1029                       /memfd:pool (deleted)
7f1250000000-7f1260000000 rw-s 4010000000 00:06 512                      /dev/nvidia0
7f1270000000-7f1270400000 rw-p 00000000 00:10 77                         /anon_hugepage (deleted)
7f1271000000-7f1271001000 r--p 00000000 fe:00 9                          /opt/a name with  blanks
7ffd41bfe000-7ffd41c1f000 rw-p 00000000 00:00 0                          [stack]
7ffd41d00000-7ffd41d02000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
"""

SMAPS = b"""\
7f1200000000-7f1240000000 rw-p 00000000 00:00 0\x20
Size:            1048576 kB
KernelPageSize:        4 kB
AnonHugePages:    524288 kB
ShmemPmdMapped:        0 kB
FilePmdMapped:         0 kB
THPeligible:           1
VmFlags: rd wr mr mw me ac sd hg\x20
7f1250000000-7f1260000000 rw-s 4010000000 00:06 512                      /opt/mapped-io
Size:             262144 kB
THPeligible:           0
VmFlags: rd wr sh mr mw me ms pf io dc de dd\x20
7f1270000000-7f1270400000 rw-p 00000000 00:10 77                         /mnt/huge/pool
Size:               4096 kB
KernelPageSize:     2048 kB
THPeligible:           0
VmFlags: rd wr mr mw me dc de ht\x20
"""


def test_maps_columns_parsed() -> None:
    maps = parse_maps(MAPS)
    assert len(maps) == 10
    assert maps.start[0] == 0x559C42E4C000
    assert maps.end[-1] == 0xFFFFFFFFFF601000
    assert [MappingKind(k).name for k in maps.kind] == [
        "FILE", "HEAP", "ANON", "SHM", "SPECIAL", "HUGETLB", "FILE", "STACK", "SPECIAL", "SPECIAL",
    ]  # fmt: skip
    assert maps.access[0] == MappingAccess.READ | MappingAccess.EXEC
    assert maps.access[3] == MappingAccess.READ | MappingAccess.WRITE | MappingAccess.SHARED
    assert maps.path[6] == "/opt/a name with  blanks"


def test_maps_movable_and_movable_at_expected() -> None:
    maps = parse_maps(MAPS)
    assert maps.movable.tolist() == [False, True, True, True, False, True, True, True, False, False]
    addresses = np.array(
        [0, 0x559C7F327000, 0x559C7F348000, 0x7F1200000000, 0x7F1250000000, 2**64 - 1], np.uint64
    )
    assert maps.movable_at(addresses).tolist() == [False, True, False, True, False, False]


def test_smaps_io_hugetlb_and_huge_bytes_parsed() -> None:
    maps = parse_smaps(SMAPS)
    assert maps.movable.tolist() == [True, False, True]
    assert maps.kind.tolist() == [MappingKind.ANON, MappingKind.FILE, MappingKind.HUGETLB]
    assert maps.huge_bytes.tolist() == [512 << 20, 0, 0]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("", MappingKind.ANON),
        ("[anon:glibc: malloc]", MappingKind.ANON),
        ("[anon_shmem:pool]", MappingKind.SHM),
        ("/SYSV00000000 (deleted)", MappingKind.SHM),
        ("/dev/shm/PostgreSQL.1", MappingKind.SHM),
        ("/dev/zero (deleted)", MappingKind.SHM),
        ("/dev/dri/renderD128", MappingKind.SPECIAL),
        ("anon_inode:[perf_event]", MappingKind.SPECIAL),
        ("[stack:17]", MappingKind.STACK),
        ("[vvar_vclock]", MappingKind.SPECIAL),
        ("/dev/hugepages/vm", MappingKind.HUGETLB),
        ("/dev/hugepages1G/vm", MappingKind.HUGETLB),
        ("/usr/lib/libc.so.6 (deleted)", MappingKind.FILE),
    ],
)
def test_mapping_kind_follows_path(path: str, kind: Any) -> None:
    assert kind_of(path) == kind


@given(st.binary(max_size=400))
def test_maps_of_random_bytes_skipped(data: Any) -> None:
    assert len(parse_maps(data)) <= data.count(b"\n") + 1
    parse_smaps(data)


@given(st.lists(st.sampled_from(MAPS.split(b"\n") + SMAPS.split(b"\n")), max_size=30), st.data())
def test_maps_truncated_text_parsed_up_to_cut(lines: Any, data: Any) -> None:
    text = b"\n".join(lines)
    text = text[: data.draw(st.integers(0, len(text)))]
    for parsed in (parse_maps(text), parse_smaps(text)):
        n = len(parsed)
        assert all(
            len(column) == n
            for column in (parsed.end, parsed.kind, parsed.movable, parsed.huge_bytes, parsed.path)
        )
        parsed.movable_at(np.array([0, 2**63], np.uint64))


def test_mappings_of_this_process_include_own_block() -> None:
    block = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block[:: mmap.PAGESIZE] = b"x" * (64 << 20 >> 12)
    address = np.frombuffer(block, np.uint8).ctypes.data
    maps = read_mappings(os.getpid())
    assert maps is not None
    assert maps.movable_at(np.array([address], np.uint64)).all()


def test_mappings_of_all_live_processes_read() -> None:
    seen = 0
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        for maps in (read_mappings(pid), read_mapping_details(pid)):
            if maps is not None:
                assert (maps.start < maps.end).all()
                assert (np.diff(maps.start.astype(np.float64)) >= 0).all()
                seen += len(maps.start)
    assert seen


def test_maps_of_this_process_every_line_parsed() -> None:
    text = Path("/proc/self/maps").read_bytes()
    assert len(parse_maps(text)) == text.count(b"\n")


def test_mappings_of_exited_process_none(tmp_path: Path) -> None:
    assert read_mappings(2**22 + 1) is None
    assert read_mapping_details(1, tmp_path) is None


def test_huge_pages_of_real_block_found(huge_block: Any) -> None:
    first = huge_block.ctypes.data
    found = huge_pages_in(os.getpid(), [(first, first + (16 << 20))])
    mine = found[(found >= first) & (found < first + (16 << 20))]
    if os.access("/proc/kpageflags", os.R_OK):  # root alone; smaps knows whole mappings only
        assert len(mine) >= 2
    assert (mine < first + (8 << 20)).all()


def test_huge_pages_without_pagemap_only_in_fully_huge_mappings(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    whole = SMAPS.replace(b"AnonHugePages:    524288", b"AnonHugePages:   1048576")
    (tmp_path / "7/smaps").write_bytes(whole)
    assert huge_source(tmp_path) is HugeSource.SMAPS
    assert len(huge_pages_in(7, [], tmp_path)) == 512 + 2
    (tmp_path / "7/smaps").write_bytes(SMAPS)
    assert len(huge_pages_in(7, [], tmp_path)) == 2


def test_file_of_any_hugetlbfs_mount_is_of_huge_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(
        "40 20 0:37 / /dev/pages-of-2M rw shared:1 - hugetlbfs none rw,pagesize=2M\n"
        "41 20 0:38 / /mnt/tmp rw shared:2 - tmpfs none rw\n"
    )
    assert hugetlb_devices(tmp_path) == {b"00:25"}
    found = hugetlb_devices(tmp_path)
    monkeypatch.setattr("hmd.linux.mappings._devices_now", lambda _: found)
    text = (
        b"7f0000000000-7f0004000000 rw-s 00000000 00:25 7  /dev/pages-of-2M/file\n"
        b"7f0010000000-7f0014000000 rw-s 00000000 00:26 7  /mnt/tmp/file\n"
        b"7f0020000000-7f0020200000 rw-s 00000000 00:06 7  /dev/nvidia0\n"
    )
    kinds = parse_maps(text).kind.tolist()
    assert kinds == [MappingKind.HUGETLB, MappingKind.FILE, MappingKind.SPECIAL]


def test_second_view_of_a_heap_is_repeated() -> None:
    """Three views of one memfd, as of a garbage collector with coloured pointers."""
    views = b"".join(
        b"%x-%x rw-s 00000000 00:01 9  /memfd:java_heap (deleted)\n"
        % (at << 40, (at << 40) + (64 << 20))
        for at in (4, 8, 16)
    )
    other = b"200000000000-200004000000 rw-s 04000000 00:01 9  /memfd:java_heap (deleted)\n"
    assert repeated_views(parse_maps(views + other)).tolist() == [False, True, True, False]
