# SPDX-License-Identifier: MIT
"""Samplers without a PMU on the real kernel: recall of hot pages, and a kdamond left behind.

Every miss that the plugin recorded is the truth (bench.suite.samplers).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.suite.samplers import HOT_SHARE, Case, Found, compare
from hmd.emulate.vm.boot import Machine

CHECKOUT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parents[1] / "programs"
CASES: tuple[Case, ...] = (("emulated", 97), ("damon", 1000), ("faults", 1))
SECONDS = 20.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def found(machine: Machine, machine_share: Path, guest_environ: dict[str, str]) -> dict[str, Found]:
    each = compare(machine, machine_share, SECONDS, CHECKOUT, guest_environ, CASES)
    return {one.sampler: one for one in each}


def test_recall_every_sampler_run_records_misses(found: dict[str, Found]) -> None:
    assert set(found) == {name for name, _ in CASES}
    assert all(one.misses > 20_000 for one in found.values()), found


def test_emulated_pmu_recall_above_faults(found: dict[str, Found]) -> None:
    pmu = found["emulated"]
    assert pmu.correlation > 0.5, pmu
    assert pmu.hot_found > 0.6, pmu
    assert pmu.hot_found > found["faults"].hot_found


def test_damon_recall_twice_chance(found: dict[str, Found]) -> None:
    damon = found["damon"]
    assert damon.correlation > 0.4, damon
    assert damon.hot_found > 2 * HOT_SHARE, damon
    assert damon.kernel_cpu > 0


def test_faults_touched_memory_few_pages_found(found: dict[str, Found]) -> None:
    assert found["faults"].pages < 100, found["faults"]


@pytest.fixture(scope="module")
def left(machine: Machine, guest_environ: dict[str, str]) -> dict[str, Any]:
    argv = [sys.executable, str(PROGRAMS / "damon_left.py")]
    done = machine.run(argv, cwd=CHECKOUT, env=guest_environ, timeout=600)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


NONE = {"kdamonds": 0, "threads": 0, "level": "ok", "state": "in this kernel, not in use"}


def test_damon_used_by_another_left_running(left: dict[str, Any]) -> None:
    assert left["free"] == NONE
    assert "in use by another: kdamond 0" in left["others"]["refused"]
    assert left["others"]["still_on"]


@pytest.mark.parametrize("turn", ["first", "second"])
def test_damon_hmd_killed_doctor_reports_kdamond_left(left: dict[str, Any], turn: str) -> None:
    found = left[turn]
    running, killed = found["running"], found["killed"]
    assert running["state"] == f"in use by hmd (pid {found['pid']})"
    assert found["second"] == f"DAMON is in use by another hmd (pid {found['pid']})"
    assert f"in use by hmd, pid {found['pid']}" in found["available"]["damon"]
    assert (killed["threads"], killed["level"]) == (1, "warn")
    assert f"pid {found['pid']}" in killed["state"]


def test_damon_kdamond_left_reused_and_removed_by_next_start(left: dict[str, Any]) -> None:
    assert (left["restarted"]["kdamonds"], left["restarted"]["threads"]) == (1, 0)
    assert left["closed"] == NONE


def test_damon_kdamond_left_stopped_by_other_sampler(left: dict[str, Any]) -> None:
    assert left["otherwise"] == NONE
