# SPDX-License-Identifier: MIT
"""A heat table in a control group of little memory: it fits with the watch, else it is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CGROUPS = Path("/sys/fs/cgroup")
LIMIT_MIB = 400
PROGRAM = """
import json, logging, sys
import numpy as np
open(sys.argv[1], "w").write("0")
from hmd.daemon.supervisors import MemoryLimiter
from hmd.heat.settings import HeatSettings
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId
from hmd.sample.access_batch import AccessBatch
logging.basicConfig(format="%(message)s")
log = logging.getLogger("hmd")
watch, chunks, step = MemoryLimiter(log), 200_000, 4_000
heat = HeatTable(HeatSettings(max_page_slots=chunks))
heat.track_processes([ProcessId(1, 1)])
for tick, begin in enumerate(range(0, chunks, step)):
    if sys.argv[2] == "watched":
        watch.limit_detail(heat, float(tick))
    starts = np.arange(begin, begin + step, dtype=np.uint64) * np.uint64(2 << 20)
    heat.record_nodes(0, starts, np.zeros((step, 512), np.int8))
    heat.update(AccessBatch.empty())
    heat.rates()
others = []
for tick in range(16):
    others.append(np.ones(6 << 20, np.uint8))
    watch.limit_detail(heat, float(tick))
    heat.update(AccessBatch.empty())
    heat.rates()
stats = heat.stats
print(json.dumps([stats.chunks, stats.page_slots, stats.page_slots_dropped]))
"""


@pytest.fixture
def join() -> Iterator[Path]:
    """The file that takes processes into a group of ``LIMIT_MIB``."""
    name = f"hmd-test-{os.getpid()}"
    if (CGROUPS / "cgroup.subtree_control").exists():
        (CGROUPS / "cgroup.subtree_control").write_text("+memory")
        group, limit = CGROUPS / name, "memory.max"
    else:
        group, limit = CGROUPS / "memory" / name, "memory.limit_in_bytes"
    group.mkdir()
    (group / limit).write_text(str(LIMIT_MIB << 20))
    yield group / "cgroup.procs"
    group.rmdir()


def run(join: Path, how: str) -> subprocess.CompletedProcess[bytes]:
    words = [sys.executable, "-c", PROGRAM, str(join), how]
    return subprocess.run(words, capture_output=True, check=False)


def test_table_near_the_memory_limit_drops_detail_and_lives(join: Path) -> None:
    ended = run(join, "watched")
    assert ended.returncode == 0, ended.stderr.decode()
    chunks, details, dropped = json.loads(ended.stdout)
    assert chunks == 200_000
    assert 64 <= details < chunks
    assert dropped > 0
    # A minute of ticks, and one line in ten.
    (line,) = ended.stderr.decode().splitlines()
    assert "raise MemoryMax= or lower heat.detail" in line


def test_table_near_the_memory_limit_without_the_watch_is_killed(join: Path) -> None:
    assert run(join, "unwatched").returncode == -signal.SIGKILL
