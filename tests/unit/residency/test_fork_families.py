# SPDX-License-Identifier: MIT
"""Families of forks: who is the oldest, and who waits for whom."""

from __future__ import annotations

from hmd.linux.procfs import ProcessId
from hmd.residency.forks import ForkFamilies

PARENT, CHILD, GRANDCHILD = ProcessId(90, 1), ProcessId(20, 2), ProcessId(30, 2)


def family() -> ForkFamilies:
    families = ForkFamilies()
    for process in (CHILD, PARENT, GRANDCHILD):
        families.join(process, "program")
    return families


def sweep(families: ForkFamilies, process: ProcessId) -> None:
    families.begin_sweep(process)
    families.end_sweep(process)


def test_process_alone_has_no_family() -> None:
    families = ForkFamilies()
    families.join(PARENT, "program")
    families.join(CHILD, "another")
    assert families.key(PARENT) == families.key(CHILD) == ""


def test_younger_waits_until_all_older_are_swept() -> None:
    families = family()
    assert [families.waits(p) for p in (PARENT, CHILD, GRANDCHILD)] == [False, True, True]
    sweep(families, CHILD)
    assert families.waits(GRANDCHILD)
    sweep(families, PARENT)
    assert not families.waits(CHILD)
    assert not families.waits(GRANDCHILD)


def test_sweep_that_began_before_a_fork_settles_nobody() -> None:
    families = family()
    families.begin_sweep(PARENT)
    families.join(ProcessId(40, 3), "program")
    families.end_sweep(PARENT)
    assert families.waits(CHILD)
    sweep(families, PARENT)
    assert not families.waits(CHILD)


def test_exit_of_an_unsettled_parent_lets_others_go_on() -> None:
    families = family()
    sweep(families, CHILD)
    assert families.waits(GRANDCHILD)
    assert families.retain_processes([CHILD, GRANDCHILD]) == {"program"}
    assert not families.waits(GRANDCHILD)


def test_exec_leaves_the_family() -> None:
    families = family()
    assert families.members_of("program", 2) == []
    families.join(GRANDCHILD, "executed")
    assert families.key(GRANDCHILD) == ""
    assert families.members_of("program", 2) == [PARENT, CHILD]
    assert families.members_of("executed", 1) == [GRANDCHILD]
    families.join(CHILD, "")
    assert families.key(PARENT) == ""
    assert families.members_of("program", 1) == [PARENT]
