# SPDX-License-Identifier: MIT
"""Processes that share an address space are tracked as one, by an order of address spaces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hmd.linux.procfs import ProcessId
from hmd.residency.address_spaces import AddressSpaceOwners


class Spaces:
    """The address space of each pid, a number; ``asked`` counts comparisons."""

    def __init__(self, space: dict[int, int]) -> None:
        self.space, self.asked = space, 0

    def compare(self, first: ProcessId, second: ProcessId) -> int | None:
        self.asked += 1
        if first.pid not in self.space or second.pid not in self.space:
            return None
        a, b = self.space[first.pid], self.space[second.pid]
        return (a > b) - (a < b)


def setting(space: dict[int, int]) -> tuple[Spaces, AddressSpaceOwners, list[ProcessId]]:
    spaces = Spaces(space)
    owners, processes = AddressSpaceOwners(spaces.compare), [ProcessId(pid, 1) for pid in space]
    owners.retain_processes(processes)
    return spaces, owners, processes


def found(owners: AddressSpaceOwners, processes: list[ProcessId]) -> list[int]:
    return [owners.find_owner(process).pid for process in processes]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=40))
def test_owner_of_any_spaces_is_the_first_of_each(numbers: list[int]) -> None:
    _, owners, processes = setting(dict(enumerate(numbers)))
    first = [numbers.index(number) for number in numbers]
    for _ in range(2):
        assert found(owners, processes) == first
    slots = owners.owner_slots()
    assert first == (list(range(len(numbers))) if slots is None else slots.tolist())


def test_process_that_executes_a_program_has_a_space_of_its_own() -> None:
    spaces, owners, processes = setting({1: 7, 2: 7, 3: 7, 4: 2, 5: 9})
    assert found(owners, processes) == [1, 1, 1, 4, 5]
    spaces.space[2] = 100
    assert found(owners, processes) == [1, 2, 1, 4, 5]
    # The owner too: of the others, one takes over.
    spaces.space[1] = 1
    assert found(owners, processes) == [1, 2, 3, 4, 5]
    spaces.space[5] = 1
    assert found(owners, processes) == [1, 2, 3, 4, 1]


def test_owner_that_exits_another_takes_over() -> None:
    _, owners, processes = setting({1: 7, 2: 7, 3: 7})
    found(owners, processes)
    owners.retain_processes(processes[1:])
    assert found(owners, processes[1:]) == [2, 2]
    slots = owners.owner_slots()
    assert slots is not None
    assert slots.tolist() == [0, 0]


def test_spaces_that_cannot_be_compared_are_processes_own() -> None:
    owners = AddressSpaceOwners(lambda first, second: None)
    processes = [ProcessId(pid, 1) for pid in range(5)]
    owners.retain_processes(processes)
    for _ in range(2):
        assert found(owners, processes) == list(range(5))
    assert owners.owner_slots() is None


def test_owners_of_many_processes_found_in_few_comparisons() -> None:
    spaces, owners, processes = setting({pid: pid * 7919 % 10007 for pid in range(4096)})
    found(owners, processes)
    assert spaces.asked < 13 * 4096
