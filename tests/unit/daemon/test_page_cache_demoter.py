# SPDX-License-Identifier: MIT
"""The demotion of page cache in the daemon: when it claims DAMON, and what it says where it cannot.

DAMON is a tree of files here; the kernel's is used in tests/vm/dram_pm/test_page_cache.py.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from hmd.config import loads
from hmd.daemon import settings
from hmd.daemon.supervisors import RETRY_S, PageCacheDemoter
from hmd.linux import damon
from hmd.linux.topology import Node, Topology
from tests.fakes.damon_kernel import DamonKernel

LOG = logging.getLogger("test_page_cache_demoter")


HEADROOM = "migrate: {cache_headroom: 25%}"


TOPOLOGY = Topology((Node(0, (0,), 1 << 30, (10, 17), 0), Node(1, (), 1 << 30, (17, 10), 1)))


@pytest.fixture
def sysfs(damon_kernel: DamonKernel, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two nodes, of which the faster one is full of page cache."""
    sysfs = damon_kernel.sysfs
    node0 = sysfs / "devices/system/node/node0"
    (node0 / "memory0").mkdir(parents=True)
    (node0 / "meminfo").write_text(
        "Node 0 MemTotal: 1048576 kB\nNode 0 MemFree: 1024 kB\nNode 0 FilePages: 524288 kB\n"
    )
    blocks = sysfs / "devices/system/memory"
    blocks.mkdir(parents=True)
    (blocks / "block_size_bytes").write_text("40000000\n")
    monkeypatch.setattr(damon.Kdamonds.__init__, "__defaults__", (damon_kernel.write, 0.1))
    return sysfs


@pytest.fixture
def demoter(sysfs: Path, tmp_path: Path) -> PageCacheDemoter:
    return PageCacheDemoter(LOG, Path("/proc"), sysfs, tmp_path / "note")


def demote(
    demoter: PageCacheDemoter,
    now_s: float = 0.0,
    text: str = HEADROOM,
    topology: Topology = TOPOLOGY,
    *,
    damon_in_use: bool = False,
    paused: bool = False,
) -> frozenset[int]:
    """Adapt to a configuration; return the nodes whose page cache is demoted."""
    wanted = settings.cache_settings(loads(text, "test"))
    demoter.demote(wanted, topology, now_s, damon_in_use=damon_in_use, paused=paused)
    return demoter.nodes


@pytest.mark.parametrize(
    "off", ["{}", "migrate: {cache_headroom: 0%}", f"{HEADROOM[:-1]}, dry_run: true}}"]
)
def test_headroom_asked_for_and_no_more(
    demoter: PageCacheDemoter, sysfs: Path, damon_kernel: DamonKernel, off: str
) -> None:
    assert demote(demoter) == {0}
    assert demote(demoter, text=off) == frozenset()
    assert not damon_kernel.on()
    assert damon.Kdamonds(sysfs).count == 0


def test_paused_daemon_demotes_nothing(demoter: PageCacheDemoter) -> None:
    assert demote(demoter, paused=True) == frozenset()
    assert demote(demoter) == {0}
    demoter.close()
    assert demoter.nodes == frozenset()


def test_one_tier_claims_nothing(demoter: PageCacheDemoter, sysfs: Path) -> None:
    assert demote(demoter, topology=TOPOLOGY.without({1})) == frozenset()
    assert damon.Kdamonds(sysfs).count == 0


def test_damon_in_use_by_the_sampler_warned_of_once(
    demoter: PageCacheDemoter, caplog: pytest.LogCaptureFixture
) -> None:
    for tick in range(3):
        assert demote(demoter, tick * RETRY_S, damon_in_use=True) == frozenset()
    assert [record.getMessage() for record in caplog.records] == [
        "migrate.cache_headroom has no effect: DAMON is in use by the sampler"
    ]


def test_kdamond_taken_by_another_tried_again_later(
    demoter: PageCacheDemoter, sysfs: Path, damon_kernel: DamonKernel
) -> None:
    assert demote(demoter) == {0}
    count = damon_kernel.path / "nr_kdamonds"
    (damon_kernel.path / "0/state").write_text("off\n")
    damon_kernel.write(count, "0")
    for name in "abcdefgh":  # sysfs never uses an inode number again, as other file systems do
        (sysfs / name).mkdir()
    damon_kernel.write(count, "1")  # another program sets one up
    (damon_kernel.path / "0/contexts/nr_contexts").write_text("1\n")
    assert demote(demoter, 1.0) == frozenset()
    assert damon.Kdamonds(sysfs).count == 1  # left to it
    damon_kernel.write(count, "0")
    assert demote(demoter, 2.0) == frozenset()
    assert demote(demoter, RETRY_S) == {0}
