# SPDX-License-Identifier: MIT
"""Page cache as room: what hmd counts, the kernel gives up for moves to the node."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.compare import testbed
from hmd.base.units import PAGE_BYTES
from hmd.emulate.demo.measure import service
from hmd.emulate.vm.guest import BASE_ENVIRONMENT, Command

PROGRAMS = Path(__file__).parents[1] / "programs"
TO_NODE = PROGRAMS / "to_node.c"
FAST_BYTES = 8 << 20

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[testbed.Testbed]:
    folder = tmp_path_factory.mktemp("page_cache")
    build = [
        "gcc",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-o",
        str(folder / "to_node"),
        str(TO_NODE),
    ]
    subprocess.run(build, check=True)
    nothing = Command(("true",), env=BASE_ENVIRONMENT, expect="")
    with testbed.stage([nothing], folder) as booted:
        yield booted


@pytest.fixture
def full(ready: testbed.Testbed) -> Iterator[testbed.Testbed]:
    """The fast node with memory for programs, all of which is page cache."""
    ready.fast_node.demote_all()
    ready.fast_node.leave(FAST_BYTES, drop_caches=False)
    ready.fast_node.fill_with_cache()
    yield ready
    ready.fast_node.drop_cache()
    ready.fast_node.release()


def room_bytes(full: testbed.Testbed) -> int:
    """Return the page cache that counts as room, with what CPUs hold back added to the LRU lists.

    A CPU adds new pages to them in batches; compaction begins by draining these
    (lru_add_drain_all() in mm/compaction.c).
    """
    full.sh("echo 1 > /proc/sys/vm/compact_memory")
    return full.fast_node.page_cache_bytes()


def cached_bytes(full: testbed.Testbed) -> int:
    """Return all page cache of the fast node."""
    lists = full.sh("grep -E '(Active|Inactive).file' /sys/devices/system/node/node0/meminfo")
    return sum(int(line.split()[-2]) << 10 for line in lists.splitlines())


def moved_pages(ready: testbed.Testbed, pages: int) -> int:
    """Return how many pages of a program that first touch puts elsewhere reach the fast node."""
    return int(ready.sh(f"{ready.folder}/to_node {pages} 0"))


def test_node_full_of_cache_has_room_for_moves(full: testbed.Testbed) -> None:
    room = room_bytes(full) // PAGE_BYTES
    assert room > 0.8 * FAST_BYTES / PAGE_BYTES
    assert moved_pages(full, room) > 0.95 * room


def test_cache_read_again_half_of_it_is_room(full: testbed.Testbed) -> None:
    before = room_bytes(full)
    for _ in range(3):
        full.fast_node.read_cache()
    # What reads it may add pages of its own, and cache goes meanwhile.
    cached = cached_bytes(full)
    room = room_bytes(full)
    assert 0.45 * before < room <= max(cached, cached_bytes(full))
    assert moved_pages(full, room // PAGE_BYTES) > 0.95 * room / PAGE_BYTES


def test_moves_beyond_the_cache_fail_without_oom_kill(full: testbed.Testbed) -> None:
    before = full.vmstat()["oom_kill"]
    pages = 4 * FAST_BYTES // PAGE_BYTES
    assert moved_pages(full, pages) < pages
    assert full.vmstat()["oom_kill"] == before


def test_headroom_from_page_cache_leaves_programs_memory_on_the_node(
    full: testbed.Testbed,
) -> None:
    argv = service([sys.executable, str(PROGRAMS / "cache_demotion.py")])
    done = full.machine.run(argv, timeout=300, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["active"]
    assert found["paused"]
    assert found["cache_after"] < found["cache_before"] / 8
    assert found["own_after"] == found["own_before"] > 0
    assert found["kdamonds"] == 0
    # What was demoted is free for programs.
    assert full.fast_node.for_programs_bytes() > 0.7 * FAST_BYTES
