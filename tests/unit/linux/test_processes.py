# SPDX-License-Identifier: MIT
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from hmd.base.errors import ConfigError
from hmd.linux.processes import SCAN_BLOCK, ProcessWatcher
from hmd.linux.procfs import ProcessId
from hmd.linux.targets import TargetSpec
from tests.unit.linux.conftest import FakeProc


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def watcher(proc: FakeProc, *specs: Any, clock: Any = None, reread_s: float = 10.0) -> Any:
    return ProcessWatcher(specs, proc.root, clock or Clock(), reread_s)


def pids(found: Any) -> Any:
    return {name: [p.pid for p in members] for name, members in found.items()}


def one(proc: FakeProc, **selectors: Any) -> Any:
    spec = TargetSpec("t", **{"follow_children": False, **selectors})
    return pids(watcher(proc, spec).scan())["t"]


def test_watcher_each_selector_matches(proc: FakeProc) -> None:
    proc.add(10, exe="/usr/bin/redis-server", args=("*:6379",), uid=112)
    proc.add(11, exe="/usr/lib/jvm/bin/java", args=("-jar", "kafka.jar"), uid=1000)
    proc.add(12, exe="/usr/lib/jvm/bin/java", cgroup="0::/system.slice/solr.service\n")
    proc.add(13, exe="/opt/job", cgroup="4:memory:/jobs/7\n0::/\n", rss_pages=10)
    assert one(proc, pids=(11, 13, 999)) == [11, 13]
    assert one(proc, exe="redis-server") == [10]
    assert one(proc, exe="/usr/lib/*") == [1, 11, 12]
    assert one(proc, cmdline=r"-jar kafka\.jar$") == [11]
    assert one(proc, user=112) == [10]
    assert one(proc, user="112") == [10]
    assert one(proc, user="root") == [1]
    assert one(proc, cgroup="/jobs") == [13]
    assert one(proc, unit="solr") == [12]
    assert one(proc, exe="java", cmdline="kafka") == [11]
    assert one(proc, user=1000, min_rss_bytes=1 << 20) == [11, 12]


def test_watcher_one_of_several_values_matches(proc: FakeProc) -> None:
    proc.add(10, exe="/usr/bin/redis-server", cgroup="0::/system.slice/redis.service\n")
    proc.add(11, exe="/usr/bin/valkey-server", cgroup="0::/system.slice/valkey.service\n")
    proc.add(12, exe="/usr/bin/mysqld", cgroup="0::/jobs/7\n")
    assert one(proc, exe=("redis-*", "valkey-*")) == [10, 11]
    assert one(proc, unit=("valkey", "none")) == [11]
    assert one(proc, cgroup=("/jobs", "/system.slice/redis.service")) == [10, 12]
    assert one(proc, exe=("redis-*", "mysqld"), cgroup="/jobs") == [12]


def test_watcher_leaves_excluded_programs_out_also_as_children(proc: FakeProc) -> None:
    proc.add(10, exe="/usr/bin/postgres")
    proc.add(11, parent=10, exe="/usr/bin/postgres")
    proc.add(12, parent=10, exe="/usr/bin/pg_dump")
    proc.add(13, parent=12, exe="/usr/bin/gzip")
    proc.add(14, exe="/usr/bin/pgbench")
    assert one(proc, exe="p*", exclude=("pg_*", "pgbench")) == [10, 11]
    assert one(proc, exe="postgres", exclude=("pg_dump",), follow_children=True) == [10, 11, 13]
    assert one(proc, exe="p*", exclude=("p*",)) == []


def test_watcher_cmdline_of_megabytes_searched_at_start_only(proc: FakeProc) -> None:
    """Another user chooses arguments that would keep a backtracking engine busy for days."""
    proc.add(10, args=("java " * 400_000, "server"))
    proc.add(11, args=("a" * 2_000_000,))
    proc.add(12, args=("-cp", "x" * 8000, "server"))
    assert one(proc, cmdline="java.*java.*java.*server") == []
    assert one(proc, cmdline="thing (?:a+)+$") == [11]
    assert one(proc, cmdline="(?:a|a)*!") == []
    assert one(proc, cmdline="-cp.*server") == [12]


def test_watcher_scan_of_many_processes_calls_back_between_blocks(proc: FakeProc) -> None:
    for pid in range(10, 10 + 3 * SCAN_BLOCK):
        proc.add(pid)
    scan, calls = watcher(proc, TargetSpec("t", exe="*")), []
    found = scan.scan(lambda: calls.append(scan.evaluated))
    assert [evaluated // SCAN_BLOCK for evaluated in calls] == [0, 1, 2]
    assert len(found["t"]) == 1 + 3 * SCAN_BLOCK


def test_watcher_kernel_threads_zombies_and_self_left_out(proc: FakeProc) -> None:
    proc.add(10, state="Z")
    proc.add(os.getpid())
    assert one(proc, exe="*") == [1]
    assert one(proc, user=0) == [1]


def test_watcher_invalid_selector_refused(proc: FakeProc) -> None:
    with pytest.raises(ConfigError, match="cmdline"):
        watcher(proc, TargetSpec("t", cmdline="(")).scan()


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("redis-server", "/usr/bin/redis-server", True),
        ("redis-server", "/tmp/redis-server-tools/other", False),
        ("redis-server", "/opt/redis-server/bin/other", False),
        ("redis-server", "/usr/bin/redis-server-7", False),
        ("redis-*", "/usr/bin/redis-server", True),
        ("x", "/usr/bin/qemu-system-x86_64", False),
        ("*x86_64", "/usr/bin/qemu-system-x86_64", True),
        ("python3*", "/usr/bin/python3.11", True),
        ("python3.1[12]", "/usr/bin/python3.11", True),
        ("python3.1[12]", "/usr/bin/python3x11", False),
        ("Redis", "/usr/bin/redis", False),
        ("/usr/bin/redis", "/usr/bin/redis", True),
        ("/usr/bin/redis", "/opt/usr/bin/redis", False),
        ("/opt/app/*", "/opt/app/bin/worker", True),
        ("/opt/app/*", "/home/opt/app/worker", False),
        ("*/bin/worker", "/opt/app/bin/worker", True),
        ("[", "/usr/bin/[", True),
        ("redis-server$", "/usr/bin/redis-server", False),
    ],
)
def test_watcher_exe_pattern_matches_name_or_path(
    proc: FakeProc, pattern: str, path: str, matches: bool
) -> None:
    proc.add(10, exe=path)
    proc.add(11, exe="/sbin/unrelated")
    assert one(proc, exe=pattern) == ([10] if matches else [])


def test_watcher_exe_of_replaced_binary_matches(proc: FakeProc) -> None:
    proc.add(10, exe="/usr/bin/redis-server (deleted)")
    assert one(proc, exe="redis-server") == [10]


def test_watcher_unknown_user_matches_once_known(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    proc.add(10, exe="/bin/job", uid=4242)
    watch = watcher(proc, TargetSpec("t", user="late"), clock=clock, reread_s=10)
    assert pids(watch.scan()) == {"t": []}
    entry = pwd.struct_passwd(("late", "x", 4242, 4242, "", "/", "/bin/sh"))
    monkeypatch.setattr("hmd.linux.targets.pwd.getpwnam", lambda _: entry)
    clock.now_s = 5.0
    assert pids(watch.scan()) == {"t": []}
    clock.now_s = 10.0
    assert pids(watch.scan()) == {"t": [10]}


def test_watcher_process_of_two_targets_in_first(proc: FakeProc) -> None:
    proc.add(10, exe="/bin/a")
    proc.add(11, parent=10, exe="/bin/b")
    first = TargetSpec("first", exe="a")
    second = TargetSpec("second", exe="[ab]")
    assert pids(watcher(proc, first, second).scan()) == {"first": [10, 11], "second": []}
    assert pids(watcher(proc, second, first).scan()) == {"second": [10, 11], "first": []}


def test_watcher_children_followed_after_exit_of_parent(proc: FakeProc) -> None:
    watch = watcher(proc, TargetSpec("t", exe="launcher"))
    proc.add(10, exe="/bin/launcher")
    proc.add(11, parent=10, exe="/bin/worker")
    assert pids(watch.scan())["t"] == [10, 11]
    proc.remove(10)
    proc.add(11, parent=1, exe="/bin/worker")
    proc.add(12, parent=11, exe="/bin/grandchild")
    assert pids(watch.scan())["t"] == [11, 12]
    proc.remove(11)
    proc.add(12, parent=1, exe="/bin/grandchild")
    assert pids(watch.scan())["t"] == [12]
    proc.remove(12)
    assert pids(watch.scan())["t"] == []
    proc.add(12, parent=1, exe="/bin/stranger", start=999)
    assert pids(watch.scan())["t"] == []


def test_watcher_small_launcher_large_child_selected(proc: FakeProc) -> None:
    spec = TargetSpec("t", exe="launcher", min_rss_bytes=1 << 20)
    proc.add(10, exe="/bin/launcher", rss_pages=10)
    proc.add(11, parent=10, exe="/bin/worker", rss_pages=1000)
    assert pids(watcher(proc, spec).scan())["t"] == [11]


def test_watcher_min_rss_has_hysteresis(proc: FakeProc) -> None:
    watch = watcher(proc, TargetSpec("t", exe="w", min_rss_bytes=1000 * 4096))
    seen = []
    for rss_pages in (900, 1000, 600, 499, 600):
        proc.add(10, exe="/bin/w", rss_pages=rss_pages)
        seen.append(bool(watch.scan()["t"]))
    assert seen == [False, True, True, False, False]


def test_watcher_reused_pid_not_selected(proc: FakeProc) -> None:
    watch = watcher(proc, TargetSpec("t", pids=(10,)))
    proc.add(10, start=100)
    assert pids(watch.scan())["t"] == [10]
    proc.add(10, start=200)
    assert pids(watch.scan())["t"] == []


def test_watcher_exec_noticed_by_name_or_at_reread(proc: FakeProc) -> None:
    clock = Clock()
    watch = watcher(proc, TargetSpec("t", exe="/opt/server"), clock=clock, reread_s=10)
    proc.add(10, exe="/bin/sh")
    assert pids(watch.scan())["t"] == []
    proc.add(10, exe="/opt/server")
    assert pids(watch.scan())["t"] == [10]
    proc.add(10, exe="/opt/other", name="server")
    assert pids(watch.scan())["t"] == [10]
    clock.now_s = 10.5
    assert pids(watch.scan())["t"] == []


def test_watcher_selectors_evaluated_once_per_reread_interval(proc: FakeProc) -> None:
    clock = Clock()
    for pid in range(10, 60):
        proc.add(pid)
    watch = watcher(proc, TargetSpec("t", exe="thing"), clock=clock, reread_s=16)
    watch.scan()
    first = watch.evaluated
    watch.scan()
    assert watch.evaluated == first == 51
    evaluated = []
    for second in range(1, 17):
        clock.now_s = second
        before = watch.evaluated
        watch.scan()
        evaluated.append(watch.evaluated - before)
    assert sum(evaluated) == 51
    assert max(evaluated) <= 5


def test_watcher_unselected_processes_read_at_reread_only(proc: FakeProc) -> None:
    clock = Clock()
    for pid in range(10, 42):
        proc.add(pid, exe="/bin/wanted" if pid == 10 else "/bin/other")
    watch = watcher(proc, TargetSpec("t", exe="wanted"), clock=clock, reread_s=16)
    watch.scan()
    clock.now_s = 16
    watch.scan()
    before = watch.reads
    clock.now_s = 17
    assert pids(watch.scan())["t"] == [10]
    assert watch.reads == before + 1
    proc.add(40, exe="/bin/wanted")
    assert pids(watch.scan())["t"] == [10]
    clock.now_s = 32
    assert pids(watch.scan())["t"] == [10, 40]


def test_watcher_reused_pid_of_unselected_process_read(proc: FakeProc, tmp_path: Path) -> None:
    clock = Clock()
    proc.add(10, exe="/bin/other")
    watch = watcher(proc, TargetSpec("t", exe="wanted"), clock=clock, reread_s=10)
    watch.scan()
    clock.now_s = 10
    watch.scan()
    (proc.root / "10").rename(tmp_path / "former")  # keeps its inode, so that 10 gets another
    proc.add(10, exe="/bin/wanted", start=500)
    assert pids(watch.scan())["t"] == [10]


def test_watcher_child_of_reused_parent_pid_not_selected(proc: FakeProc) -> None:
    clock = Clock()
    proc.add(10, exe="/bin/old", start=100)
    proc.add(11, parent=10, exe="/bin/child", start=110)
    watch = watcher(proc, TargetSpec("t", exe="wanted"), clock=clock, reread_s=100)
    watch.scan()
    clock.now_s = 100
    watch.scan()
    proc.remove(10)
    watch.scan()
    proc.add(10, exe="/bin/wanted", start=900)
    assert pids(watch.scan())["t"] == [10]


def test_watcher_pid_selectors_read_no_other_process(proc: FakeProc) -> None:
    for pid in range(10, 30):
        proc.add(pid)
    watch = watcher(proc, TargetSpec("t", pids=(12, 13), follow_children=False))
    assert pids(watch.scan())["t"] == [12, 13]
    assert watch.reads == 2


def test_watcher_thousands_of_processes_all_descendants_found(proc: FakeProc) -> None:
    for pid in range(100, 2_100):
        folder = proc.root / str(pid)
        folder.mkdir()
        parent = pid - 1 if pid % 10 else 1
        line = f"{pid} (w) S {parent} 1 1 0 -1 0 " + "0 " * 12 + f"{pid} 0 5 0\n"
        (folder / "stat").write_text(line)
        if pid % 100 == 0:
            (folder / "exe").symlink_to("/bin/w")
    found = watcher(proc, TargetSpec("t", exe="w")).scan()["t"]
    assert len(found) == 200
    assert all(p.start_ticks == p.pid for p in found)


def test_watcher_resident_size_is_that_of_the_last_status(proc: FakeProc) -> None:
    proc.add(10, exe="/bin/w", rss_pages=900)
    watch = watcher(proc, TargetSpec("t", exe="w"))
    (process,) = watch.scan()["t"]
    assert watch.resident_bytes(process) == 900 * 4096
    assert watch.resident_bytes(ProcessId(10, process.start_ticks + 1)) == 0
    assert watch.resident_bytes(ProcessId(11, 1)) == 0


def test_watcher_same_process_until_its_pid_is_given_to_another(
    proc: FakeProc, tmp_path: Path
) -> None:
    proc.add(10, exe="/bin/wanted")
    watch = watcher(proc, TargetSpec("t", exe="wanted"))
    (process,) = watch.scan()["t"]
    assert watch.same(process)
    (proc.root / "10").rename(tmp_path / "former")
    assert not watch.same(process)
    proc.add(10, exe="/bin/wanted", start=500)
    assert not watch.same(process)


def test_watcher_same_process_after_its_folder_got_another_inode(
    proc: FakeProc, tmp_path: Path
) -> None:
    proc.add(10, exe="/bin/wanted")
    watch = watcher(proc, TargetSpec("t", exe="wanted"))
    (process,) = watch.scan()["t"]
    (proc.root / "10").rename(tmp_path / "former")
    proc.add(10, exe="/bin/wanted")
    assert watch.same(process)


def test_watcher_running_processes_need_no_stat_at_reread(proc: FakeProc) -> None:
    clock = Clock()
    for pid in range(10, 20):
        proc.add(pid, exe="/bin/wanted")
    watch = watcher(proc, TargetSpec("t", exe="wanted"), clock=clock, reread_s=10)
    processes = watch.scan()["t"]
    clock.now_s = 10
    before = watch.reads
    proc.add(12, exe="/bin/other")  # exec: the same pid and start time
    found = watch.scan(runs=lambda process: process in processes)["t"]
    assert pids({"t": found})["t"] == [10, 11, *range(13, 20)]
    assert watch.reads == before + 2  # of init and of the test, which do not count as running
