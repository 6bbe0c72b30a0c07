# SPDX-License-Identifier: MIT
"""Attribution of a sample's page-table root to its process."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from hmd.linux.procfs import ProcessId
from hmd.sample.attribution import (
    EARLY_TRIES,
    MAX_RETRY_S,
    READS_AFTER_LOSS,
    RECHECK_S,
    PageTableAttribution,
)
from hmd.sample.perf_ring import RecordColumns
from tests.fakes.sample_columns import columns_of

PAGE = 4096


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


# --- on real processes ---------------------------------------------------------------------


# --- on a written /proc, for what must be timed ------------------------------------------------


class Machine:
    """A /proc of processes with the page tables that a test gives them."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc

    def run(self, pid: int, start: int, pages: dict[int, int]) -> ProcessId:
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        fields = ["S", "1", *["0"] * 17, str(start), "0", "0"]
        (folder / "stat").write_text(f"{pid} (x) {' '.join(fields)}\n")
        with (folder / "pagemap").open("wb") as pagemap:
            for page, frame in pages.items():
                pagemap.seek(page * 8)
                pagemap.write(struct.pack("<Q", 1 << 63 | frame))
        return ProcessId(pid, start)

    def end(self, process: ProcessId) -> None:
        for name in ("stat", "pagemap"):
            (self.proc / str(process.pid) / name).unlink()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def at(root: int, pages: dict[int, int]) -> RecordColumns:
    return columns_of([(root, page * PAGE, frame * PAGE) for page, frame in pages.items()])


def test_root_is_of_the_process_with_most_matching_pages(machine: Machine) -> None:
    samples = {1: 11, 2: 12, 3: 13}
    a = machine.run(10, 1, {1: 11, 2: 99})
    b = machine.run(20, 1, {1: 11, 2: 12})
    spaces = PageTableAttribution(machine.proc, Clock())
    spaces.track([a, b])
    assert spaces.find_processes(at(7, samples)).tolist() == [1, 1, 1]


def test_root_is_kept_until_its_recheck(machine: Machine) -> None:
    clock = Clock()
    spaces = PageTableAttribution(machine.proc, clock)
    a = machine.run(10, 1, {1: 11})
    b = machine.run(20, 1, {2: 22})
    spaces.track([a, b])
    assert spaces.find_processes(at(7, {1: 11})).tolist() == [0]
    # Pages that moved since do not shake it.
    assert spaces.find_processes(at(7, {3: 33})).tolist() == [0]
    # After exec or exit the root can be that of another process: the next lookup finds its process.
    clock.now += RECHECK_S
    assert spaces.find_processes(at(7, {2: 22})).tolist() == [1]


def test_root_is_kept_when_all_pages_have_moved(machine: Machine) -> None:
    clock = Clock()
    spaces = PageTableAttribution(machine.proc, clock)
    spaces.track([machine.run(10, 1, {1: 11})])
    assert spaces.find_processes(at(7, {1: 11})).tolist() == [0]
    machine.run(10, 1, {1: 77})
    clock.now += RECHECK_S
    assert spaces.find_processes(at(7, {1: 11})).tolist() == [0]


def test_root_of_ending_process_is_kept(machine: Machine) -> None:
    """Its memory is freed before it exits; its earlier samples are read after that."""
    clock = Clock()
    spaces = PageTableAttribution(machine.proc, clock)
    spaces.track([machine.run(10, 1, {1: 11})])
    assert spaces.find_processes(at(7, {1: 11})).tolist() == [0]
    machine.run(10, 1, {})
    clock.now += RECHECK_S
    for _ in range(READS_AFTER_LOSS):
        assert spaces.find_processes(at(7, {1: 11})).tolist() == [0]
    # Later samples belong to the process that has the root now.
    assert spaces.find_processes(at(7, {1: 11})).tolist() == [-1]


def test_root_before_exec_is_of_the_parent(machine: Machine) -> None:
    spaces = PageTableAttribution(machine.proc, Clock())
    machine.run(os.getpid(), 1, {1: 11, 2: 22})
    spaces.track([machine.run(10, 1, {1: 11, 2: 22, 3: 33})])
    assert spaces.find_processes(at(7, {1: 11, 2: 22})).tolist() == [-1, -1]
    assert spaces.find_processes(at(8, {1: 11, 2: 22, 3: 33})).tolist() == [0, 0, 0]


def test_root_without_process_looked_up_at_growing_intervals(machine: Machine) -> None:
    clock = Clock()
    spaces = PageTableAttribution(machine.proc, clock)
    a = machine.run(10, 1, {})
    spaces.track([a])
    for _ in range(EARLY_TRIES):
        assert spaces.find_processes(at(7, {1: 11})).tolist() == [-1]
    machine.run(10, 1, {1: 11})
    # Not looked up again at once ...
    assert spaces.find_processes(at(7, {1: 11})).tolist() == [-1]
    # ... but in the end.
    clock.now += MAX_RETRY_S
    assert spaces.find_processes(at(7, {1: 11})).tolist() == [0]


def test_root_of_new_program_is_found_by_the_next_read(machine: Machine) -> None:
    """An exec moves the stack before the program begins: its first page is unmapped."""
    spaces = PageTableAttribution(machine.proc, Clock())
    spaces.track([machine.run(10, 1, {2: 22})])
    assert spaces.find_processes(at(7, {1: 11})).tolist() == [-1]
    assert spaces.find_processes(at(7, {2: 22})).tolist() == [0]


def test_root_of_new_process_is_looked_up_at_once(machine: Machine) -> None:
    spaces = PageTableAttribution(machine.proc, Clock())
    a = machine.run(10, 1, {})
    spaces.track([a])
    assert spaces.find_processes(at(7, {1: 11})).tolist() == [-1]
    b = machine.run(20, 1, {1: 11})
    spaces.track([b, a])
    assert spaces.find_processes(at(7, {1: 11})).tolist() == [0]


def test_root_survives_tracking_in_another_order(machine: Machine) -> None:
    spaces = PageTableAttribution(machine.proc, Clock())
    a = machine.run(10, 1, {1: 11})
    b = machine.run(20, 1, {2: 22})
    spaces.track([a, b])
    assert spaces.find_processes(at(7, {1: 11})).tolist() == [0]
    spaces.track([b, a])
    assert spaces.find_processes(at(7, {5: 55})).tolist() == [1]
    spaces.track([b])
    assert spaces.find_processes(at(7, {1: 11})).tolist() == [-1]


def test_root_reused_after_exit_is_of_the_new_process(machine: Machine) -> None:
    spaces = PageTableAttribution(machine.proc, Clock())
    a = machine.run(10, 1, {1: 11})
    spaces.track([a])
    assert spaces.find_processes(at(7, {1: 11})).tolist() == [0]
    machine.end(a)
    b = machine.run(20, 5, {1: 44})
    spaces.track([a, b])
    assert spaces.find_processes(at(7, {1: 44})).tolist() == [1]


def test_root_with_hidden_page_frames_is_unknown(machine: Machine) -> None:
    """Without CAP_SYS_ADMIN every frame reads as 0."""
    spaces = PageTableAttribution(machine.proc, Clock())
    a = machine.run(10, 1, {1: 0})
    spaces.track([a])
    assert spaces.find_processes(at(7, {1: 0})).tolist() == [-1]


def test_root_lookup_without_samples_is_empty(machine: Machine) -> None:
    spaces = PageTableAttribution(machine.proc, Clock())
    assert spaces.find_processes(columns_of([])).tolist() == []
    assert spaces.find_processes(at(7, {1: 11})).tolist() == [-1]


@pytest.mark.parametrize("address", [2**63 - PAGE, 1 << 56])
def test_root_lookup_of_impossible_addresses_is_unknown(machine: Machine, address: int) -> None:
    spaces = PageTableAttribution(machine.proc, Clock())
    a = machine.run(10, 1, {1: 11})
    spaces.track([a])
    assert spaces.find_processes(columns_of([(7, address, 11 * PAGE)])).tolist() == [-1]


def test_root_table_is_bounded(machine: Machine) -> None:
    spaces = PageTableAttribution(machine.proc, Clock())
    a = machine.run(10, 1, {1: 11})
    spaces.track([a])
    spaces.find_processes(at(1, {1: 11}))
    for first in range(2, 6000, 1000):
        roots = [(root, 2 * PAGE, 22 * PAGE) for root in range(first, first + 1000)]
        spaces.find_processes(columns_of(roots))
    assert len(spaces._roots) <= 4096 + 1000 + 1
    assert spaces.find_processes(at(1, {3: 33})).tolist() == [0]
