"""The demotion of page cache in the daemon: when it claims DAMON, and what it says where it cannot.

DAMON is a tree of files here; the kernel's is used in tests/vm/dram_pm/test_page_cache.py.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from hmd.config import Config, loads
from hmd.control.admin_state import AdminState
from hmd.daemon.cache_upkeep import RETRY_S, CacheUpkeep
from hmd.daemon.stages import Stages
from hmd.machine.damon import damon_sysfs
from hmd.machine.nodes.topology import Node, Topology
from hmd.sample.capabilities import Capabilities
from tests.fakes.damon_kernel import DamonKernel

LOG = logging.getLogger("test_cache_upkeep")


@dataclass
class NamedSampler:
    capabilities: Capabilities = field(default_factory=Capabilities)


@dataclass
class SomeStages:
    """What the upkeep reads of the stages."""

    config: Config
    sysfs: Path
    topology: Topology
    sampler: NamedSampler = field(default_factory=NamedSampler)
    admin: AdminState = field(default_factory=AdminState)
    proc: Path = Path("/proc")

    def configure(self, text: str) -> None:
        self.config = loads(text, "test")


HEADROOM = "migrate: {cache_headroom: 25%}"


@pytest.fixture
def stages(damon_kernel: DamonKernel, monkeypatch: pytest.MonkeyPatch) -> SomeStages:
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
    monkeypatch.setattr(damon_sysfs.Kdamonds.__init__, "__defaults__", (damon_kernel.write, 0.1))
    topology = Topology((Node(0, (0,), 1 << 30, (10, 17), 0), Node(1, (), 1 << 30, (17, 10), 1)))
    return SomeStages(loads(HEADROOM, "test"), sysfs, topology)


@pytest.fixture
def upkeep(tmp_path: Path) -> CacheUpkeep:
    return CacheUpkeep(LOG, tmp_path / "note")


def follow(upkeep: CacheUpkeep, stages: SomeStages, now_s: float = 0.0) -> frozenset[int]:
    upkeep.follow(cast(Stages, stages), now_s)
    return upkeep.active


@pytest.mark.parametrize(
    "off", ["{}", "migrate: {cache_headroom: 0%}", f"{HEADROOM[:-1]}, dry_run: true}}"]
)
def test_headroom_asked_for_and_no_more(
    upkeep: CacheUpkeep, stages: SomeStages, damon_kernel: DamonKernel, off: str
) -> None:
    assert follow(upkeep, stages) == {0}
    stages.configure(off)
    assert follow(upkeep, stages) == frozenset()
    assert not damon_kernel.on()
    assert damon_sysfs.Kdamonds(stages.sysfs).count == 0


def test_paused_daemon_demotes_nothing(upkeep: CacheUpkeep, stages: SomeStages) -> None:
    stages.admin.paused = True
    assert follow(upkeep, stages) == frozenset()
    stages.admin.paused = False
    assert follow(upkeep, stages) == {0}
    upkeep.close()
    assert upkeep.active == frozenset()


def test_one_tier_claims_nothing(upkeep: CacheUpkeep, stages: SomeStages) -> None:
    stages.topology = stages.topology.without({1})
    assert follow(upkeep, stages) == frozenset()
    assert damon_sysfs.Kdamonds(stages.sysfs).count == 0


def test_damon_in_use_by_the_sampler_warned_of_once(
    upkeep: CacheUpkeep, stages: SomeStages, caplog: pytest.LogCaptureFixture
) -> None:
    stages.sampler = NamedSampler(Capabilities(exclusive=True))
    for tick in range(3):
        assert follow(upkeep, stages, tick * RETRY_S) == frozenset()
    assert [record.getMessage() for record in caplog.records] == [
        "migrate.cache_headroom has no effect: DAMON is in use by the sampler"
    ]


def test_kdamond_taken_by_another_tried_again_later(
    upkeep: CacheUpkeep, stages: SomeStages, damon_kernel: DamonKernel
) -> None:
    assert follow(upkeep, stages) == {0}
    count = damon_kernel.path / "nr_kdamonds"
    (damon_kernel.path / "0/state").write_text("off\n")
    damon_kernel.write(count, "0")
    for name in "abcdefgh":  # sysfs never uses an inode number again, as other file systems do
        (stages.sysfs / name).mkdir()
    damon_kernel.write(count, "1")  # another program sets one up
    (damon_kernel.path / "0/contexts/nr_contexts").write_text("1\n")
    assert follow(upkeep, stages, 1.0) == frozenset()
    assert damon_sysfs.Kdamonds(stages.sysfs).count == 1  # left to it
    damon_kernel.write(count, "0")
    assert follow(upkeep, stages, 2.0) == frozenset()
    assert follow(upkeep, stages, RETRY_S) == {0}
