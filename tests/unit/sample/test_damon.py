"""The sampler over a kdamond: whom it monitors, when it starts anew, what it leaves."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hmd.errors import MissingError
from hmd.machine.damon import DamonError, Kdamonds
from hmd.machine.kdamond import Kdamond
from hmd.machine.process import ProcessId, identify
from hmd.sample.damon import LADDER, TARGETS, DamonSampler, open_damon
from hmd.sample.damon_watch import Watch, monitoring

pytestmark = pytest.mark.root


@pytest.fixture
def kdamonds(damon_kernel: Any) -> Kdamonds:
    return Kdamonds(damon_kernel.sysfs, damon_kernel.write, busy_s=0.5)


@pytest.fixture
def watch(kdamonds: Kdamonds) -> Watch:
    kdamonds.set_count(1)
    seconds = itertools.count()
    return Watch(Kdamond(kdamonds), Path("/proc"), lambda: next(seconds))


@pytest.fixture
def sampler(kdamonds: Kdamonds, tmp_path: Path) -> Iterator[DamonSampler]:
    sampler = open_damon(LADDER[0], note=tmp_path / "note", kdamonds=kdamonds)
    yield sampler
    sampler.close()


def this_process() -> ProcessId:
    process = identify(threading.get_native_id())
    assert process is not None
    return process


def until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("period", LADDER)
def test_counts_rest_on_enough_looks_and_are_of_late(period: int) -> None:
    settings = monitoring(period)
    assert 5 <= settings.most_accesses <= 20
    assert settings.aggregation_us <= max(2_000_000, 5 * settings.sample_us)
    assert settings.update_us >= settings.aggregation_us


def test_it_starts_anew_for_whom_it_does_not_monitor(
    watch: Watch, damon_kernel: Any, toucher: Any
) -> None:
    ours, its = this_process(), toucher.process
    watch.look([ours], 20)
    assert damon_kernel.targets() == [ours.pid]
    watch.look([ours, its], 20)
    assert damon_kernel.targets() == [ours.pid, its.pid]
    watch.look([its], 20)
    assert damon_kernel.targets() == [its.pid]
    watch.look([], 20)
    assert not damon_kernel.on()


def test_a_target_that_ended_stays_until_another_comes(
    watch: Watch, damon_kernel: Any, toucher: Any
) -> None:
    ours, its = this_process(), toucher.process
    watch.look([its, ours], 20)
    toucher.end()
    damon_kernel.accesses[ours.pid] = [(0, 1 << 47, 20)]
    seen = watch.look([ours], 20)
    assert damon_kernel.targets() == [its.pid, ours.pid]
    assert seen is not None
    assert [process for process, _, _ in seen.rows] == [ours]
    assert len(seen.rows[0][1]) > 0


def test_it_ends_with_its_last_target(watch: Watch, damon_kernel: Any, toucher: Any) -> None:
    watch.look([toucher.process], 20)
    toucher.end()
    assert watch.look([toucher.process], 20) is None
    assert not damon_kernel.on()


def test_one_that_was_switched_off_is_started_again(watch: Watch, damon_kernel: Any) -> None:
    watch.look([this_process()], 20)
    (damon_kernel.path / "0/state").write_text("off\n")
    watch.look([this_process()], 20)
    assert damon_kernel.on()


def test_a_new_period_starts_it_anew(watch: Watch, damon_kernel: Any) -> None:
    sample_us = damon_kernel.path / "0/contexts/0/monitoring_attrs/intervals/sample_us"
    for period in (20, 80):
        watch.look([this_process()], period)
        assert sample_us.read_text() == f"{period * 1000}\n"


def test_rows_are_of_pages_that_are_there(watch: Watch, damon_kernel: Any, toucher: Any) -> None:
    pages = toucher.touch(32)
    watch.look([toucher.process], 20)
    damon_kernel.accesses[toucher.process.pid] = [(pages.start - (1 << 30), pages.stop, 1)]
    seen = watch.look([toucher.process], 20)
    assert seen is not None
    ((_, address, told),) = seen.rows
    assert set(pages) <= set(address.tolist())
    assert told.min() >= 1


def test_closing_leaves_no_kdamond(sampler: DamonSampler, kdamonds: Kdamonds, toucher: Any) -> None:
    sampler.track([toucher.process])
    until(lambda: kdamonds.is_on(0))
    sampler.close()
    assert kdamonds.count == 0


def test_nobody_tracked_switches_it_off(
    sampler: DamonSampler, kdamonds: Kdamonds, toucher: Any
) -> None:
    sampler.track([toucher.process])
    until(lambda: kdamonds.is_on(0))
    sampler.track([])
    until(lambda: not kdamonds.is_on(0))


def test_what_keeps_it_from_damon_is_told_by_read(
    sampler: DamonSampler, damon_kernel: Any, toucher: Any
) -> None:
    damon_kernel.exclusive = True
    sampler.track([toucher.process])

    def refused() -> bool:
        try:
            sampler.read()
        except DamonError as error:
            return "in use by another" in str(error)
        return False

    until(refused)
    damon_kernel.exclusive = False
    sampler.read()
    until(damon_kernel.on)


def test_of_more_processes_the_first_are_monitored(
    sampler: DamonSampler, damon_kernel: Any, toucher: Any
) -> None:
    gone = [ProcessId(2**22 + i, 1) for i in range(TARGETS)]
    sampler.track([*gone[1:], toucher.process, gone[0]])
    until(damon_kernel.on)
    assert damon_kernel.targets() == [toucher.process.pid]


def test_a_kernel_without_virtual_addresses_is_told(damon_kernel: Any, tmp_path: Path) -> None:
    def write(path: Path, text: str) -> None:
        if path.name == "operations":
            raise OSError(22, "Invalid argument")
        damon_kernel.write(path, text)

    kdamonds = Kdamonds(damon_kernel.sysfs, write)
    with pytest.raises(MissingError, match="CONFIG_DAMON_VADDR"):
        open_damon(note=tmp_path / "note", kdamonds=kdamonds)
    assert kdamonds.count == 0
