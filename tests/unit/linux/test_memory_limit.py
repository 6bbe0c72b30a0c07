# SPDX-License-Identifier: MIT
"""The memory limit of a control group, from the files of both versions of the interface."""

from __future__ import annotations

from pathlib import Path

from hmd.linux.cgroups import MemoryLimit, MemoryLimitReader

MIB = 1 << 20


def group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(f"{text}\n")


def reader(tmp_path: Path, lines: str) -> MemoryLimitReader:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(lines)
    return MemoryLimitReader(tmp_path / "proc", tmp_path / "cgroup")


def test_memory_limit_counts_no_page_cache(tmp_path: Path) -> None:
    limits = reader(tmp_path, "0::/system.slice/hmd.service\n")
    stat = f"anon 5\ninactive_file {30 * MIB}\nactive_file {10 * MIB}"
    group(
        tmp_path / "cgroup/system.slice/hmd.service",
        max=400 * MIB, high="max", current=300 * MIB, stat=stat,
    )  # fmt: skip
    assert limits.read() == MemoryLimit(400 * MIB, 260 * MIB)


def test_memory_limit_of_several_groups_is_that_with_least_room(tmp_path: Path) -> None:
    limits = reader(tmp_path, "0::/a/b\n")
    group(tmp_path / "cgroup/a/b", max=900 * MIB, high=800 * MIB, current=100 * MIB, stat="")
    group(tmp_path / "cgroup/a", max=2000 * MIB, high="max", current=1900 * MIB, stat="")
    group(tmp_path / "cgroup")
    assert limits.read() == MemoryLimit(2000 * MIB, 1900 * MIB)
    group(tmp_path / "cgroup/a", max="max")
    assert limits.read() == MemoryLimit(800 * MIB, 100 * MIB)
    group(tmp_path / "cgroup/a/b", max="max", high="max")
    assert limits.read() is None


def test_memory_limit_of_version_1_read(tmp_path: Path) -> None:
    limits = reader(tmp_path, "4:memory:/box\n1:cpu:/\n0::/\n")
    folder = tmp_path / "cgroup/memory"
    group(folder, limit_in_bytes=(1 << 63) - 4096, usage_in_bytes=7, stat="")
    assert limits.read() is None
    stat = f"inactive_file 1\ntotal_inactive_file {2 * MIB}\ntotal_active_file {MIB}"
    group(folder / "box", limit_in_bytes=50 * MIB, usage_in_bytes=40 * MIB, stat=stat)
    assert limits.read() == MemoryLimit(50 * MIB, 37 * MIB)


def test_memory_limit_of_a_container_is_at_the_root_it_sees(tmp_path: Path) -> None:
    limits = reader(tmp_path, "4:memory:/docker/4711\n")
    group(tmp_path / "cgroup/memory", limit_in_bytes=MIB, usage_in_bytes=4096, stat="")
    assert limits.read() == MemoryLimit(MIB, 4096)


def test_memory_limit_without_cgroups_is_none(tmp_path: Path) -> None:
    assert reader(tmp_path, "").read() is None
