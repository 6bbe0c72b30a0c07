# SPDX-License-Identifier: MIT
"""One boot of the emulated machine, shared by most tests, and one under systemd.

Two nodes of 640 MiB, two CPUs on node 0, none on node 1; room for recorded misses, of which only
what is recorded takes memory. The guest sees this checkout and its virtual environment; it may
write in ``machine_share`` (the same path inside and outside). numba's code is compiled on the
host for a CPU that the guest has too, and found by the guest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hmd.emulate.preset import load, with_nodes
from hmd.emulate.vm.boot import Machine
from hmd.emulate.vm.images import guest_environment, warm_kernels

CHECKOUT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).with_name("programs")
RULES = CHECKOUT / "config/prometheus/hmd-alerts.yml"
RECORDING_BYTES = 4 << 30


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder ``vm``."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("vm")


@pytest.fixture(scope="session")
def machine_share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of the host that the guest may write."""
    return tmp_path_factory.mktemp("machine")


@pytest.fixture(scope="session")
def machine(machine_share: Path) -> Iterator[Machine]:
    """The running machine; commands run with this checkout's Python first on PATH."""
    preset = with_nodes(load("dram-pm"), ["size=640MiB,cpus=0-1", "size=640MiB"])
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    warm_kernels()
    with Machine(preset, share=[machine_share], recording_bytes=RECORDING_BYTES) as machine:
        yield machine


@pytest.fixture(scope="session")
def served(machine_share: Path) -> dict[str, Any]:
    """The result of programs/daemon.py: hmd as a service in a guest that runs systemd."""
    gather = machine_share / "gather"
    subprocess.run(
        ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", gather, PROGRAMS / "gather.c"],
        check=True,
    )
    preset = with_nodes(load("dram-pm"), ["size=640MiB,cpus=0-1", "size=640MiB"])
    warm_kernels()
    first = ["/bin/sh", str(PROGRAMS / "systemd_first.sh")]
    argv = [sys.executable, str(PROGRAMS / "daemon.py"), str(gather), str(RULES)]
    with Machine(preset, share=[machine_share], first=first) as machine:
        done = machine.run(argv, cwd=CHECKOUT, env=environment(), timeout=1300)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


class Python:
    """Runs Python in the guest: the program's last line of output is JSON, and is returned."""

    def __init__(self, machine: Machine):
        self.machine = machine

    def __call__(self, program: str, *arguments: str, timeout: float = 120) -> object:
        argv = [sys.executable, "-c", program, *arguments]
        done = self.machine.run(argv, cwd=CHECKOUT, env=environment(), timeout=timeout)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def guest_python(machine: Machine) -> Python:
    """A function that runs a Python program in the guest and returns its output, parsed."""
    return Python(machine)


@pytest.fixture(scope="session")
def guest_environ() -> dict[str, str]:
    """The environment of commands in the guest."""
    return environment()


def environment() -> dict[str, str]:
    """The environment of commands in the guest: the host's, with its numba cache."""
    return {
        **os.environ,
        **guest_environment(),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(CHECKOUT),
    }
