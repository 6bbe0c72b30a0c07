# SPDX-License-Identifier: MIT
"""The names by which programs are selected, and why a target has no processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from hmd.linux.cgroups import cgroup_mounts, cgroup_selector, in_unit, parse_cgroup, selected_group
from hmd.linux.processes import ProcessWatcher
from hmd.linux.procfs import ProcessId, read_live_stat, read_stat
from hmd.linux.targets import _MAX_NAMES, TargetSpec, explain_empty
from tests.unit.linux.conftest import FakeProc

RDB = "/usr/bin/redis-check-rdb"
"""What Debian's /usr/bin/redis-server is a link to."""


def pids(proc: FakeProc, **selectors: str) -> list[int]:
    spec = TargetSpec("t", follow_children=False, **selectors)  # type: ignore[arg-type]
    return [process.pid for process in ProcessWatcher([spec], proc.root).scan()["t"]]


def why(proc: FakeProc, spec: TargetSpec, others: Sequence[ProcessId] = ()) -> str:
    return explain_empty(spec, others, proc.root)


def test_program_started_through_a_link_selected_by_either_name(proc: FakeProc) -> None:
    proc.add(10, exe=RDB, name="redis-server")
    proc.add(11, exe=RDB)
    assert pids(proc, exe="redis-server") == [10]
    assert pids(proc, exe="redis-check-rdb") == [10, 11]


def test_name_longer_than_the_kernels_taken_from_first_argument(proc: FakeProc) -> None:
    proc.add(10, exe="/usr/bin/python3.11", name="a-long-name-of-")
    (proc.root / "10/cmdline").write_bytes(b"/opt/a-long-name-of-a-script --quick\0x\0")
    assert pids(proc, exe="a-long-name-of-a-script") == [10]
    assert pids(proc, exe="--quick") == []


def test_path_through_a_linked_folder_selects_the_program(proc: FakeProc, tmp_path: Path) -> None:
    """As /bin/bash does, where /bin is a link to usr/bin."""
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    program = tmp_path / "usr/bin/bash"
    program.touch()
    proc.add(10, exe=str(program), name="bash")
    assert pids(proc, exe=str(tmp_path / "bin/bash")) == [10]
    assert pids(proc, exe="/opt/bin/bash") == []


def test_path_of_a_link_selects_what_was_started_by_its_name(
    proc: FakeProc, tmp_path: Path
) -> None:
    link = tmp_path / "redis-server"
    link.symlink_to(RDB)
    resolved = str(Path(RDB).resolve())
    proc.add(10, exe=resolved, name="redis-server")
    proc.add(11, exe=resolved)
    proc.add(12, exe="/home/u/mine", name="redis-server")  # anyone may take a name
    assert pids(proc, exe=str(link)) == [10]


def test_unit_that_a_user_names_counts_only_with_user() -> None:
    path = b"0::/user.slice/user-1000.slice/user@1000.service/app.slice/postgresql.service\n"
    paths = parse_cgroup(path)
    assert not in_unit(paths, "postgresql.service")
    assert in_unit(paths, "postgresql.service", of_users=True)
    assert in_unit(paths, "user@1000.service")


def test_unit_of_a_user_selected_with_the_user(proc: FakeProc) -> None:
    group = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/db.service\n"
    proc.add(10, cgroup=group, uid=1000)
    assert pids(proc, unit="db") == []
    assert pids(proc, unit="db", user="1000") == [10]


def test_folder_of_a_version_1_hierarchy_is_no_part_of_the_group(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(
        "25 19 0:22 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro\n"
        "29 25 0:26 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n"
        "30 25 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw\n"
    )
    mounts = cgroup_mounts(tmp_path)
    paths = parse_cgroup(b"4:memory:/app\n0::/\n")
    assert selected_group(paths, cgroup_selector("/sys/fs/cgroup/memory/app", mounts))
    assert cgroup_selector("/sys/fs/cgroup/unified/a", mounts) == ("a",)
    assert cgroup_selector("/sys/fs/cgroup/memories", mounts) == ("memories",)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (
            TargetSpec("t", exe="redis-servr"),
            "no process has exe 'redis-servr'; nearest: redis-server",
        ),
        (
            TargetSpec("t", unit="postgresql.service"),
            "no process has unit 'postgresql.service'; nearest: postgresql@15-main.service",
        ),
        (TargetSpec("t", cgroup="/jobs/8"), "no process has cgroup '/jobs/8'; nearest: /jobs/7"),
        (TargetSpec("t", pids=(99,)), "no process has pid 99"),
        (
            TargetSpec("t", exe=("redis-servr", "nothing")),
            "no process has exe 'redis-servr', 'nothing'; nearest: redis-server",
        ),
        (
            TargetSpec("t", exe="redis-server", user=33),
            "no process matches all of its selectors (exe: 1, user: 1)",
        ),
        (
            TargetSpec("t", exe="redis-*", min_rss_bytes=1 << 30),
            "processes that match: 1, all below min_rss: the largest has 3 MiB of 1GiB",
        ),
        (TargetSpec("t", exe="redis-server"), ""),
    ],
)
def test_empty_target_explained_with_nearest_names(
    proc: FakeProc, spec: TargetSpec, reason: str
) -> None:
    proc.add(10, exe=RDB, name="redis-server", cgroup="0::/jobs/7\n")
    group = "0::/system.slice/system-postgresql.slice/postgresql@15-main.service\n"
    proc.add(11, exe="/usr/lib/postgresql/15/bin/postgres", cgroup=group, uid=33)
    said = why(proc, spec)
    assert said.startswith(reason) if reason else said == ""


def test_empty_target_whose_processes_another_has_says_so(proc: FakeProc) -> None:
    proc.add(10, exe=RDB)
    said = why(proc, TargetSpec("t", exe="redis-*"), [ProcessId(10, 100)])
    assert said == "processes that match: 1, all excluded or of targets above it"


def test_nearest_name_that_would_garble_a_terminal_is_escaped(proc: FakeProc) -> None:
    proc.add(10, exe="/tmp/redis\x1b[2J", name="redis\x1b[2J")
    assert "\x1b" not in why(proc, TargetSpec("t", exe="redis"))


def test_process_whose_first_thread_has_ended_is_selected_by_another(proc: FakeProc) -> None:
    """After pthread_exit(3) of the first, its /proc/PID has no executable, maps or arguments."""
    proc.add(10, state="Z")
    stat = proc.root / "10/stat"
    stat.write_text(stat.read_text().replace(" 20 0 1 0 ", " 20 0 3 0 "))
    (proc.root / "10/exe").unlink()
    (proc.root / "10/task/11").mkdir(parents=True)
    (proc.root / "10/task/10").mkdir()
    proc.add(11, exe="/opt/db")
    found = ProcessWatcher([TargetSpec("t", exe="db")], proc.root).scan()["t"]
    assert found == (ProcessId(11, 100),)
    assert read_live_stat(10, proc.root) == read_stat(11, proc.root)


def test_names_of_many_processes_compared_up_to_a_bound(proc: FakeProc) -> None:
    proc.add(10, exe="/usr/bin/redis-servers")
    for pid in range(11, 11 + _MAX_NAMES):
        proc.add(pid, exe=f"/tmp/{pid}/{pid}")
    proc.add(5000, exe="/usr/bin/redis-server2")
    reason = why(proc, TargetSpec("t", exe="redis-server"))
    assert "redis-servers" in reason
    assert "redis-server2" not in reason


def test_long_names_not_compared(proc: FakeProc) -> None:
    proc.add(10, exe="/usr/bin/" + "redis-server" * 40)
    assert "nearest" not in why(proc, TargetSpec("t", exe="redis-server" * 39))
