# SPDX-License-Identifier: MIT
"""The residency sweep, over synthetic address spaces and this process."""

from __future__ import annotations

import errno
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_BYTES, CHUNK_PAGES
from hmd.heat.table import HeatTable
from hmd.linux.mappings import Mappings, parse_maps
from hmd.linux.procfs import ProcessId
from hmd.linux.targets import SafeRegex
from hmd.residency.address_spaces import accessible_part, subtract_runs, summarise_space
from hmd.residency.memory_reader import Addresses, ModelledMemory, Pieces
from hmd.residency.sweep import MAX_WAIT_S, ResidencySweep, SweepSettings
from tests.unit.heat.swept_tick import tick

PROCESS = ProcessId(10, 1)
Line = tuple[int, int, str, str]


class Spaces:
    """Address spaces in dictionaries; ``queried`` counts pages by pid."""

    def __init__(self) -> None:
        self.lines: dict[int, list[Line]] = {}
        self.node: dict[int, int] = {}
        self.huge: set[int] = set()
        self.queried = 0
        self.reads = 0

    def map(self, start: int, pages: int, access: str = "rw-p", path: str = "") -> None:
        self.lines.setdefault(PROCESS.pid, []).append(
            (start, start + pages * PAGE_BYTES, access, path)
        )
        self.lines[PROCESS.pid].sort()

    def fill(self, start: int, pages: int, node: int = 1) -> None:
        for page in range(pages):
            self.node[start + page * PAGE_BYTES] = node

    def mappings(self, pid: int) -> Mappings | None:
        self.reads += 1
        if pid not in self.lines:
            return None
        text = "".join(f"{a:x}-{b:x} {p} 0 0:0 0  {path}\n" for a, b, p, path in self.lines[pid])
        return parse_maps(text.encode())

    def huge_pages(self, pid: int, mappings: Mappings) -> npt.NDArray[np.uint64]:
        del pid, mappings
        return np.array(sorted(self.huge), np.uint64)

    def nodes(self, pid: int, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.int16]:
        self.queried += len(addresses)
        if pid not in self.lines:
            return np.full(len(addresses), -errno.ESRCH, np.int16)
        return np.array([self.node.get(a, -2) for a in addresses.tolist()], np.int16)


def setting(pages: int = 1 << 20) -> tuple[HeatTable, Spaces, ResidencySweep]:
    table, spaces = HeatTable(), Spaces()
    table.track_processes([PROCESS])
    settings = SweepSettings(pages_per_step=pages, max_sweep_ticks=8)
    return table, spaces, ResidencySweep(settings, ModelledMemory(spaces), clock=lambda: 0.0)


def pages_on(table: HeatTable, node: int) -> int:
    return int(table.resident_pages(4)[0][0, node])


def test_sweep_unsampled_pages_found() -> None:
    table, spaces, sweep = setting()
    spaces.map(CHUNK_BYTES, 700)
    spaces.fill(CHUNK_BYTES + 10 * PAGE_BYTES, 600, node=1)
    tick(table, sweep)
    assert pages_on(table, 1) == 600
    assert table.chunks.used == 2


def test_sweep_shared_code_and_kernel_pages_not_movable() -> None:
    table, spaces, sweep = setting()
    spaces.map(0, 8, "r-xp", "/usr/lib/libc.so.6")
    spaces.map(8 * PAGE_BYTES, 8)
    spaces.map(64 * CHUNK_BYTES, 2, "r-xp", "[vdso]")
    spaces.fill(0, 16, node=0)
    spaces.fill(64 * CHUNK_BYTES, 2, node=0)
    tick(table, sweep)
    movable, fixed = table.resident_pages(1)
    assert movable.tolist() == [[8]]
    assert fixed.tolist() == [[8]]


def test_sweep_step_bounded_next_step_continues() -> None:
    table, spaces, sweep = setting(pages=4 * CHUNK_PAGES)
    spaces.map(0, 10 * CHUNK_PAGES)
    spaces.fill(0, 10 * CHUNK_PAGES)
    seen = []
    for _ in range(3):
        assert tick(table, sweep) <= 4 * CHUNK_PAGES
        seen.append(pages_on(table, 1))
    assert seen == [2048, 4096, 5120]


def test_sweep_step_ends_when_time_spent() -> None:
    table, spaces = HeatTable(), Spaces()
    table.track_processes([PROCESS])
    now = iter(range(1000))
    sweep = ResidencySweep(
        SweepSettings(step_s=1.5), ModelledMemory(spaces), clock=lambda: next(now)
    )
    spaces.map(0, 64 * CHUNK_PAGES)
    assert 0 < tick(table, sweep) < 64 * CHUNK_PAGES


def test_sweep_step_that_took_too_long_is_made_up_for() -> None:
    table, spaces = HeatTable(), Spaces()
    table.track_processes([PROCESS])
    spaces.map(0, 64 * CHUNK_PAGES)
    now_s = 0.0

    class SlowMemory(ModelledMemory):
        def nodes(self, process: ProcessId, addresses: Addresses) -> npt.NDArray[np.int16]:
            nonlocal now_s
            now_s += 10.0
            # Pages keep changing their nodes: no step is calm.
            return np.full(len(addresses), now_s // 10 % 2, np.int16)

    sweep = ResidencySweep(SweepSettings(step_s=4.0), SlowMemory(spaces), clock=lambda: now_s)
    asked = [tick(table, sweep) > 0 for _ in range(10)]
    assert asked == [True, False, True, False, False] * 2


def test_sweep_steps_after_calm_ones_take_a_quarter_of_the_time_until_pages_change() -> None:
    table, spaces = HeatTable(), Spaces()
    table.track_processes([PROCESS])
    spaces.map(0, 256 * CHUNK_PAGES)
    node, now_s = np.ones(256 * CHUNK_PAGES, np.int16), 0.0

    class TimedMemory(ModelledMemory):
        def nodes(self, process: ProcessId, addresses: Addresses) -> npt.NDArray[np.int16]:
            nonlocal now_s
            now_s += 1.0
            return node[addresses // np.uint64(PAGE_BYTES)]

    settings = SweepSettings(step_s=4.0, max_sweep_ticks=1)
    sweep = ResidencySweep(settings, TimedMemory(spaces), clock=lambda: now_s)

    def seconds_of_steps(count: int) -> list[float]:
        begun_s = [now_s]
        for _ in range(count):
            tick(table, sweep)
            begun_s.append(now_s)
        return np.diff(begun_s).tolist()

    # A query asks for the pages of 16 chunks: after the first sweep no page has changed.
    assert seconds_of_steps(8) == [4.0, 4.0, 4.0, 4.0, 4.0, 2.0, 1.0, 1.0]
    assert seconds_of_steps(13) == [1.0] * 13  # the rest of that sweep, in turn
    node[::16] = 0
    assert seconds_of_steps(3) == [1.0, 4.0, 4.0]
    seconds_of_steps(16)
    assert pages_on(table, 0) == len(node) // 16


def test_sweep_mappings_read_over_several_steps() -> None:
    table, spaces = HeatTable(), Spaces()
    table.track_processes([PROCESS])
    spaces.map(0, 4 * CHUNK_PAGES)
    spaces.fill(3 * CHUNK_BYTES, 8)
    now_s, pieces = 0.0, 0

    class PiecewiseMemory(ModelledMemory):
        def pieces(self, process: ProcessId) -> Pieces:
            nonlocal now_s, pieces
            [whole] = list(super().pieces(process))
            for start in range(0, 4 * CHUNK_BYTES, PAGE_BYTES):
                now_s, pieces = now_s + 1.0, pieces + 1
                yield replace(
                    whole,
                    start=np.array([start], np.uint64),
                    end=np.array([start + PAGE_BYTES], np.uint64),
                )

    sweep = ResidencySweep(SweepSettings(step_s=8.0), PiecewiseMemory(spaces), clock=lambda: now_s)
    for step in range(1, 5):
        assert tick(table, sweep) == 0
        assert 6 * step - 2 <= pieces <= 8 * step
    for _ in range(400):
        tick(table, sweep)
    assert pages_on(table, 1) == 8


def test_sweep_many_processes_cost_grows_in_proportion() -> None:
    hashed = 0

    class CountedId(ProcessId):
        __slots__ = ()

        def __hash__(self) -> int:
            nonlocal hashed
            hashed += 1
            return hash((self.pid, self.start_ticks))

    table, spaces, sweep = setting()
    processes = [CountedId(pid, 1) for pid in range(1, 301)]
    for process in processes:
        spaces.lines[process.pid] = [(0, CHUNK_BYTES, "rw-p", "")]
    table.track_processes(processes)
    tick(table, sweep)
    hashed = 0
    tick(table, sweep)
    assert 0 < hashed <= 10 * len(processes)


def test_sweep_new_mappings_first() -> None:
    table, spaces, sweep = setting(pages=CHUNK_PAGES)
    spaces.map(0, 100 * CHUNK_PAGES)
    spaces.fill(0, 100 * CHUNK_PAGES)
    tick(table, sweep)
    spaces.map(1000 * CHUNK_BYTES, CHUNK_PAGES)
    spaces.fill(1000 * CHUNK_BYTES, CHUNK_PAGES, node=2)
    for _ in range(5):
        tick(table, sweep)
    assert pages_on(table, 2) == CHUNK_PAGES


def test_sweep_unmapped_chunks_dropped() -> None:
    table, spaces, sweep = setting()
    spaces.map(0, CHUNK_PAGES)
    spaces.map(8 * CHUNK_BYTES, CHUNK_PAGES)
    spaces.fill(0, CHUNK_PAGES)
    spaces.fill(8 * CHUNK_BYTES, CHUNK_PAGES)
    tick(table, sweep)
    assert table.chunks.used == 2
    del spaces.lines[PROCESS.pid][1]
    for _ in range(4):
        tick(table, sweep)
    assert table.chunks.columns.address[: table.chunks.used].tolist() == [0]


def test_sweep_unchanged_process_rarely_new_sample_at_once() -> None:
    table, spaces, sweep = setting()
    spaces.map(0, 4 * CHUNK_PAGES)
    spaces.fill(0, 2 * CHUNK_PAGES)
    for _ in range(20):
        tick(table, sweep)
    spaces.queried = 0
    for _ in range(16):
        tick(table, sweep)
    assert spaces.queried <= 2 * 4 * CHUNK_PAGES
    spaces.fill(3 * CHUNK_BYTES, 1, node=2)
    tick(table, sweep, 3 * CHUNK_BYTES)
    assert pages_on(table, 2) == 1


def test_sweep_sample_outside_mappings_rereads_them() -> None:
    table, spaces, sweep = setting()
    spaces.map(0, 4, path="[heap]")
    spaces.fill(0, 4)
    tick(table, sweep)
    spaces.lines[PROCESS.pid] = [(0, 8 * PAGE_BYTES, "rw-p", "[heap]")]
    spaces.fill(0, 8)
    tick(table, sweep, 6 * PAGE_BYTES)
    assert table.resident_pages(2)[0][0, 1] == 8


def test_sweep_huge_page_queried_by_one_address() -> None:
    table, spaces, sweep = setting()
    spaces.map(0, 4 * CHUNK_PAGES)
    spaces.fill(0, CHUNK_PAGES)
    spaces.node[CHUNK_BYTES] = 2
    spaces.huge = {CHUNK_BYTES}
    assert tick(table, sweep) == 3 * CHUNK_PAGES + 1
    assert pages_on(table, 2) == CHUNK_PAGES
    columns, used = table.chunks.columns, table.chunks.used
    assert columns.address[:used][columns.huge[:used]].tolist() == [CHUNK_BYTES]


def test_sweep_exited_process_not_queried() -> None:
    table, spaces, sweep = setting()
    spaces.map(0, CHUNK_PAGES)
    spaces.fill(0, CHUNK_PAGES)
    tick(table, sweep)
    del spaces.lines[PROCESS.pid]
    for _ in range(40):
        tick(table, sweep)
    spaces.queried = 0
    tick(table, sweep)
    assert spaces.queried == 0
    table.track_processes([])
    assert tick(table, sweep) == 0


runs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=6)


def apart(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    taken = sorted({n for first, more in pairs for n in range(first, first + more + 1)})
    out: list[tuple[int, int]] = []
    for n in taken:
        if out and out[-1][1] == n - 1:
            out[-1] = (out[-1][0], n)
        else:
            out.append((n, n))
    return out


@given(runs, runs)
def test_run_difference_of_any_runs_equals_set_difference(
    new: list[tuple[int, int]], known: list[tuple[int, int]]
) -> None:
    def members(pairs: list[tuple[int, int]]) -> set[int]:
        return {n for first, last in pairs for n in range(first, last + 1)}

    left = subtract_runs(apart(new), apart(known))
    assert members(left) == members(apart(new)) - members(apart(known))
    assert left == sorted(left)


def test_chunk_runs_of_mappings_without_pages_left_out() -> None:
    text = b"".join(
        b"%x-%x %s 0 0:0 0 %s\n" % (a * CHUNK_BYTES, b * CHUNK_BYTES, access, path)
        for a, b, access, path in [
            (0, 2, b"rw-p", b""),
            (2, 3, b"rw-p", b""),
            (5, 9, b"---p", b""),
            (10, 12, b"r--p", b"[vvar]"),
            (20, 21, b"r--p", b"/usr/lib/x"),
        ]
    )
    assert summarise_space([accessible_part(parse_maps(text))]).runs == [(0, 2), (20, 20)]


def test_sweep_pages_of_kept_mappings_not_movable() -> None:
    table, spaces, sweep = setting()
    spaces.map(CHUNK_BYTES, 4, path="[heap]")
    spaces.map(2 * CHUNK_BYTES, 4, path="/dev/shm/table")
    for start in (CHUNK_BYTES, 2 * CHUNK_BYTES):
        spaces.fill(start, 4)
    sweep.set_keep_patterns({PROCESS: (SafeRegex("/lib/"), SafeRegex(r"(?i)\[HEAP\]"))})
    tick(table, sweep)
    assert kept_pages(table) == ([4], [4])
    # When a pattern is removed, its pages are movable again after the next step.
    sweep.set_keep_patterns({})
    tick(table, sweep)
    assert kept_pages(table) == ([8], [0])
    sweep.set_keep_patterns({PROCESS: (SafeRegex(""),)})
    tick(table, sweep)
    assert kept_pages(table) == ([0], [8])


def kept_pages(table: HeatTable) -> tuple[list[int], list[int]]:
    """Pages on node 1 that may move, and that must stay, by process."""
    movable, fixed = table.resident_pages(2)
    return movable[:, 1].tolist(), fixed[:, 1].tolist()


def test_sweep_that_waits_for_locks_ends_its_step() -> None:
    """Programs that map all the time hold their locks: waiting for many of them stops a tick."""
    waited_s = 0.0

    class Busy(Spaces):
        def nodes(self, pid: int, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.int16]:
            nonlocal waited_s
            waited_s += 0.1
            return super().nodes(pid, addresses)

    table, spaces = HeatTable(), Busy()
    table.track_processes([PROCESS])
    memory = ModelledMemory(spaces)
    settings = SweepSettings(pages_per_step=1 << 20, max_sweep_ticks=1)
    sweep = ResidencySweep(settings, memory, clock=lambda: 0.0, wall=lambda: waited_s)
    spaces.map(CHUNK_BYTES, 512 * 512)
    for _ in range(3):
        before_s = waited_s
        tick(table, sweep)
        assert waited_s - before_s < MAX_WAIT_S + 0.2
    assert sweep.unswept == {PROCESS}
