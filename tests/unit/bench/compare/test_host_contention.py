# SPDX-License-Identifier: MIT
"""Waits of an emulated CPU's thread, from a process that has threads named as QEMU's."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.compare.testbed import HostContention, HostWait
from hmd.base.errors import MissingError


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    for thread, name in ((7, "qemu-system-x86"), (8, "CPU 0/TCG"), (9, "CPU 1/TCG")):
        folder = tmp_path / f"7/task/{thread}"
        folder.mkdir(parents=True)
        (folder / "comm").write_text(f"{name}\n")
        (folder / "schedstat").write_text(f"5000000000 {thread}00000000 12\n")
    (tmp_path / "stat").write_text("cpu  1 2 3 4 5 6 7 0 0 0\ncpu0 1 2 3 4 5 6 7 0 0 0\n")
    return tmp_path


def test_contention_reads_waits_of_the_named_thread(proc: Path) -> None:
    assert HostContention(7, (1,), proc).read().since(HostWait(0.0, 0.0)) == pytest.approx(0.9)


def test_contention_several_cpus_mean_of_their_waits(proc: Path) -> None:
    both = HostContention(7, (0, 1), proc).read()
    assert both.since(HostWait(0.0, 0.0)) == pytest.approx(0.85)


def test_contention_queue_and_steal_added(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    contention = HostContention(7, (1,), proc)
    before = contention.read()
    (proc / "7/task/9/schedstat").write_text("5000000000 1100000000 12\n")
    (proc / "stat").write_text("cpu  1 2 3 4 5 6 7 60 0 0\n")
    assert contention.read().since(before) == pytest.approx(0.2 + 0.6 / 2)


def test_contention_without_such_thread_refused(proc: Path) -> None:
    with pytest.raises(MissingError, match="no thread 'CPU 2/TCG'"):
        HostContention(7, (2,), proc)
