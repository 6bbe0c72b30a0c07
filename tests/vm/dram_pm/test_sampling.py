# SPDX-License-Identifier: MIT
"""The emulated PMU in the guest: process, address, node and number of its samples.

tests/vm/programs/sampling.py samples real programs in one run; these tests check the result.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hmd.emulate.vm.boot import Machine

PROGRAMS = Path(__file__).parents[1] / "programs"
CHECKOUT = Path(__file__).parents[3]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def seen(machine: Machine, machine_share: Path) -> dict[str, Any]:
    gather = machine_share / "gather"
    subprocess.run(
        ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", gather, PROGRAMS / "gather.c"],
        check=True,
    )
    machine.start_model()
    try:
        argv = [sys.executable, str(PROGRAMS / "sampling.py"), str(gather)]
        done = machine.run(argv, cwd=CHECKOUT, timeout=800)
    finally:
        machine.stop_model()
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_auto_sampler_in_guest_selects_emulated_pmu(seen: dict[str, Any]) -> None:
    assert seen["sampler"] == "emulated"
    assert seen["reason"].startswith(
        "sampling cache misses and stores of the emulated machine in user mode on 2 CPUs"
    )
    assert seen["corrupt"] == 0


@pytest.mark.parametrize("node", [0, 1])
def test_samples_program_on_node_in_its_memory(seen: dict[str, Any], node: int) -> None:
    found = seen["on_each_node"][f"node{node}"]
    assert found["rows"] >= 400
    # A few misses are of its stack, its code and its C library.
    assert found["loads_in_place"] > 0.95
    assert found["stores_in_place"] > 0.9
    assert found["node_share"][node] > 0.95
    assert found["distinct"] > 0.9 * found["rows"]
    assert seen["on_each_node"][f"after_exit{node}"] == 0


def test_samples_slow_node_latency_longer(seen: dict[str, Any]) -> None:
    fast, slow = (seen["on_each_node"][f"node{n}"]["load_latency_ns"] for n in (0, 1))
    assert 20 < fast < slow < 5000
    assert slow > 1.5 * fast


def test_samples_of_untracked_program_dropped(seen: dict[str, Any]) -> None:
    found = seen["beside_another"]
    assert found["rows"] >= 400
    assert found["dropped"] >= 400
    assert found["of_other"] == 0
    assert found["node_share"][1] > 0.95


def test_samples_what_the_kernel_copies_for_a_program(seen: dict[str, Any]) -> None:
    """dd reads zeros into a buffer and writes it to a pipe: in user mode it accesses little."""
    user, both = seen["in_kernel_mode"]["False"], seen["in_kernel_mode"]["True"]
    for kind in ("LOAD", "STORE"):
        assert both[kind] >= 40
        assert both[kind] > 5 * user[kind]
    assert both["kernel"] > 0 == user["kernel"]


@pytest.mark.parametrize("who", ["parent", "child"])
def test_samples_parent_and_child_attributed_separately(seen: dict[str, Any], who: str) -> None:
    found = seen["after_fork"][who]
    assert found["rows"] >= 400
    assert found["stores_in_place"] > 0.95


@pytest.mark.parametrize("period", ["97", "997"])
def test_samples_read_once_and_weighted_by_period(seen: dict[str, Any], period: str) -> None:
    found = seen["counted"][period]
    assert found["read"] == found["written"] >= 5000
    # Of the lines that the prefetcher brought, few are sampled.
    assert found["share_of_misses"] > 0.9
    assert found["share_of_lines"] < 1.1
    # All stores of user mode, hits of the first level too; the counter has the kernel's as well.
    assert 0.5 < found["share_of_stores"] < 1.05
