# SPDX-License-Identifier: MIT
"""DAMON's sysfs tree: one kdamond is set up, started, read and removed."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmd.base.errors import MissingError, Severity
from hmd.linux.damon import (
    DamonClaim,
    DamonError,
    DamonRegions,
    Kdamond,
    Kdamonds,
    damon_finding,
    holder,
    lock_note,
    stop_left_behind,
)

SETTINGS = 5000, 100_000
SOME = DamonRegions(
    np.array([0x1000, 0x8000], np.uint64), np.array([0x3000, 0x9000], np.uint64), np.zeros(2, "u4")
)


@pytest.fixture
def kdamonds(damon_kernel: Any) -> Kdamonds:
    return Kdamonds(damon_kernel.sysfs, damon_kernel.write, busy_s=0.5)


@pytest.fixture
def note(tmp_path: Path) -> Path:
    return tmp_path / "run/damon"


def killed(kdamonds: Kdamonds, note: Path) -> int:
    """Return the pid of a process that claimed DAMON, started a kdamond and was killed."""
    pid = os.fork()
    if not pid:
        try:
            DamonClaim(kdamonds, note)
            Kdamond(kdamonds).start([os.getppid()], [SOME], *SETTINGS)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    return pid


def test_kdamond_start_writes_settings_and_targets(damon_kernel: Any, kdamonds: Kdamonds) -> None:
    kdamonds.set_count(1)
    Kdamond(kdamonds).start([os.getpid(), os.getppid()], [SOME, SOME], *SETTINGS)
    context = damon_kernel.path / "0/contexts/0"
    assert damon_kernel.on()
    assert damon_kernel.targets() == [os.getpid(), os.getppid()]
    assert (context / "operations").read_text() == "vaddr\n"
    intervals = context / "monitoring_attrs/intervals"
    assert (intervals / "sample_us").read_text() == "5000\n"
    assert (intervals / "aggr_us").read_text() == "100000\n"
    # More than half of the most that there may be: DAMON splits none of them.
    limits = context / "monitoring_attrs/nr_regions"
    assert (limits / "min").read_text() == (limits / "max").read_text() == "7\n"
    regions = context / "targets/1/regions"
    bounds = [int((regions / f"1/{name}").read_text()) for name in ("start", "end")]
    assert bounds == [0x8000, 0x9000]
    assert (context / "schemes/1/action").read_text() == "stat\n"
    assert (context / "schemes/1/filters/0/type").read_text() == "target\n"


def test_kdamond_restart_writes_only_changed_regions(damon_kernel: Any) -> None:
    written: list[str] = []

    def write(path: Path, text: str) -> None:
        damon_kernel.write(path, text)
        if path.parent.parent.name == "regions":
            written.append(f"{path.parent.name}/{path.name}")

    kdamonds = Kdamonds(damon_kernel.sysfs, write)
    kdamonds.set_count(1)
    kdamond = Kdamond(kdamonds)
    other = DamonRegions(SOME.start, SOME.end + np.array([0, 0x1000], np.uint64), SOME.accesses)
    each = ["0/start", "0/end", "1/start", "1/end"]
    for regions, expected in ((SOME, each), (SOME, []), (other, each[2:])):
        kdamond.start([os.getpid()], [regions], *SETTINGS)
        assert written == expected
        written.clear()
    kdamond.stop()
    # Another program changes the set-up meanwhile. The old one is kept, so that its inode number
    # is not reused, as in sysfs.
    targets = damon_kernel.path / "0/contexts/0/targets"
    (targets / "0").rename(targets / "gone")
    damon_kernel.write(targets / "nr_targets", "1")
    kdamond.start([os.getpid()], [other], *SETTINGS)
    assert written == each
    assert damon_kernel.regions(0) == [(0x1000, 0x3000), (0x8000, 0xA000)]


def test_kdamond_look_returns_regions_of_targets_in_order(
    damon_kernel: Any, kdamonds: Kdamonds
) -> None:
    kdamonds.set_count(1)
    kdamond = Kdamond(kdamonds)
    kdamond.start([os.getpid(), os.getppid()], [SOME, SOME], *SETTINGS)
    damon_kernel.accesses = {os.getppid(): [(0x2000, 0x4000, 3), (0x8000, 0x9000, 20)]}
    found = kdamond.read_regions()
    assert found is not None
    assert [regions.accesses.tolist() for regions in found] == [[0, 0], [3, 20]]
    for regions in found:
        assert regions.start.tolist() == SOME.start.tolist()
        assert regions.end.tolist() == SOME.end.tolist()
    assert len(found[0].accessed) == 0
    assert found[1].accessed.accesses.tolist() == [3, 20]


def test_kdamond_that_ended_returns_no_regions(damon_kernel: Any, kdamonds: Kdamonds) -> None:
    kdamonds.set_count(1)
    kdamond = Kdamond(kdamonds)
    kdamond.start([os.getpid()], [SOME], *SETTINGS)
    (damon_kernel.path / "0/state").write_text("off\n")
    assert not kdamond.running
    assert kdamond.read_regions() is None
    kdamond.stop()


def test_kdamond_start_with_exited_target_refused(kdamonds: Kdamonds) -> None:
    kdamonds.set_count(1)
    with pytest.raises(DamonError) as caught:
        Kdamond(kdamonds).start([2**22 + 1], [SOME], *SETTINGS)
    assert caught.value.errno == errno.EINVAL


def test_kdamonds_write_to_busy_file_retried(damon_kernel: Any, kdamonds: Kdamonds) -> None:
    damon_kernel.busy = 3
    kdamonds.write("nr_kdamonds", 1)
    assert kdamonds.count == 1


def test_kdamonds_exclusive_user_named_in_error(damon_kernel: Any, kdamonds: Kdamonds) -> None:
    kdamonds.set_count(1)
    damon_kernel.exclusive = True
    with pytest.raises(DamonError, match="damon_reclaim") as caught:
        kdamonds.write("0/state", "on")
    assert caught.value.errno == errno.EBUSY


def test_kdamond_replaced_by_another_program_left_running(
    damon_kernel: Any, kdamonds: Kdamonds, note: Path
) -> None:
    """hmd's kdamond ended with its last target, and another program started one in its place."""
    claim = DamonClaim(kdamonds, note)
    kdamond = Kdamond(kdamonds)
    kdamond.start([os.getpid()], [SOME], *SETTINGS)
    (damon_kernel.path / "0/pid").write_text("1\n")
    assert not kdamond.running
    kdamond.stop()
    with pytest.raises(DamonError, match="taken") as caught:
        kdamond.start([os.getpid()], [SOME], *SETTINGS)
    assert caught.value.errno == errno.EBUSY
    claim.release()
    assert damon_kernel.on()


def test_kdamond_cpu_time_kept_across_restart(kdamonds: Kdamonds) -> None:
    kdamonds.set_count(1)
    kdamond = Kdamond(kdamonds)
    assert kdamond.cpu_s == 0
    # The kernel's thread of this tree is this process.
    kdamond.start([os.getpid()], [SOME], *SETTINGS)
    deadline = time.monotonic() + 10
    while not kdamond.cpu_s and time.monotonic() < deadline:
        pass
    used = kdamond.cpu_s
    assert used > 0
    kdamond.stop()
    assert kdamond.cpu_s >= used
    kdamond.start([os.getpid()], [SOME], *SETTINGS)
    assert kdamond.cpu_s >= 2 * used


def test_damon_claim_creates_and_removes_one_kdamond(
    damon_kernel: Any, kdamonds: Kdamonds, note: Path
) -> None:
    claim = DamonClaim(kdamonds, note)
    assert kdamonds.count == 1
    assert holder(kdamonds, note) == holder(Kdamonds(damon_kernel.sysfs), note)
    found = damon_finding(damon_kernel.sysfs, note)
    assert (found.level, found.state) == (Severity.OK, f"in use by hmd (pid {os.getpid()})")
    with pytest.raises(MissingError, match=f"another hmd .pid {os.getpid()}"):
        DamonClaim(kdamonds, note)
    claim.release()
    assert kdamonds.count == 0
    assert holder(kdamonds, note) is None
    assert damon_finding(damon_kernel.sysfs, note).state == "in this kernel, not in use"


def test_damon_claim_with_kdamond_of_another_program_refused(
    damon_kernel: Any, kdamonds: Kdamonds, note: Path
) -> None:
    kdamonds.set_count(1)
    Kdamond(kdamonds).start([os.getpid()], [SOME], *SETTINGS)
    with pytest.raises(MissingError, match=r"in use by another: kdamond 0 .*echo off > "):
        DamonClaim(kdamonds, note)
    assert damon_kernel.on()
    assert "another" in damon_finding(damon_kernel.sysfs, note).state
    kdamonds.switch_off(0)
    with pytest.raises(MissingError, match=r"set up by another, and off.*echo 0 > "):
        DamonClaim(kdamonds, note)
    assert damon_kernel.targets() == [os.getpid()]


@pytest.mark.parametrize(
    ("module", "parameters", "in_use"),
    [
        ("damon_stat", {"enabled": "Y"}, True),
        ("damon_stat", {"enabled": "N"}, False),
        ("damon_reclaim", {"enabled": "Y", "kdamond_pid": "77"}, True),
        ("damon_lru_sort", {"enabled": "Y", "kdamond_pid": "-1"}, False),
    ],
)
def test_damon_of_a_kernel_module_refused_at_once(
    damon_kernel: Any,
    kdamonds: Kdamonds,
    note: Path,
    module: str,
    parameters: dict[str, str],
    in_use: bool,
) -> None:
    folder = damon_kernel.sysfs / "module" / module / "parameters"
    folder.mkdir(parents=True)
    for name, value in parameters.items():
        (folder / name).write_text(f"{value}\n")
    damon_kernel.exclusive = in_use
    state = damon_finding(damon_kernel.sysfs, note).state
    if not in_use:
        assert state == "in this kernel, not in use"
        DamonClaim(kdamonds, note).release()
        return
    assert state == f"in use by the kernel's {module}, for itself alone"
    free = f"echo N > /sys/module/{module}/parameters/enabled"
    with pytest.raises(MissingError, match=f"{module}.*{free}"):
        DamonClaim(kdamonds, note)
    kdamonds.set_count(1)
    damon_kernel.refused = 0
    with pytest.raises(DamonError, match=f"{module} has it for itself alone"):
        Kdamond(kdamonds).start([os.getpid()], [SOME], *SETTINGS)
    assert not damon_kernel.refused, "a start that the kernel refuses is retried for seconds"


def test_damon_claim_without_kernel_support_refused(tmp_path: Path, note: Path) -> None:
    with pytest.raises(MissingError, match="no DAMON"):
        DamonClaim(Kdamonds(tmp_path), note)
    assert not note.exists()
    assert damon_finding(tmp_path, note).state == "not in this kernel"


def test_damon_claim_takes_over_kdamond_of_killed_hmd(
    damon_kernel: Any, kdamonds: Kdamonds, note: Path
) -> None:
    pid = killed(kdamonds, note)
    assert damon_kernel.on()
    found = damon_finding(damon_kernel.sysfs, note)
    assert found.level == Severity.WARN
    assert f"pid {pid}" in found.state
    claim = DamonClaim(kdamonds, note)
    assert not damon_kernel.on()
    claim.release()
    assert kdamonds.count == 0


def test_stop_left_behind_stops_kdamond_of_killed_hmd(
    damon_kernel: Any, kdamonds: Kdamonds, note: Path
) -> None:
    assert stop_left_behind(kdamonds, note) is None
    pid = killed(kdamonds, note)
    left = stop_left_behind(kdamonds, note)
    assert left is not None
    assert (left.pid, left.left) == (pid, True)
    assert kdamonds.count == 0
    assert stop_left_behind(kdamonds, note) is None


def test_stop_left_behind_leaves_later_kdamond_of_another_program(
    damon_kernel: Any, kdamonds: Kdamonds, note: Path
) -> None:
    killed(kdamonds, note)
    kdamonds.switch_off(0)
    # As damo does: it makes its own kdamond, in a directory of the same name. That of the killed
    # one is kept, so that its inode number, which sysfs never uses again, is not used again here.
    (damon_kernel.path / "0").rename(damon_kernel.path / "gone")
    damon_kernel.write(damon_kernel.path / "nr_kdamonds", "1")
    Kdamond(kdamonds).start([os.getpid()], [SOME], *SETTINGS)
    assert stop_left_behind(kdamonds, note) is None
    with pytest.raises(MissingError, match="in use by another"):
        DamonClaim(kdamonds, note)
    assert damon_kernel.on()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_note_that_a_command_of_root_makes_belongs_to_the_service(
    kdamonds: Kdamonds, note: Path
) -> None:
    """``hmd enable`` tries the samplers, and the service could not write root's note."""
    note.parent.mkdir()
    os.chown(note.parent, 4711, 4711)
    DamonClaim(kdamonds, note).release()
    assert (note.stat().st_uid, note.stat().st_gid) == (4711, 4711)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_note_of_root_in_what_became_the_folder_of_the_service_is_replaced() -> None:
    """``hmd enable`` tries the samplers before there is the service's user."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        note = Path(folder, "damon")
        note.touch(0o644)
        os.chown(folder, 4711, 4711)
        os.seteuid(4711)
        try:
            os.close(lock_note(note, Path("/proc")))
        finally:
            os.seteuid(0)
        assert note.stat().st_uid == 4711
