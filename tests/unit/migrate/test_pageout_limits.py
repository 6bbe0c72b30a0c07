# SPDX-License-Identifier: MIT
"""What keeps pages from going out, and what brings them back ahead of use."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pytest

from hmd.base.units import PAGE_BYTES
from hmd.linux.procfs import ProcessId
from hmd.linux.swap import STALL_S
from hmd.migrate import pageout as pageout_module
from hmd.migrate.pageout import HOLD_S, STOPPED, FarLimits, Pageout, PageoutSettings
from hmd.policy.plan import Plan
from hmd.policy.planning import OUT

PROCESS = ProcessId(4242, 1)
PAGES = 1024
MUCH = 1 << 40
BASE = 1 << 32


@dataclass
class Memory:
    """A process's pages: which are present, and what was read ahead."""

    present: npt.NDArray[np.bool_] = field(default_factory=lambda: np.ones(PAGES, np.bool_))
    read: list[int] = field(default_factory=list)
    pressure: float | None = None
    failure: str = ""
    hangs: threading.Event | None = None

    def pageout(self, wait_s: float = float("inf")) -> Pageout:
        return Pageout(
            PageoutSettings(wait_s=wait_s),
            page_out=self.page_out,
            query_nodes=self.query,
            page_in=self.page_in,
            failure=lambda now_s: self.failure,
            pressure=lambda pid: self.pressure,
        )

    def index(self, start: npt.NDArray[np.uint64], size: npt.NDArray[np.uint64]) -> list[int]:
        first, count = (start - np.uint64(BASE)) // PAGE_BYTES, size // PAGE_BYTES
        return [page for f, n in zip(first, count, strict=True) for page in range(f, f + n)]

    def page_out(
        self, process: ProcessId, start: npt.NDArray[np.uint64], size: npt.NDArray[np.uint64]
    ) -> int:
        if self.hangs is not None:
            self.hangs.wait()
        self.present[self.index(start, size)] = False
        return int(size.sum())

    def page_in(
        self, process: ProcessId, start: npt.NDArray[np.uint64], size: npt.NDArray[np.uint64]
    ) -> int:
        self.read += self.index(start, size)
        return int(size.sum())

    def query(self, pid: int, address: npt.NDArray[np.uint64]) -> npt.NDArray[np.int16]:
        page = (address - np.uint64(BASE)) // PAGE_BYTES
        return np.where(self.present[page.astype(np.intp)], 0, -2).astype(np.int16)


@pytest.fixture
def memory() -> Memory:
    return Memory()


def all_pages() -> Plan:
    address = np.uint64(BASE) + np.arange(PAGES, dtype=np.uint64) * np.uint64(PAGE_BYTES)
    return Plan(
        (PROCESS,),
        np.zeros(PAGES, np.int32),
        address,
        np.ones(PAGES, np.uint32),
        np.zeros(PAGES, np.int16),
        np.full(PAGES, OUT, np.int16),
        np.zeros(PAGES, np.float32),
        np.zeros(PAGES, np.int32),
    )


def limits(pressure: float = 0.01, ahead_pages: int = PAGES) -> FarLimits:
    ahead_bytes = np.array([ahead_pages * PAGE_BYTES])
    return FarLimits(np.array([1.0]), np.array([pressure]), ahead_bytes)


def test_pages_of_a_group_that_waits_for_memory_stay_for_a_while(memory: Memory) -> None:
    pageout, memory.pressure = memory.pageout(), 0.02
    assert pageout.apply(all_pages(), MUCH, 0.0, limits()).out_bytes == 0
    assert memory.present.all()
    assert pageout.held((PROCESS,), HOLD_S / 2).tolist() == [True]
    assert pageout.held((PROCESS,), HOLD_S).tolist() == [False]
    assert pageout.apply(all_pages(), MUCH, HOLD_S, limits(0.03)).out_bytes == PAGES * PAGE_BYTES


@pytest.mark.parametrize(("pressure", "limit"), [(None, 0.01), (0.9, 1.0), (0.009, 0.01)])
def test_pages_go_where_pressure_is_below_the_limit_or_not_known(
    memory: Memory, pressure: float | None, limit: float
) -> None:
    memory.pressure = pressure
    assert memory.pageout().apply(all_pages(), MUCH, 0.0, limits(limit)).out_bytes


def test_swap_that_fails_stops_page_out_with_its_reason(memory: Memory) -> None:
    pageout, memory.failure = memory.pageout(), "swap on /dev/nbd0 fails: the device is gone"
    assert not pageout.works(0.0)
    assert pageout.stopped == memory.failure
    memory.failure = ""
    assert pageout.works(1.0)
    assert not pageout.stopped


def test_call_that_does_not_return_is_left_alone(memory: Memory) -> None:
    memory.hangs = threading.Event()
    pageout = memory.pageout(wait_s=0.05)
    sent = pageout.apply(all_pages(), MUCH, 0.0, limits())
    assert sent.out_bytes == 0
    assert not sent.tried.any()
    # A slow device is no failure.
    assert (pageout.works(1.0), pageout.stopped) == (False, "")
    assert (pageout.works(1.0 + STALL_S), pageout.stopped) == (False, STOPPED)
    memory.hangs.set()
    for _ in range(1000):
        if pageout.works(9.0):
            break
        threading.Event().wait(0.01)
    assert pageout.works(9.0)
    assert not pageout.stopped
    assert pageout.out_bytes == PAGES * PAGE_BYTES


def test_error_in_the_thread_of_calls_is_raised_and_its_time_counted(memory: Memory) -> None:
    pageout = memory.pageout(wait_s=10.0)
    pageout.apply(all_pages(), MUCH, 0.0, limits())
    assert pageout.cpu_s > 0
    pageout = memory.pageout(wait_s=10.0)
    memory.present = memory.present[:1]
    with pytest.raises(IndexError):
        pageout.apply(all_pages(), MUCH, 0.0, limits())
    assert pageout.works(1.0)


def test_pages_after_a_run_of_returns_are_read_ahead(memory: Memory) -> None:
    pageout = memory.pageout()
    pageout.apply(all_pages(), MUCH, 0.0, limits())
    pageout.bring_back(limits(), (PROCESS,))
    assert memory.read == []
    memory.present[:100] = True
    pageout.bring_back(limits(), (PROCESS,))
    assert memory.read == list(range(100, 300))
    memory.present[100:200] = True
    pageout.bring_back(limits(ahead_pages=150), (PROCESS,))
    assert memory.read[200:] == list(range(300, 400))
    assert pageout.ahead_bytes == 300 * PAGE_BYTES
    assert pageout.out_bytes == (PAGES - 200) * PAGE_BYTES


def test_run_towards_lower_addresses_is_read_ahead_downwards(memory: Memory) -> None:
    pageout = memory.pageout()
    pageout.apply(all_pages(), MUCH, 0.0, limits())
    memory.present[900:] = True
    pageout.bring_back(limits(), (PROCESS,))
    assert memory.read == list(range(652, 900))


def test_scattered_returns_and_a_limit_of_nothing_read_nothing(memory: Memory) -> None:
    pageout = memory.pageout()
    pageout.apply(all_pages(), MUCH, 0.0, limits())
    memory.present[::7] = True
    pageout.bring_back(limits(), (PROCESS,))
    memory.present[500:600] = True
    pageout.bring_back(limits(ahead_pages=0), (PROCESS,))
    assert memory.read == []


def test_reading_ahead_pauses_while_what_it_reads_is_not_used(memory: Memory) -> None:
    pageout = memory.pageout()
    pageout.apply(all_pages(), MUCH, 0.0, limits())
    memory.present[:300] = True
    pageout.bring_back(limits(), (PROCESS,))
    assert len(memory.read) == 600
    for _ in range(12):
        pageout.bring_back(limits(), (PROCESS,))
    memory.present[1000:1010] = True
    pageout.bring_back(limits(), (PROCESS,))
    assert len(memory.read) == 600


def test_rows_of_all_processes_that_are_out_share_one_bound(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pageout_module, "_MAX_ROWS", PAGES + 10)
    pageout = memory.pageout()
    other = ProcessId(PROCESS.pid + 1, 1)
    for process in (PROCESS, other):
        memory.present[:] = True
        sent = pageout.apply(replace(all_pages(), processes=(process,)), MUCH, 0.0, limits())
        assert sent.out_bytes == PAGES * PAGE_BYTES
    assert pageout.out_bytes == (PAGES + 10) * PAGE_BYTES
    assert pageout.held((PROCESS,), 1.0).tolist() == [False]
    assert pageout.out_bytes == PAGES * PAGE_BYTES


def test_many_processes_are_looked_at_in_turn(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pageout_module, "_LOOKED_AT", 2 * pageout_module._LOOKED_LEAST)
    processes = tuple(ProcessId(pid, 1) for pid in range(100, 105))
    looked: list[int] = []

    def query(pid: int, address: npt.NDArray[np.uint64]) -> npt.NDArray[np.int16]:
        looked.append(pid)
        return np.full(len(address), -1, np.int16)

    pageout = Pageout(page_out=lambda *_: 0, query_nodes=query)
    for process in processes:
        pageout.apply(replace(all_pages(), processes=(process,)), MUCH, 0.0)
    looked.clear()
    for _ in range(5):
        pageout.bring_back(FarLimits.alike(len(processes), 1.0), processes)
    assert len(looked) == 10
    assert sorted(looked) == sorted([process.pid for process in processes] * 2)


def test_processes_that_are_gone_are_forgotten(memory: Memory) -> None:
    pageout = memory.pageout()
    pageout.apply(all_pages(), MUCH, 0.0, limits())
    assert pageout.out_bytes
    assert pageout.held((), 1.0).tolist() == []
    assert pageout.out_bytes == 0
