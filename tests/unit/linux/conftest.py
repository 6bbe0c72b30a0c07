# SPDX-License-Identifier: MIT
"""Fixture machines, and file trees created by tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

MACHINES = Path(__file__).parents[2] / "fixtures/machines"


@pytest.fixture
def machine() -> Callable[[str], Path]:
    return lambda name: MACHINES / name


@pytest.fixture
def machine_copy(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a fixture machine that a test may change."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(MACHINES / name, tmp_path / name))

    return copy


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a file below tmp_path, with its folders."""

    def write_file(path: str, text: str) -> Path:
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    return write_file


class FakeProc:
    """Processes as files below ``root``, in the formats of proc(5)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def add(
        self,
        pid: int,
        *,
        parent: int = 1,
        exe: str = "/usr/bin/thing",
        args: tuple[str, ...] = (),
        name: str | None = None,
        uid: int = 1000,
        cgroup: str = "0::/\n",
        start: int = 100,
        rss_pages: int = 1000,
        state: str = "S",
        flags: int = 0x400000,
    ) -> None:
        """Make or replace a process."""
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        name = name if name is not None else exe.rsplit("/", 1)[-1][:15]
        zeros = "0 0 0 0 "
        (folder / "stat").write_text(
            f"{pid} ({name}) {state} {parent} {pid} {pid} 0 -1 {flags} {zeros}7 3 0 0 20 0 1 0"
            f" {start} 4096000 {rss_pages} 18446744073709551615" + " 0" * 27 + "\n"
        )
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cmdline").write_bytes("\0".join((exe, *args)).encode() + b"\0")
        (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (folder / "cgroup").write_text(cgroup)
        link = folder / "exe"
        link.unlink(missing_ok=True)
        link.symlink_to(exe)

    def remove(self, pid: int) -> None:
        """Let a process exit."""
        shutil.rmtree(self.root / str(pid))


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    """A /proc with init and one kernel thread."""
    fake = FakeProc(tmp_path / "proc")
    fake.add(1, parent=0, exe="/usr/lib/systemd/systemd", uid=0)
    fake.add(2, parent=0, name="kthreadd", uid=0, flags=0x208040)
    return fake
