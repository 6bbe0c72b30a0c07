# SPDX-License-Identifier: MIT
"""The demotion of page cache: which kdamonds run at which free memory, and how they are set up.

DAMON is a tree of files here; what the kernel does by them is tested in the emulated machine
(tests/vm/dram_pm/test_page_cache.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hmd.base.errors import MissingError
from hmd.linux.damon import CacheWatch, Kdamonds
from hmd.linux.topology import Node, Topology
from hmd.migrate.cache_demotion import CacheDemotion, CacheSettings, nearest_slower
from tests.fakes.damon_kernel import DamonKernel

GIB_KIB = 1 << 20
WATCH = CacheWatch(age_s=4.0, bytes_per_s=1 << 28, cpu_share=0.01)


def two_sockets() -> Topology:
    """Two nodes of DRAM, each with a node of PM behind it."""
    far = ((10, 20, 17, 28), (20, 10, 28, 17), (17, 28, 10, 28), (28, 17, 28, 10))
    return Topology(tuple(Node(i, (), 1 << 30, far[i], i // 2) for i in range(4)))


def set_memory(sysfs: Path, node: int, free_kib: int, cache_kib: int) -> None:
    folder = sysfs / f"devices/system/node/node{node}"
    (folder / f"memory{node}").mkdir(parents=True, exist_ok=True)
    (folder / "meminfo").write_text(
        f"Node {node} MemTotal: {GIB_KIB} kB\nNode {node} MemFree: {free_kib} kB\n"
        f"Node {node} FilePages: {cache_kib} kB\nNode {node} Mapped: 0 kB\n"
    )


@pytest.fixture
def sysfs(damon_kernel: DamonKernel) -> Path:
    blocks = damon_kernel.sysfs / "devices/system/memory"
    blocks.mkdir(parents=True)
    (blocks / "block_size_bytes").write_text("40000000\n")
    for node in (0, 1):
        set_memory(damon_kernel.sysfs, node, free_kib=GIB_KIB // 2, cache_kib=GIB_KIB // 4)
    return damon_kernel.sysfs


@pytest.fixture
def demotion(sysfs: Path, damon_kernel: DamonKernel, tmp_path: Path) -> Iterator[CacheDemotion]:
    made = opened(sysfs, damon_kernel, tmp_path)
    yield made
    made.close()


def opened(sysfs: Path, kernel: DamonKernel, folder: Path) -> CacheDemotion:
    return CacheDemotion(
        CacheSettings(0.25, WATCH),
        two_sockets(),
        sysfs=sysfs,
        note=folder / "note",
        kdamonds=Kdamonds(sysfs, kernel.write, busy_s=0.1),
    )


def test_node_short_of_memory_has_its_cache_demoted_until_headroom_is_free(
    demotion: CacheDemotion, sysfs: Path, damon_kernel: DamonKernel
) -> None:
    demotion.update()
    assert demotion.active == frozenset()
    set_memory(sysfs, 1, free_kib=GIB_KIB // 5, cache_kib=GIB_KIB // 4)
    demotion.update()
    assert demotion.active == {1}
    assert (damon_kernel.on(0), damon_kernel.on(1)) == (False, True)
    set_memory(sysfs, 1, free_kib=GIB_KIB // 4 + 1, cache_kib=GIB_KIB // 5)
    demotion.update()
    assert demotion.active == {1}  # a little beyond the headroom, not to start again at once
    set_memory(sysfs, 1, free_kib=GIB_KIB // 3, cache_kib=GIB_KIB // 6)
    demotion.update()
    assert demotion.active == frozenset()


def test_node_without_page_cache_is_left_alone(demotion: CacheDemotion, sysfs: Path) -> None:
    set_memory(sysfs, 0, free_kib=0, cache_kib=GIB_KIB // 2048)
    demotion.update()
    assert demotion.active == frozenset()


def test_paused_demotion_stops(demotion: CacheDemotion, sysfs: Path) -> None:
    set_memory(sysfs, 0, free_kib=0, cache_kib=GIB_KIB // 2)
    demotion.update()
    assert demotion.active == {0}
    demotion.update(paused=True)
    assert demotion.active == frozenset()


def test_kdamond_demotes_files_pages_without_access_to_the_nearest_slower_node(
    demotion: CacheDemotion, sysfs: Path, damon_kernel: DamonKernel
) -> None:
    set_memory(sysfs, 1, free_kib=0, cache_kib=GIB_KIB // 2)
    demotion.update()
    context = damon_kernel.path / "1/contexts/0"

    def read(name: str) -> str:
        return (context / name).read_text().strip()

    assert read("operations") == "paddr"
    assert damon_kernel.path.joinpath("1/contexts/nr_contexts").read_text() == "1\n"
    assert (read("targets/0/regions/0/start"), read("targets/0/regions/0/end")) == (
        str(1 << 30),
        str(2 << 30),
    )
    assert read("schemes/0/action") == "migrate_cold"
    assert read("schemes/0/target_nid") == "3"
    assert read("schemes/0/access_pattern/nr_accesses/max") == "0"
    window_us = int(read("monitoring_attrs/intervals/aggr_us"))
    assert window_us * int(read("schemes/0/access_pattern/age/min")) == 4_000_000
    assert read("schemes/0/quotas/bytes") == str(1 << 28)
    assert read("schemes/0/quotas/ms") == "10"
    assert [read(f"schemes/0/filters/{i}/type") for i in (0, 1)] == ["anon", "young"]
    assert [read(f"schemes/0/filters/{i}/matching") for i in (0, 1)] == ["Y", "Y"]


def test_demotion_closed_gives_damon_back(
    sysfs: Path, damon_kernel: DamonKernel, tmp_path: Path
) -> None:
    made = opened(sysfs, damon_kernel, tmp_path)
    set_memory(sysfs, 0, free_kib=0, cache_kib=GIB_KIB // 2)
    made.update()
    made.close()
    assert Kdamonds(sysfs).count == 0
    opened(sysfs, damon_kernel, tmp_path).close()


def test_demotion_where_damon_is_in_use_refused(
    sysfs: Path, damon_kernel: DamonKernel, tmp_path: Path, demotion: CacheDemotion
) -> None:
    assert demotion.active == frozenset()
    with pytest.raises(MissingError, match="in use by another hmd"):
        opened(sysfs, damon_kernel, tmp_path)


def test_node_with_unknown_addresses_refused(
    sysfs: Path, damon_kernel: DamonKernel, tmp_path: Path
) -> None:
    (sysfs / "devices/system/memory/block_size_bytes").unlink()
    with pytest.raises(MissingError, match="addresses of node 0, 1"):
        opened(sysfs, damon_kernel, tmp_path)
    assert Kdamonds(sysfs).count == 0


def test_nearest_slower_node_by_distance() -> None:
    topology = two_sockets()
    assert [nearest_slower(topology, node) for node in topology.nodes] == [2, 3, None, None]
