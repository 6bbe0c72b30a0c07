# SPDX-License-Identifier: MIT
"""Bound, merged, registered and swapped memory, with the kernels of Debian 12 and its backports.

tests/vm/programs/kernel_rules.py makes such memory in the guest; these tests check what hmd did.
Newer kernels, with DAMON_STAT, are in no archive of Debian 12: tests/unit/linux has their files.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hmd.base.errors import Exit
from hmd.emulate.assets import Kernel, find_kernel, kernel_folders
from hmd.emulate.preset import load, with_nodes
from hmd.emulate.vm.boot import Machine
from hmd.emulate.vm.images import load_order
from tests.vm.conftest import environment

CHECKOUT = Path(__file__).parents[3]
VERSIONS = ("6.1", "6.12")

pytestmark = pytest.mark.timeout(900)


def kernel_of(version: str) -> Kernel:
    """The kernel of a version, which `make setup` has unpacked next to the usual one."""
    named = "kernel" if version == "6.12" else f"kernel-{version}"
    return find_kernel([folder.with_name(named) for folder in kernel_folders()])


@pytest.fixture(scope="module", params=VERSIONS)
def rules(request: pytest.FixtureRequest, machine_share: Path) -> Iterator[dict[str, Any]]:
    """What hmd did to each kind of memory, by name, and the kernel's version."""
    kernel = kernel_of(request.param)
    assert kernel.version.startswith(f"{request.param}.")
    folder = machine_share / kernel.version
    folder.mkdir(exist_ok=True)
    modules = []
    for name, image in load_order(kernel, ["loop"]):
        modules.append(folder / f"{name}.ko")
        modules[-1].write_bytes(image)
    preset = with_nodes(load("dram-pm"), ["size=640MiB,cpus=0-1", "size=640MiB"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HMD_MACHINE_DIR", str(kernel.image.parents[1]))
        patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        with Machine(preset, share=[machine_share]) as machine:
            argv = [sys.executable, "-m", "tests.vm.programs.kernel_rules", *map(str, modules)]
            done = machine.run(argv, cwd=CHECKOUT, env=environment(), timeout=600)
    assert done.returncode == 0, done.stderr
    lines = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    yield {"version": request.param, **lines}


def found_of(rules: dict[str, Any], name: str) -> dict[str, Any]:
    assert "found" in rules[name], rules[name].get("failed")
    result: dict[str, Any] = rules[name]["found"]
    return result


def test_bound_pages_stay_though_the_kernel_would_move_them(rules: dict[str, Any]) -> None:
    found = found_of(rules, "bound")
    assert (found["status"], found["calls"]) == ({"BOUND": 64}, 0)
    assert found["movable"] == [False]
    assert found["nodes"] == {"0": 64}
    code, out, err = found["cli"]
    assert (code, out) == (Exit.FAILURE, "")
    assert "a memory policy binds these pages to other nodes" in err
    assert found["raw"] == {"result": 0, "status": [1, 1]}


def test_merged_pages_stay_as_shared_pages_do(rules: dict[str, Any]) -> None:
    found = found_of(rules, "merged")
    assert found["sharing"] >= 48
    assert found["status"].get("SHARED", 0) >= 48
    assert found["intact"]


def test_userfaultfd_pages_move_and_absent_ones_are_not_faulted(rules: dict[str, Any]) -> None:
    found = found_of(rules, "userfault")
    # 6.1 answers EFAULT for a page that is absent without a swap entry, as for the zero page.
    absent = "UNMOVABLE" if rules["version"] == "6.1" else "NOT_PRESENT"
    assert found["status"] == {"MOVED": 32, absent: 32}
    assert found["state"] == "S"


def test_compressed_pages_stay_out(rules: dict[str, Any]) -> None:
    found = found_of(rules, "compressed")
    assert found["out"] >= 200
    assert found["still"] == found["absent"] == found["out"]
    assert found["intact"]


def test_cpuset_of_first_version_observed(rules: dict[str, Any]) -> None:
    found = found_of(rules, "cpuset_v1")
    # Debian's 6.12 has no cpusets of the first version (CONFIG_CPUSETS_V1).
    assert found["mounted"] == (rules["version"] == "6.1")
    assert found.get("status", {"CPUSET": 16}) == {"CPUSET": 16}


def test_doctor_names_bound_processes(rules: dict[str, Any]) -> None:
    found = found_of(rules, "doctor")
    assert f"{found['pid']} to 1" in found["memory policies"]
    assert found["same-page merging"] == "off"
