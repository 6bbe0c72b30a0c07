# SPDX-License-Identifier: MIT
"""The mover with the real kernel of this host, of which one node is enough."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from hmd.linux.mappings import MappingKind, Mappings, read_mappings
from hmd.linux.procfs import ProcessId, identify
from hmd.migrate import MovableMappings, Mover, MoveStatus
from tests.fakes.move_pages_kernel import PAGE, make_plan


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a heap and code that sits in a read and stays as it is."""
    command = ["sh", "-c", "x=$(seq 20000); echo ready; read y"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def identity_of(child: subprocess.Popen[bytes]) -> ProcessId:
    process = identify(child.pid)
    assert process is not None
    return process


def mappings_of(child: subprocess.Popen[bytes]) -> Mappings:
    mappings = read_mappings(child.pid)
    assert mappings is not None
    return mappings


def in_mappings(mappings: Mappings, chosen: np.ndarray) -> np.ndarray:
    spans = zip(mappings.start[chosen].tolist(), mappings.end[chosen].tolist(), strict=True)
    return np.concatenate([np.arange(start, end, PAGE, dtype=np.uint64) for start, end in spans])


def rows(addresses: np.ndarray, target: int) -> list[tuple[int, int, int, int, int]]:
    return [(0, address, 1, 1, target) for address in addresses.tolist()]


def test_mover_to_the_own_node_reports_already_there(child: subprocess.Popen[bytes]) -> None:
    process = identity_of(child)
    mappings = mappings_of(child)
    heap = in_mappings(mappings, mappings.kind == MappingKind.HEAP)
    outcome = Mover().apply(make_plan([process], rows(heap, 0)))
    assert set(outcome.pages) <= {
        MoveStatus.ALREADY_THERE,
        MoveStatus.NOT_PRESENT,
        MoveStatus.UNMOVABLE,
    }
    assert outcome.pages[MoveStatus.ALREADY_THERE] >= 10


def test_mover_to_absent_node_reports_offline(child: subprocess.Popen[bytes]) -> None:
    process = identity_of(child)
    mappings = mappings_of(child)
    heap = in_mappings(mappings, mappings.kind == MappingKind.HEAP)
    outcome = Mover().apply(make_plan([process], rows(heap, 99)))
    assert outcome.pages[MoveStatus.OFFLINE] >= 10
    assert outcome.moved == {}
    assert outcome.calls == 1


def test_mover_skips_executable_mappings(child: subprocess.Popen[bytes]) -> None:
    process = identity_of(child)
    mappings = mappings_of(child)
    code = in_mappings(mappings, mappings.executable_file)
    outcome = Mover().apply(make_plan([process], rows(code, 99)))
    assert outcome.pages[MoveStatus.SKIPPED] > 0
    assert MoveStatus.OFFLINE not in outcome.pages
    assert outcome.calls == 0


def test_page_filter_of_ended_process_keeps_all_rows(
    child: subprocess.Popen[bytes],
) -> None:
    process = identity_of(child)
    child.kill()
    child.wait()
    assert MovableMappings()(process, np.array([PAGE], np.uint64)).all()


def test_mover_of_ended_process_reports_gone(child: subprocess.Popen[bytes]) -> None:
    process = identity_of(child)
    mappings = mappings_of(child)
    heap = in_mappings(mappings, mappings.kind == MappingKind.HEAP)
    child.kill()
    child.wait()
    outcome = Mover().apply(make_plan([process], rows(heap, 0)))
    assert set(outcome.pages) == {MoveStatus.GONE}


def test_mover_of_reused_pid_reports_gone(child: subprocess.Popen[bytes]) -> None:
    stranger = ProcessId(child.pid, 1)
    assert identify(child.pid) != stranger
    outcome = Mover().apply(make_plan([stranger], rows(np.array([PAGE], np.uint64), 0)))
    assert set(outcome.pages) == {MoveStatus.GONE}


def test_mover_leaks_no_memory_or_descriptors(child: subprocess.Popen[bytes]) -> None:
    process = identity_of(child)
    mappings = mappings_of(child)
    heap = in_mappings(mappings, mappings.kind == MappingKind.HEAP)
    plan = make_plan([process], rows(heap, 99))
    mover, own = Mover(), psutil.Process()
    for _ in range(100):
        mover.apply(plan)
    resident, descriptors = own.memory_info().rss, own.num_fds()
    for _ in range(400):
        mover.apply(plan)
    assert own.num_fds() == descriptors
    assert own.memory_info().rss - resident < 1 << 20
