"""Samplers where no PMU is, on the real kernel: how much heat they find, and what they leave.

Every miss that the plugin recorded is the truth (bench.suite.sampler_recall).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.suite.sampler_recall import HOT_SHARE, Case, Found, compare
from hmd.emulate.boot import Machine

CHECKOUT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parents[1] / "programs"
CASES: tuple[Case, ...] = (("emulated", 97), ("damon", 1000), ("softdirty", 1), ("faults", 1))
SECONDS = 20.0

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def found(machine: Machine, machine_share: Path, guest_environ: dict[str, str]) -> dict[str, Found]:
    each = compare(machine, machine_share, SECONDS, CHECKOUT, guest_environ, CASES)
    return {one.sampler: one for one in each}


def test_there_was_something_to_find(found: dict[str, Found]) -> None:
    assert set(found) == {name for name, _ in CASES}
    assert all(one.misses > 20_000 for one in found.values()), found


def test_the_emulated_pmu_finds_most(found: dict[str, Found]) -> None:
    pmu = found["emulated"]
    assert pmu.correlation > 0.5, pmu
    assert pmu.hot_found > 0.6, pmu
    assert pmu.hot_found > max(found[name].hot_found for name in ("softdirty", "faults"))


def test_damon_finds_far_more_than_chance(found: dict[str, Found]) -> None:
    damon = found["damon"]
    assert damon.correlation > 0.4, damon
    assert damon.hot_found > 2 * HOT_SHARE, damon
    assert damon.kernel_cpu > 0


def test_soft_dirty_bits_show_what_is_written(found: dict[str, Found]) -> None:
    """Half of the program's blocks are only read."""
    written = found["softdirty"]
    assert 0.4 < written.pages / 8192 < 0.6, written


def test_page_faults_tell_little_of_memory_that_is_there(found: dict[str, Found]) -> None:
    assert found["faults"].pages < 100, found["faults"]


@pytest.fixture(scope="module")
def left(machine: Machine, guest_environ: dict[str, str]) -> dict[str, Any]:
    argv = [sys.executable, str(PROGRAMS / "damon_left.py")]
    done = machine.run(argv, cwd=CHECKOUT, env=guest_environ, timeout=600)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


NONE = {"kdamonds": 0, "threads": 0, "level": "ok", "state": "in this kernel, not in use"}


def test_another_s_kdamond_is_left_alone(left: dict[str, Any]) -> None:
    assert left["free"] == NONE
    assert "in use by another: kdamond 0" in left["others"]["refused"]
    assert left["others"]["still_on"]


@pytest.mark.parametrize("turn", ["first", "second"])
def test_a_killed_hmd_leaves_a_kdamond_and_doctor_says_so(left: dict[str, Any], turn: str) -> None:
    found = left[turn]
    running, killed = found["running"], found["killed"]
    assert running["state"] == f"in use by hmd (pid {found['pid']})"
    assert found["second"] == f"DAMON is in use by another hmd (pid {found['pid']})"
    assert f"in use by hmd, pid {found['pid']}" in found["available"]["damon"]
    assert (killed["threads"], killed["level"]) == (1, "warn")
    assert f"pid {found['pid']}" in killed["state"]


def test_the_next_start_takes_it_over_and_leaves_none(left: dict[str, Any]) -> None:
    assert (left["restarted"]["kdamonds"], left["restarted"]["threads"]) == (1, 0)
    assert left["closed"] == NONE


def test_the_next_start_stops_it_though_it_samples_otherwise(left: dict[str, Any]) -> None:
    assert left["otherwise"] == NONE


def test_the_contract_holds_on_the_real_kernel(
    machine: Machine, guest_environ: dict[str, str]
) -> None:
    """The host may lack soft-dirty bits; Debian's kernel in the guest has them."""
    argv = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/contract/test_samplers.py"]
    done = machine.run(
        [sys.executable, *argv, "-k", "softdirty and (every or last or ended)"],
        cwd=CHECKOUT,
        env=guest_environ,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
