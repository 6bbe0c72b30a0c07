"""Forks of one program, by age, and which of them a sweep has reached since the last fork.

A fork must not take from its parent what the parent counts: it waits until all older processes are
settled, that is, were swept after the last fork of the family.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from hmd.machine.process_id import ProcessId

_Age: TypeAlias = tuple[int, int]
"""Start time and pid: less for an older process."""


@dataclass(slots=True)
class _Family:
    """Its members by age; ``forks`` counts those that joined.

    ``swept`` has what ``forks`` was when the last complete sweep of a member began. All members
    before place ``settled`` are settled.
    """

    members: list[_Age] = field(default_factory=list)
    forks: int = 0
    settled: int = 0
    swept: dict[_Age, int] = field(default_factory=dict)


class ForkFamilies:
    """The families of tracked processes, by what their members have in common."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._key: dict[ProcessId, str] = {}
        self._begun: dict[ProcessId, int] = {}

    def join(self, process: ProcessId, key: str) -> None:
        """Put a process into a family, into none for an empty key."""
        if self._key.get(process, "") == key:
            return
        self.leave(process)
        if key:
            family = self._families.setdefault(key, _Family())
            insort(family.members, _age(process))
            family.forks += 1
            family.settled = 0
            self._key[process] = key

    def leave(self, process: ProcessId) -> None:
        """Take a process out of its family."""
        key = self._key.pop(process, "")
        self._begun.pop(process, None)
        if not key:
            return
        family, age = self._families[key], _age(process)
        place = bisect_left(family.members, age)
        del family.members[place]
        family.swept.pop(age, None)
        family.settled -= place < family.settled
        if not family.members:
            del self._families[key]

    def keep(self, processes: Iterable[ProcessId]) -> set[str]:
        """Forget all other processes; return their families."""
        gone = self._key.keys() - set(processes)
        families = {self._key[process] for process in gone}
        for process in gone:
            self.leave(process)
        return families

    def key(self, process: ProcessId) -> str:
        """Return the family of a process that has others in it; else nothing."""
        key = self._key.get(process, "")
        return key if key and len(self._families[key].members) > 1 else ""

    def alone(self, key: str) -> list[ProcessId]:
        """Return the member of a family of one; else nothing."""
        return self._of(key, 1)

    def pair(self, key: str) -> list[ProcessId]:
        """Return the members of a family of two, the older first; else nothing."""
        return self._of(key, 2)

    def _of(self, key: str, size: int) -> list[ProcessId]:
        family = self._families.get(key)
        if family is None or len(family.members) != size:
            return []
        return [ProcessId(pid, start) for start, pid in family.members]

    def begun(self, process: ProcessId) -> None:
        """Note that a sweep of a process begins."""
        key = self._key.get(process)
        if key is not None:
            self._begun[process] = self._families[key].forks

    def swept(self, process: ProcessId) -> None:
        """Note that it is complete."""
        begun = self._begun.pop(process, None)
        if begun is not None:
            self._families[self._key[process]].swept[_age(process)] = begun

    def waits(self, process: ProcessId) -> bool:
        """Return whether an older process of its family is not settled yet."""
        family = self._families[self._key[process]]
        members, swept = family.members, family.swept
        while family.settled < len(members):
            if swept.get(members[family.settled]) != family.forks:
                break
            family.settled += 1
        return family.settled < len(members) and members[family.settled] < _age(process)


def _age(process: ProcessId) -> _Age:
    return process.start_ticks, process.pid
