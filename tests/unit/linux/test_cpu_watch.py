# SPDX-License-Identifier: MIT
"""CPUs that come and go, in a sysfs tree."""

from __future__ import annotations

from pathlib import Path

from hmd.linux.topology import ONLINE, CpuWatch, online_cpus


def write(sysfs: Path, cpus: str) -> None:
    (sysfs / ONLINE).parent.mkdir(parents=True, exist_ok=True)
    (sysfs / ONLINE).write_text(cpus + "\n")


def test_cpu_watch_each_change_reported_once(tmp_path: Path) -> None:
    write(tmp_path, "0-3")
    watch = CpuWatch(tmp_path)
    assert not watch.changed()
    write(tmp_path, "0,2")
    assert [watch.changed(), watch.changed()] == [True, False]
    write(tmp_path, "0-3")
    assert [watch.changed(), watch.changed()] == [True, False]


def test_cpu_watch_unreadable_list_no_change(tmp_path: Path) -> None:
    write(tmp_path, "0-3")
    watch = CpuWatch(tmp_path)
    (tmp_path / ONLINE).unlink()
    assert not watch.changed()
    write(tmp_path, "0-3")
    assert not watch.changed()
    assert online_cpus(tmp_path) == (0, 1, 2, 3)
