# SPDX-License-Identifier: MIT
"""Memory that lies on another machine, by nbd, whose server comes and goes.

tests/vm/programs/far_memory.py does it all in one boot, while a program keeps track of its memory;
these tests check the result.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hmd.emulate.assets import find_kernel
from hmd.emulate.preset import load, with_nodes
from hmd.emulate.vm.boot import Machine
from hmd.emulate.vm.images import load_order
from tests.vm.conftest import CHECKOUT, PROGRAMS, environment

MEMORY = 24 << 20

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def remember_and_modules(folder: Path, names: list[str]) -> list[str]:
    """Put the program and modules of the guest's kernel into a folder; return their paths."""
    remember = folder / "remember"
    subprocess.run(
        ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", remember, PROGRAMS / "remember.c"],
        check=True,
    )
    paths = [str(remember)]
    for name, image in load_order(find_kernel(), names):
        path = folder / f"{name}.ko"
        path.write_bytes(image)
        paths.append(str(path))
    return paths


@pytest.fixture(scope="module")
def found(machine_share: Path) -> dict[str, Any]:
    words = remember_and_modules(machine_share, ["nbd", "veth", "sch_netem"])
    argv = [sys.executable, str(PROGRAMS / "far_memory.py"), *words]
    preset = with_nodes(load("dram-pm"), ["size=512MiB,cpus=0-1", "size=256MiB"])
    with Machine(preset, share=[machine_share], parts=None) as machine:
        done = machine.run(argv, cwd=CHECKOUT, env=environment(), timeout=600)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("lost", ["server", "contents", "client"])
def test_what_is_lost_and_found_costs_no_word(found: dict[str, Any], lost: str) -> None:
    assert found[lost]["out_bytes"] > MEMORY * 3 // 4
    assert found[lost]["failure"].startswith("2 connections are missing: ")
    assert found[lost]["wrong_words"] == "0"
    assert found[lost]["after"] == ""


def test_client_ends_the_device_once_it_is_no_swap(found: dict[str, Any]) -> None:
    assert found["end"] == {"code": 0, "device_left": False}
