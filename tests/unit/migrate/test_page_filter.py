# SPDX-License-Identifier: MIT
"""Which pages of a plan may move, by the mappings that they lie in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hmd.linux.procfs import ProcessId
from hmd.linux.targets import SafeRegex
from hmd.migrate import MovableMappings

PROCESS = ProcessId(7, 1)
MAPS = """\
1000-2000 rw-p 00000000 00:00 0
2000-3000 r-xp 00000000 fe:00 9 /usr/lib/libc.so
3000-4000 rw-s 00000000 00:01 5 /dev/shm/pool
5000-6000 rw-s 00000000 00:06 6 /dev/nvidia0
"""
PAGES = np.array([0x5000, 0x1000, 0x2000, 0x3000, 0x4000], np.uint64)


@pytest.fixture
def page_filter(tmp_path: Path) -> MovableMappings:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "maps").write_text(MAPS)
    return MovableMappings(tmp_path)


def test_filter_refuses_code_devices_and_gaps(page_filter: MovableMappings) -> None:
    assert page_filter(PROCESS, PAGES).tolist() == [False, True, False, True, False]


def test_filter_refuses_mappings_to_keep_of_their_process(page_filter: MovableMappings) -> None:
    page_filter.set_kept({PROCESS: (SafeRegex("/dev/shm/"),)})
    assert page_filter(PROCESS, PAGES).tolist() == [False, True, False, False, False]
    page_filter.set_kept({ProcessId(7, 2): (SafeRegex("/dev/shm/"),)})
    assert page_filter(PROCESS, PAGES).tolist() == [False, True, False, True, False]


def test_filter_of_unreadable_process_leaves_answer_to_kernel(tmp_path: Path) -> None:
    assert MovableMappings(tmp_path)(PROCESS, PAGES).all()
