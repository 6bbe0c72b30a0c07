# SPDX-License-Identifier: MIT
from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hmd.linux.mappings import parse_maps
from hmd.linux.procfs import ProcessId
from hmd.migrate import MoveStatus
from hmd.migrate.process_plans import SLICE_BYTES, ProcessPlans

PAGE, BLOCK = 4096, 2 << 20
BASE = 0x7F0000000000

MAPS = f"""\
{BASE:x}-{BASE + 4 * BLOCK:x} rw-p 00000000 00:00 0
{BASE + 8 * BLOCK:x}-{BASE + 8 * BLOCK + 16 * PAGE:x} r-xp 00000000 08:01 77 /usr/lib/libc.so.6
{BASE + 9 * BLOCK:x}-{BASE + 9 * BLOCK + 8 * PAGE:x} rw-p 00000000 00:00 0 [heap]
{BASE + 64 * BLOCK:x}-{BASE + 64 * BLOCK + 4 * SLICE_BYTES:x} rw-p 00000000 00:00 0
""".encode()

NUMA_MAPS = f"""\
{BASE:x} default anon=2048 dirty=2048 N0=1024 N1=1024 kernelpagesize_kB=4
{BASE + 8 * BLOCK:x} default file=/usr/lib/libc.so.6 mapped=16 N0=16 kernelpagesize_kB=4
{BASE + 9 * BLOCK:x} default heap anon=8 dirty=8 N1=8 kernelpagesize_kB=4
{BASE + 64 * BLOCK:x} default
"""

SMAPS = f"""\
{BASE:x}-{BASE + 4 * BLOCK:x} rw-p 00000000 00:00 0
AnonHugePages:      8192 kB
THPeligible:    1
VmFlags: rd wr mr mw me ac sd
"""

PROCESS = ProcessId(7, 1)

Addresses = npt.NDArray[np.uint64]
Nodes = npt.NDArray[np.int16]


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "numa_maps").write_text(NUMA_MAPS)
    return tmp_path


def residency(pid: int, addresses: Addresses) -> Nodes:
    """Even blocks are on node 0, odd ones on node 1; every tenth page is absent."""
    assert pid == 7
    page = addresses // np.uint64(PAGE)
    node = (addresses // np.uint64(BLOCK) % np.uint64(2)).astype(np.int16)
    node[page % np.uint64(10) == 0] = -errno.ENOENT
    return node


def survey(proc: Path, **how: Any) -> ProcessPlans:
    query = how.pop("query", residency)
    return ProcessPlans(PROCESS, parse_maps(MAPS), how.pop("to", 0), proc=proc, query=query, **how)


def test_process_plans_spans_only_movable_mappings(proc: Path) -> None:
    assert survey(proc).spans == [
        (BASE, BASE + 4 * BLOCK),
        (BASE + 9 * BLOCK, BASE + 9 * BLOCK + 8 * PAGE),
    ]


def test_process_plans_without_numa_maps_span_all_mappings(proc: Path) -> None:
    (proc / "7/numa_maps").unlink()
    assert survey(proc).spans[-1] == (BASE + 64 * BLOCK, BASE + 64 * BLOCK + 4 * SLICE_BYTES)


def test_process_plans_slices_bounded_and_disjoint(proc: Path) -> None:
    (proc / "7/numa_maps").unlink()

    def present(pid: int, addresses: Addresses) -> Nodes:
        return np.ones(len(addresses), np.int16)

    whole = survey(proc, query=present)
    found = list(whole.slices())
    assert len(found) == 5  # the two small mappings make one slice
    assert all(s.span_bytes <= SLICE_BYTES for s in found)
    assert sum(s.span_bytes for s in found) == whole.span_bytes
    address = np.concatenate([s.plan.address for s in found])
    assert (np.diff(address.astype(np.int64)) > 0).all()
    assert len(address) * PAGE == whole.span_bytes


def test_process_plans_rows_of_pages_on_other_nodes(proc: Path) -> None:
    found = next(iter(survey(proc).slices()))
    expected = [
        a
        for a in range(BASE, BASE + 4 * BLOCK, PAGE)
        if a // BLOCK % 2 == 1 and a // PAGE % 10 != 0
    ]
    in_heap = found.plan.address >= BASE + 4 * BLOCK
    assert found.plan.address[~in_heap].tolist() == expected
    assert in_heap.sum() == 7
    assert set(found.plan.to_node.tolist()) == {0}
    assert set(found.plan.from_node.tolist()) == {1}
    assert set(found.plan.pages.tolist()) == {1}
    assert found.plan.processes == (PROCESS,)
    assert 0.85 < found.resident_pages / 2056 < 0.95


def test_process_plans_from_node_selects_rows(proc: Path) -> None:
    rows = [len(s.plan) for s in survey(proc, to=2, from_node=1).slices()]
    assert 0 < sum(rows) < sum(len(s.plan) for s in survey(proc, to=2).slices())


def test_process_plans_ranges_page_aligned_and_merged(proc: Path) -> None:
    spans = survey(
        proc,
        ranges=[(BASE + PAGE + 5, BASE + 2 * PAGE + 5), (BASE + 2 * PAGE, BASE + 4 * PAGE), (0, 9)],
    ).spans
    assert spans == [(BASE + PAGE, BASE + 4 * PAGE)]


def test_process_plans_huge_page_one_whole_row(proc: Path) -> None:
    (proc / "7/smaps").write_text(SMAPS)

    def all_on_one(pid: int, addresses: Addresses) -> Nodes:
        return np.ones(len(addresses), np.int16)

    whole = next(iter(survey(proc, query=all_on_one).slices())).plan
    assert whole.address[:4].tolist() == [BASE + i * BLOCK for i in range(4)]
    assert whole.pages.tolist() == [512] * 4 + [1] * 8
    cut = survey(proc, query=all_on_one, ranges=[(BASE + PAGE, BASE + 2 * BLOCK)])
    assert [s.plan.address.tolist() for s in cut.slices()] == [[BASE + BLOCK]]


@pytest.mark.parametrize(
    ("number", "refusal"), [(errno.EPERM, MoveStatus.PERMISSION), (errno.ESRCH, MoveStatus.GONE)]
)
def test_process_plans_query_refused_reason_reported(
    proc: Path, number: int, refusal: MoveStatus
) -> None:
    def refuse(pid: int, addresses: Addresses) -> Nodes:
        return np.full(len(addresses), -number, np.int16)

    found = next(iter(survey(proc, query=refuse).slices()))
    assert found.refusal is refusal
    assert len(found.plan) == found.resident_pages == 0
    assert next(iter(survey(proc).slices())).refusal is None


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS])
def test_process_plans_of_refused_query_are_not_empty_but_refused(proc: Path, number: int) -> None:
    def refused(pid: int, addresses: Addresses) -> Nodes:
        return np.full(len(addresses), -number, np.int16)

    assert next(iter(survey(proc, query=refused).slices())).refusal is MoveStatus.PERMISSION
