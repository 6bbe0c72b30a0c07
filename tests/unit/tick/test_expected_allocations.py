# SPDX-License-Identifier: MIT
"""What programs are expected to allocate, and the headroom that it becomes."""

from __future__ import annotations

import pytest

from hmd.base.units import MIB, PAGE_BYTES
from hmd.linux.procfs import ProcessId, ProcessStat
from hmd.linux.topology import Node, NodeMemory, Topology
from hmd.policy.nodes import MAX_ALLOCATION_SHARE, UNKNOWN_SHARE, nodes_of
from hmd.policy.plan import MachineView
from hmd.tick.estimates import FADE, MAX_READS, ExpectedAllocations, ProcessReadings

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


class Programs:
    """Processes of targets with their resident sizes, and the used memory of the machine."""

    def __init__(self, targets: dict[ProcessId, str]) -> None:
        self.targets = targets
        self.resident_mib = dict.fromkeys(targets, 0)
        self.reads = 0
        self._allocations, self._readings = ExpectedAllocations(), ProcessReadings()

    def stat(self, pid: int) -> ProcessStat | None:
        self.reads += 1
        for process, size_mib in self.resident_mib.items():
            if process.pid == pid:
                return ProcessStat(
                    pid, process.start_ticks, 1, b"program", b"R", 0, 0, size_mib * MIB
                )
        return None

    def tick(self, *used_mib: int, **resident_mib: int) -> int | None:
        """A tick with this much used per node; sizes of processes are by their names."""
        for name, size_mib in resident_mib.items():
            self.resident_mib[NAMED[name]] = size_mib
        processes = tuple(self.targets)
        names = tuple(self.targets.values())
        readings = self._readings.read_next(processes, self.stat)
        self._allocations.add_readings(memory(*used_mib), processes, names, readings)
        return self._allocations.expected_bytes

    def end(self, name: str) -> None:
        del self.resident_mib[NAMED[name]], self.targets[NAMED[name]]


NAMED = {"a": ProcessId(10, 1), "b": ProcessId(11, 1), "c": ProcessId(12, 1)}


def programs(**targets: str) -> Programs:
    return Programs({NAMED[name]: target for name, target in targets.items()})


def followed(*ticks: tuple[int, int, int]) -> int | None:
    """What is expected of the only program of a machine that uses this much at each tick."""
    alone = programs(a="one")
    for used in ticks:
        expected = alone.tick(*used, a=sum(used))
    return expected


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
    allocations = ExpectedAllocations()
    allocations.add_readings(memory(900, 0, 100), tuple(NAMED.values())[:1], ("one",), ())
    allocations.add_readings(memory(900, 0, 100)[:2], tuple(NAMED.values())[:1], ("one",), ())
    assert allocations.expected_bytes is None


def test_nothing_is_expected_for_what_a_program_of_no_target_gives_back() -> None:
    steady = programs(a="one")
    assert steady.tick(500, 0, 0, a=500) is None
    for _ in range(4):  # allocates and frees as it likes
        assert steady.tick(1000, 0, 0) == 0
        assert steady.tick(500, 0, 0) == 0


def test_room_that_another_target_takes_is_not_awaited() -> None:
    two = programs(a="one", b="two")
    two.tick(900, 0, 0, a=500, b=400)
    assert two.tick(800, 0, 0, a=400) == 100 * MIB
    assert two.tick(900, 0, 0, b=500) == 0
    assert two.tick(700, 0, 0, b=300) == 200 * MIB


def test_memory_of_a_process_that_exits_is_expected_while_its_target_goes_on() -> None:
    two = programs(a="one", b="one", c="two")
    two.tick(900, 0, 0, a=500, b=300, c=100)
    two.end("b")
    assert two.tick(600, 0, 0) == 300 * MIB
    two.end("a")
    assert two.tick(100, 0, 0) == 0


def test_fork_that_exits_gives_back_no_page_that_its_parent_has() -> None:
    forks = programs(a="one", b="one")
    forks.tick(500, 0, 0, a=500, b=500)
    forks.end("b")
    assert forks.tick(500, 0, 0) == 0


def test_pid_of_another_process_is_not_counted() -> None:
    reused = programs(a="one")
    reused.tick(500, 0, 0, a=500)
    reused.resident_mib = {ProcessId(10, 2): 0}
    assert reused.tick(100, 0, 0) == 0


def test_of_many_processes_some_are_read_per_tick_and_all_in_turn() -> None:
    count = 3 * MAX_READS
    many = Programs({ProcessId(pid, 1): "one" for pid in range(1, count + 1)})
    many.resident_mib = dict.fromkeys(many.resident_mib, 10)
    for _ in range(3):
        many.tick(900, 0, 0)
    assert many.reads == count
    many.resident_mib = dict.fromkeys(many.resident_mib, 9)
    expected = [many.tick(900 - count, 0, 0) or 0 for _ in range(3)]
    assert many.reads == 2 * count
    assert 0 < expected[0] < expected[1] < expected[2] <= count * MIB


@pytest.mark.parametrize(
    ("expected_mib", "kept_mib"),
    [(None, UNKNOWN_SHARE * 1024), (0, 4), (50, 50), (1000, MAX_ALLOCATION_SHARE * 1024)],
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
