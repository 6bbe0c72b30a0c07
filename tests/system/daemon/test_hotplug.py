# SPDX-License-Identifier: MIT
"""Memory nodes added and removed while the daemon ticks; tests change a sysfs tree."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hmd.config.load import loads
from hmd.control.admin_store import AdminStore
from hmd.daemon.service import Service
from hmd.daemon.systemd import Notifier
from hmd.policy.admin import AdminState


class Nodes:
    """Nodes in a sysfs tree; node 0 has the CPUs."""

    def __init__(self, folder: Path) -> None:
        self.sysfs = folder
        self.folder = folder / "devices/system/node"
        self.sizes: dict[int, int] = {}

    def set(self, **mebibytes: int) -> None:
        """Have nodes, by names such as ``node0``, of so many MiB, and no others."""
        self.sizes = {int(name[4:]): size for name, size in mebibytes.items()}
        shutil.rmtree(self.folder, ignore_errors=True)
        for node, size in self.sizes.items():
            own = self.folder / f"node{node}"
            own.mkdir(parents=True)
            text = "".join(
                f"Node {node} {key}: {size << 10} kB\n" for key in ("MemTotal", "MemFree")
            )
            (own / "meminfo").write_text(text)
            (own / "cpulist").write_text("" if node else "0-1\n")
            row = " ".join("10" if other == node else "20" for other in self.sizes)
            (own / "distance").write_text(f"{row}\n")
        self.tell()

    def tell(self, text: str | None = None) -> None:
        """Write the list of nodes with memory."""
        self.folder.mkdir(parents=True, exist_ok=True)
        listed = text if text is not None else ",".join(map(str, self.sizes))
        (self.folder / "has_memory").write_text(f"{listed}\n")


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    made = Nodes(tmp_path / "sys")
    made.set(node0=512)
    return made


def started(tmp_path: Path, nodes: Nodes, machine: str = "") -> Service:
    text = (
        f"tick: 50ms\n{machine}targets: [{{name: one, pid: 1}}]\nsample: {{sampler: faults}}\n"
        f"decide: {{policy: heat-classes}}\n"
        f"observe: {{metrics: 'off', socket: {tmp_path}/hmd.sock}}\n"
    )
    return Service(lambda: loads(text, "test"), "test", Notifier({}), sysfs=nodes.sysfs)


@pytest.fixture
def service(tmp_path: Path, nodes: Nodes) -> Iterator[Service]:
    made = started(tmp_path, nodes)
    made.tick(0.0)
    yield made
    made.close()


def tiers(service: Service) -> tuple[tuple[int, ...], ...]:
    return service.observer.latest.tiers


def test_added_node_becomes_a_tier_and_heat_is_kept(service: Service, nodes: Nodes) -> None:
    heat, samples = service.stages.state.heat, service.stages.sampler
    assert tiers(service) == ((0,),)
    nodes.set(node0=512, node2=256)
    tick = service.tick(1.0)
    assert tiers(service) == ((0,), (2,))
    assert not tick.failed
    # What was learned is kept, and goes on with the new node.
    assert service.stages.state.heat is heat
    assert service.stages.sampler is samples
    assert len(heat.loaded_latency_ns) == 3
    assert service.observer.latest.nodes[1].total_bytes == 256 << 20
    assert [memory.node for memory in service.stages.state.memory] == [0, 2]


def test_removed_node_leaves_tiers_and_stays_drained(service: Service, nodes: Nodes) -> None:
    nodes.set(node0=512, node1=256)
    service.tick(1.0)
    service.stages.admin.drain(frozenset({1}))
    nodes.set(node0=512)
    tick = service.tick(2.0)
    assert (tiers(service), tick.failed) == (((0,),), frozenset())
    (drain,) = service.observer.latest.control.drains
    assert (drain.node, drain.there, drain.settled) == (1, False, True)
    # It stays drained until an undrain, also after it comes back.
    nodes.set(node0=512, node1=256)
    service.tick(3.0)
    assert service.observer.latest.control.drains[0].there


def test_drain_outlives_a_restart_where_a_node_is_left(tmp_path: Path, nodes: Nodes) -> None:
    state, drained = tmp_path / "state", AdminState()
    state.mkdir()
    drained.drain(frozenset({1}))
    AdminStore(state).save(drained)
    kept = f"state_dir: {state}\n"
    nodes.set(node0=512, node1=256)
    service = started(tmp_path, nodes, kept)
    try:
        assert not service.tick(0.0).failed
        control = service.observer.latest.control
        assert [drain.node for drain in control.drains] == [1]
        assert (control.restored, control.not_restored) == ("node 1 drained", "")
    finally:
        service.close()
    nodes.set(node1=256)
    service = started(tmp_path, nodes, kept)
    try:
        assert not service.tick(0.0).failed
        control = service.observer.latest.control
        assert (control.drains, control.restored) == ((), "")
        assert control.not_restored == "drain of node 1: no node would be left"
    finally:
        service.close()


def test_grown_node_keeps_stages_and_tick_count(service: Service, nodes: Nodes) -> None:
    stages, ticks = service.stages, service.observer.latest.ticks
    nodes.set(node0=768)
    for second in (1.0, 2.0):
        service.tick(second)
    assert service.observer.latest.nodes[0].total_bytes == 768 << 20
    assert service.stages is stages
    assert service.observer.latest.ticks == ticks + 2


def test_node_without_memory_size_is_added_once_it_has_one(service: Service, nodes: Nodes) -> None:
    nodes.tell("0,1")
    service.tick(1.0)
    assert tiers(service) == ((0,),)
    nodes.set(node0=512, node1=256)
    service.tick(2.0)
    assert tiers(service) == ((0,), (1,))


def test_unreadable_node_list_is_logged_once_and_changes_nothing(
    service: Service, nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    stages = service.stages
    shutil.rmtree(nodes.folder)
    for second in range(1, 8):
        assert service.tick(float(second)).now_s == second
    assert service.stages is stages
    assert caplog.text.count("no memory nodes in") == 1
    nodes.set(node0=512, node1=128)
    service.tick(9.0)
    assert tiers(service) == ((0,), (1,))


def test_added_node_without_configured_tier_is_slowest(
    tmp_path: Path, nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.set(node0=512, node1=512)
    service = started(tmp_path, nodes, "machine: {tiers: [[1], [0]]}\n")
    service.tick(0.0)
    assert tiers(service) == ((1,), (0,))
    nodes.set(node0=512, node1=512, node3=64)
    service.tick(1.0)
    assert tiers(service) == ((1,), (0,), (3,))
    nodes.set(node0=512)
    service.tick(2.0)
    assert tiers(service) == ((0,),)
    # A reload warns of what the configuration names and the machine lacks now.
    assert service.reload()
    assert "machine.tiers: node 1 has no memory here" in caplog.text
    service.close()


def test_admin_state_survives_rebuilt_stages(service: Service, nodes: Nodes) -> None:
    service.stages.admin.paused = True
    nodes.set(node0=512, node1=256)
    service.tick(1.0)
    assert service.stages.admin.paused
    service.set_policy(None)
    assert service.stages.admin.paused


def test_removal_of_last_undrained_node_does_not_fail_ticks(service: Service, nodes: Nodes) -> None:
    """Nothing is left to plan with: ticks go on."""
    nodes.set(node0=512, node1=256)
    service.tick(1.0)
    service.stages.admin.drain(frozenset({1}))
    nodes.set(node1=256)
    for second in (2.0, 3.0):
        assert not service.tick(second).failed
