# SPDX-License-Identifier: MIT
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hmd.base.errors import ConfigError, MissingError
from hmd.linux.topology import (
    Node,
    TierSource,
    Topology,
    abstract_distances,
    kernel_tiers,
    read_node_memory,
    read_node_use,
    read_topology,
    suggested_override,
    tier_warning,
)

MIB = 1 << 20


def test_topology_of_optane_server_read(machine: Callable[[str], Path]) -> None:
    topology = read_topology(machine("optane-2s") / "sys")
    assert [n.id for n in topology.nodes] == [0, 1, 2, 3]
    assert topology.tiers == ((0, 1), (2, 3))
    assert topology.tier_source == TierSource.KERNEL
    assert topology.nodes[0].cpus == (*range(24), *range(48, 72))
    assert topology.nodes[2].cpus == ()
    assert topology.nodes[2].total_bytes == 253952 * MIB
    assert topology.nodes[1].distances == (21, 10, 28, 17)
    assert topology.nodes[2].read_latency_ns is None
    assert tier_warning(topology) is None


def test_topology_of_cxl_machine_has_hmat_figures(machine: Callable[[str], Path]) -> None:
    dram, cxl = read_topology(machine("xeon6-cxl") / "sys").nodes
    assert (dram.read_latency_ns, dram.write_bandwidth_mbps) == (91, 176128)
    assert (cxl.read_latency_ns, cxl.write_latency_ns) == (1510, 390)
    assert (cxl.read_bandwidth_mbps, cxl.tier) == (98304, 1)


def test_abstract_distances_of_cxl_machine_match_kernel_tiers(
    machine: Callable[[str], Path],
) -> None:
    # The machine's kernel put this CXL device into memory_tier108 from the same figures.
    nodes = read_topology(machine("xeon6-cxl") / "sys").nodes
    assert {n: d >> 7 for n, d in abstract_distances(nodes).items()} == {0: 4, 1: 108}


def test_topology_smaller_tier_number_faster(machine: Callable[[str], Path]) -> None:
    topology = read_topology(machine("three-tier") / "sys")
    assert topology.tiers == ((1,), (0,), (2,))
    assert kernel_tiers(machine("three-tier") / "sys") == [(1,), (0,), (2,)]


def test_topology_without_kernel_tiers_ranked_by_hmat(machine_copy: Callable[[str], Path]) -> None:
    sysfs = without_kernel_tiers(machine_copy("xeon6-cxl"))
    topology = read_topology(sysfs)
    assert topology.tiers == ((0,), (1,))
    assert topology.tier_source == TierSource.HMAT
    assert tier_warning(topology) is None


def test_topology_without_kernel_tiers_and_hmat_cpuless_nodes_slower(
    machine_copy: Callable[[str], Path],
) -> None:
    topology = read_topology(without_kernel_tiers(machine_copy("optane-2s")))
    assert topology.tiers == ((0, 1), (2, 3))
    assert topology.tier_source == TierSource.GUESS


def test_topology_guess_warned_with_reversing_override(machine: Callable[[str], Path]) -> None:
    topology = read_topology(machine("xeon-max-flat") / "sys")
    assert topology.tier_source == TierSource.GUESS
    warning = tier_warning(topology)
    assert warning is not None
    assert "`machine: {tiers: [[2, 3], [0, 1]]}`" in warning
    turned = read_topology(machine("xeon-max-flat") / "sys", [[2, 3], [0, 1]])
    assert turned.tiers == ((2, 3), (0, 1))
    assert turned.tier_source == TierSource.CONFIGURATION
    assert tier_warning(turned) is None


def test_topology_with_partial_hmat_guessed(machine_copy: Callable[[str], Path]) -> None:
    root = machine_copy("xeon6-cxl")
    for access in ("access0", "access1"):
        (root / f"sys/devices/system/node/node1/{access}/initiators/read_latency").write_text("0\n")
        (root / f"sys/devices/system/node/node1/{access}/initiators/write_latency").unlink()
    assert read_topology(without_kernel_tiers(root)).tier_source == TierSource.GUESS


def test_topology_with_one_kernel_tier_warned_with_override(
    machine_copy: Callable[[str], Path],
) -> None:
    root = machine_copy("xeon6-cxl")
    tiering = root / "sys/devices/virtual/memory_tiering"
    (tiering / "memory_tier4/nodelist").write_text("0-1\n")
    (tiering / "memory_tier108/nodelist").unlink()
    topology = read_topology(root / "sys")
    assert topology.one_tier
    assert "tiers: [[0], [1]]" in str(tier_warning(topology))


def test_topology_with_two_equal_sockets_example_only(machine_copy: Callable[[str], Path]) -> None:
    root = machine_copy("optane-2s")
    topology = read_topology(root / "sys")
    sockets = Topology(topology.nodes[:2], tier_source=TierSource.KERNEL)
    assert suggested_override(sockets.nodes) is None
    assert "for instance" in str(tier_warning(sockets))


def test_topology_of_laptop_warning_names_emulation(machine: Callable[[str], Path]) -> None:
    topology = read_topology(machine("laptop") / "sys")
    assert topology.one_tier
    assert "hmd emulate" in str(tier_warning(topology))


def test_topology_memoryless_nodes_left_out_distances_kept(
    machine: Callable[[str], Path],
) -> None:
    topology = read_topology(machine("opteron-memoryless") / "sys")
    assert [n.id for n in topology.nodes] == [0]
    assert topology.nodes[0].distances == (10,)


def test_topology_node_ids_with_gaps_distances_match(write: Callable[[str, str], Path]) -> None:
    for node, cpus, row in ((0, "0-1", "10 12 40"), (3, "2-3", "12 10 50"), (7, "", "40 50 10")):
        folder = f"devices/system/node/node{node}"
        write(f"{folder}/cpulist", f"{cpus}\n")
        write(f"{folder}/distance", f"{row}\n")
        total = 0 if node == 3 else 1024
        root = write(f"{folder}/meminfo", f"Node {node} MemTotal: {total} kB\n").parents[4]
    nodes = read_topology(root).nodes
    assert [(n.id, n.distances) for n in nodes] == [(0, (10, 40)), (7, (40, 10))]


def test_topology_node_in_no_kernel_tier_slowest(machine_copy: Callable[[str], Path]) -> None:
    root = machine_copy("optane-2s")
    (root / "sys/devices/virtual/memory_tiering/memory_tier22/nodelist").write_text("2\n")
    assert read_topology(root / "sys").tiers == ((0, 1), (2,), (3,))


@pytest.mark.parametrize(
    ("tiers", "message"),
    [
        ([[0, 1], [2]], "node 3 is in no tier"),
        ([[0, 1], [2, 3, 9]], "node 9 has no memory"),
        ([[0, 1], [2, 3, 0]], "node 0 is named twice"),
    ],
)
def test_topology_invalid_override_refused(
    machine: Callable[[str], Path], tiers: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_topology(machine("optane-2s") / "sys", tiers)


def test_topology_without_nodes_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="CONFIG_NUMA"):
        read_topology(tmp_path)


def test_node_memory_follows_meminfo(machine_copy: Callable[[str], Path]) -> None:
    root = machine_copy("xeon6-cxl")
    topology = read_topology(root / "sys")
    before = read_node_memory(topology, root / "sys")
    assert [m.free_bytes for m in before] == [95000 * MIB, 128950 * MIB]
    meminfo = root / "sys/devices/system/node/node1/meminfo"
    meminfo.write_text("Node 1 MemTotal: 2048 kB\nNode 1 MemFree: 1024 kB\n")
    assert read_node_memory(topology, root / "sys")[1].free_bytes == MIB
    meminfo.unlink()
    assert read_node_memory(topology, root / "sys")[1].total_bytes == 0


@pytest.mark.parametrize(("share", "cache_mib"), [(0.0, 0), (0.25, 16), (1.0, 64)])
def test_node_memory_share_of_page_cache_is_room(
    machine_copy: Callable[[str], Path], share: float, cache_mib: int
) -> None:
    root = machine_copy("xeon6-cxl")
    topology = read_topology(root / "sys")
    (root / "sys/devices/system/node/node1/meminfo").write_text(
        "Node 1 MemTotal: 262144 kB\nNode 1 MemFree: 3072 kB\n"
        "Node 1 Active(file): 0 kB\nNode 1 Inactive(file): 65536 kB\n"
    )
    memory = read_node_memory(topology, root / "sys", {1: 2 * MIB}, share)[1]
    assert memory.cache_bytes == cache_mib * MIB
    assert memory.room_bytes == (3 - 2 + cache_mib) * MIB


def test_topology_of_this_machine_consistent() -> None:
    topology = read_topology()
    assert topology.nodes
    memory = read_node_memory(topology)
    assert all(0 < m.free_bytes <= m.total_bytes for m in memory)
    cpus = [cpu for node in topology.nodes for cpu in node.cpus]
    assert len(cpus) == len(set(cpus))
    assert all(n.distances[i] == 10 for i, n in enumerate(topology.nodes))


def test_abstract_distances_relative_to_node_with_cpus() -> None:
    def node(i: int, cpus: tuple[int, ...], latency: int, bandwidth: int) -> Node:
        return Node(i, cpus, 1, (), 0, latency, latency, bandwidth, bandwidth)

    nodes = [node(0, (0,), 100, 100), node(1, (), 100, 400), node(2, (), 300, 100)]
    assert abstract_distances(nodes) == {0: 576, 1: 144, 2: 1728}


def without_kernel_tiers(root: Path) -> Path:
    for nodelist in (root / "sys/devices/virtual/memory_tiering").glob("*/nodelist"):
        nodelist.unlink()
    return root / "sys"


def test_latency_that_no_memory_has_is_unknown(machine_copy: Callable[[str], Path]) -> None:
    root = machine_copy("xeon6-cxl")
    before = {node.id: node.read_latency_ns for node in read_topology(root / "sys").nodes}
    for file in root.rglob("node0/access*/initiators/read_latency"):
        file.write_text("4294967295\n")
    after = {node.id: node.read_latency_ns for node in read_topology(root / "sys").nodes}
    assert before[0]
    assert after == before | {0: None}


def test_nodes_without_any_cpu_are_not_said_to_be_slower_for_it(
    write: Callable[[str, str], Path],
) -> None:
    """A logical partition whose CPUs are all on a node without memory."""
    for node in (0, 1):
        folder = f"devices/system/node/node{node}"
        write(f"{folder}/cpulist", "\n")
        root = write(f"{folder}/meminfo", f"Node {node} MemTotal: 1024 kB\n").parents[4]
    warning = tier_warning(read_topology(root)) or ""
    assert "none has CPUs" in warning
    assert "slower: " not in warning


def test_pools_of_huge_pages_of_all_sizes_count(write: Callable[[str, str], Path]) -> None:
    folder = "devices/system/node/node0"
    write(f"{folder}/meminfo", "Node 0 MemTotal: 1024 kB\n")
    write(f"{folder}/hugepages/hugepages-2048kB/nr_hugepages", "40\n")
    root = write(f"{folder}/hugepages/hugepages-1048576kB/nr_hugepages", "1\n").parents[6]
    assert read_node_use(0, root).pool_bytes == (80 << 20) + (1 << 30)
