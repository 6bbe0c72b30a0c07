# SPDX-License-Identifier: MIT
"""Targets that are never slow, templates per cgroup, and hours, with a real kernel that is full."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hmd.emulate.vm.boot import Machine
from tests.vm.conftest import CHECKOUT, PROGRAMS, environment

TEMPLATE_MIB, PROGRAM_MIB = 8, 24
SLACK_MIB = 1.0
"""Own memory of a program besides what it touches: stack, heap, changed pages of libraries."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def found(machine: Machine, machine_share: Path) -> dict[str, Any]:
    gather = machine_share / "gather"
    subprocess.run(["gcc", "-O2", "-o", gather, PROGRAMS / "gather.c"], check=True)
    argv = [sys.executable, "-m", "tests.vm.programs.target_limits", str(gather), "/run/limits"]
    done = machine.run(argv, cwd=CHECKOUT, env=environment(), timeout=600)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert not any(result["stage_failures"].values()), done.stderr
    return result


def test_never_slow_target_gets_the_fast_node_though_it_is_never_sampled(
    found: dict[str, Any],
) -> None:
    assert found["before"][1] > PROGRAM_MIB / 2
    fast, slow = found["kept"]
    assert slow == 0
    assert fast >= PROGRAM_MIB
    assert found["targets"]["kept"]["off_fastest_bytes"] == 0
    # The room was another's.
    fast, slow, whole = found["filler"]
    assert slow > PROGRAM_MIB / 2
    assert fast + slow >= whole


def test_limits_per_cgroup_hold_for_each_by_itself(found: dict[str, Any]) -> None:
    for fast, slow in found["pods"]:
        assert TEMPLATE_MIB - 2 * SLACK_MIB <= fast <= TEMPLATE_MIB
        assert fast + slow >= PROGRAM_MIB


def test_target_outside_of_its_hours_stays_where_it_is(found: dict[str, Any]) -> None:
    assert found["night"][0] <= SLACK_MIB
    assert found["night"][1] >= PROGRAM_MIB
    assert found["targets"]["night"]["resting"]
    assert not found["targets"]["kept"]["resting"]
