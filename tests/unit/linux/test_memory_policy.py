# SPDX-License-Identifier: MIT
"""Memory policies of processes, from the text of numa_maps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hmd.linux.memory_policy import (
    MAX_TABLE_BYTES,
    MemoryBindings,
    bound_processes,
    parse_numa_maps,
    read_bindings,
)
from hmd.linux.procfs import ProcessId

# Lines as mm/mempolicy.c (mpol_to_str()) and fs/proc/task_mmu.c print them.
ONE_MAPPING = """\
00400000 default file=/usr/bin/prog mapped=31 N0=31 kernelpagesize_kB=4
10000000 bind:1 anon=64 dirty=64 N1=64 kernelpagesize_kB=4
20000000 prefer (many):0-1 anon=64 N0=64 kernelpagesize_kB=4
30000000 bind=static:0,2 anon=64 N0=64 kernelpagesize_kB=4
40000000 weighted interleave:0-1 anon=2 N0=2 kernelpagesize_kB=4
7ffc0000 default stack anon=3 N0=3 kernelpagesize_kB=4
"""
WHOLE_PROCESS = """\
55500000 bind:0-1 file=/usr/bin/prog mapped=31 N0=31 kernelpagesize_kB=4
55600000 bind:0-1 heap anon=9 N0=9 kernelpagesize_kB=4
"""
AT = np.array([0x1000, 0x400000, 0x10000000, 0x10003000, 0x20000000, 0x30000000, 0x40000000], "u8")


def nodes(node: int) -> np.ndarray:
    return np.full(len(AT), node, np.int16)


def write(proc: Path, pid: int, text: str, tables_kib: int = 4) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "numa_maps").write_text(text)
    (proc / str(pid) / "status").write_text(f"Name:\tprog\nVmPTE:\t{tables_kib:8} kB\n")


def test_bindings_only_of_bound_mappings() -> None:
    found = parse_numa_maps(ONE_MAPPING.encode())
    assert found.permits(AT, nodes(0)).tolist() == [True, True, False, False, True, True, True]
    assert found.permits(AT, nodes(1)).tolist() == [True, True, True, True, True, False, True]
    assert found.fixed_at(AT).tolist() == [False, False, True, True, False, False, False]
    assert found.nodes_at(0x30000FFF) == (0, 2)
    assert found.nodes_at(0x40000000) == ()


def test_bindings_of_process_hold_for_mappings_made_later() -> None:
    found = parse_numa_maps(WHOLE_PROCESS.encode())
    assert found.nodes_at(0x1000) == found.nodes_at(0x55600000) == (0, 1)
    assert found.permits(AT, nodes(2)).tolist() == [False] * len(AT)
    assert not found.fixed_at(AT).any()


@pytest.mark.parametrize("text", ["", "no such line\n", ONE_MAPPING.replace("bind", "prefer")])
def test_bindings_without_bind_none(text: str) -> None:
    found = parse_numa_maps(text.encode())
    assert not found.any_bound
    assert found.permits(AT, nodes(5)).all()
    assert not found.fixed_at(AT).any()


def test_bindings_of_large_process_are_those_of_its_first_mapping(tmp_path: Path) -> None:
    write(tmp_path, 1, ONE_MAPPING, MAX_TABLE_BYTES // 1024 + 4)
    write(tmp_path, 2, WHOLE_PROCESS, MAX_TABLE_BYTES // 1024 + 4)
    assert not read_bindings(1, tmp_path).any_bound
    assert read_bindings(2, tmp_path).process_nodes == (0, 1)
    assert not read_bindings(3, tmp_path).any_bound
    assert list(bound_processes(tmp_path)) == [(2, (0, 1))]


def test_bindings_read_again_after_a_minute(tmp_path: Path) -> None:
    write(tmp_path, 1, WHOLE_PROCESS)
    now_s = [0.0]
    bindings, process = MemoryBindings(tmp_path, lambda: now_s[0]), ProcessId(1, 7)
    assert bindings.of(process).any_bound
    (tmp_path / "1" / "numa_maps").write_text(WHOLE_PROCESS.replace("bind:0-1", "default"))
    now_s[0] = 59.0
    assert bindings.of(process).any_bound
    assert not bindings.of(ProcessId(1, 8)).any_bound
    now_s[0] = 60.0
    assert not bindings.of(process).any_bound
