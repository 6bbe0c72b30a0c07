"""What programs are expected to allocate, and the headroom that it becomes."""

from __future__ import annotations

import pytest

from hmd.decide.node_arrays import ALLOCATION_MOST, UNKNOWN_SHARE, nodes_of
from hmd.decide.plan import MachineView
from hmd.machine.topology import Node, NodeMemory, Topology
from hmd.pipeline.allocation_watch import FADE, AllocationWatch
from hmd.units import MIB, PAGE_BYTES

FAST, MIDDLE, SLOW = 1024 * MIB, 2048 * MIB, 8192 * MIB
TOPOLOGY = Topology(
    (
        Node(0, (0,), FAST, (10, 20, 30), 0),
        Node(1, (), MIDDLE, (20, 10, 30), 1),
        Node(2, (), SLOW, (30, 20, 10), 2),
    )
)


def memory(*used_mib: int) -> tuple[NodeMemory, ...]:
    totals = (FAST, MIDDLE, SLOW)
    return tuple(
        NodeMemory(node, totals[node], totals[node] - used * MIB)
        for node, used in enumerate(used_mib)
    )


def followed(*ticks: tuple[int, int, int]) -> int | None:
    watch = AllocationWatch()
    for used in ticks:
        watch.follow(memory(*used))
    return watch.expected_bytes


def test_nothing_is_known_at_the_first_tick() -> None:
    assert followed((900, 0, 0)) is None


def test_nothing_is_expected_of_programs_that_only_grow() -> None:
    assert followed((100, 0, 0), (500, 0, 0), (900, 100, 0)) == 0


def test_what_is_given_back_is_expected_until_it_is_allocated() -> None:
    assert followed((900, 0, 100), (800, 0, 100)) == 100 * MIB
    faded = round(100 * (1 - FADE) * MIB)
    assert followed((900, 0, 100), (800, 0, 100), (800, 0, 100)) == faded
    assert followed((900, 0, 100), (800, 0, 100), (840, 0, 100)) == faded - 40 * MIB
    assert followed((900, 0, 100), (800, 0, 100), (900, 100, 100)) == 0


def test_moves_between_nodes_are_no_allocations() -> None:
    assert followed((900, 0, 100), (500, 200, 300), (900, 0, 100)) == 0


def test_nodes_that_come_or_go_are_no_frees() -> None:
    watch = AllocationWatch()
    watch.follow(memory(900, 0, 100))
    watch.follow(memory(900, 0, 100)[:2])
    assert watch.expected_bytes is None


@pytest.mark.parametrize(
    ("expected_mib", "kept_mib"),
    [(None, UNKNOWN_SHARE * 1024), (0, 4), (50, 50), (1000, ALLOCATION_MOST * 1024)],
)
def test_automatic_headroom_is_what_is_expected_up_to_an_eighth(
    expected_mib: int | None, kept_mib: float
) -> None:
    expected = None if expected_mib is None else expected_mib * MIB
    machine = MachineView(TOPOLOGY, memory(0, 0, 0), 0.0, 1.0, MIB, allocation_bytes=expected)
    kept = nodes_of(machine, None, 4 * MIB).headroom * PAGE_BYTES
    others = [int(UNKNOWN_SHARE * MIDDLE) // PAGE_BYTES * PAGE_BYTES, 4 * MIB]
    assert kept[0] == pytest.approx(kept_mib * MIB, abs=PAGE_BYTES)
    assert kept[1:].tolist() == others


def test_headroom_that_is_set_does_not_follow_allocations() -> None:
    machine = MachineView(TOPOLOGY, memory(0, 0, 0), 0.0, 1.0, MIB, allocation_bytes=50 * MIB)
    kept = nodes_of(machine, 0.25, 4 * MIB).headroom * PAGE_BYTES
    assert kept.tolist() == [FAST // 4, MIDDLE // 4, 4 * MIB]
