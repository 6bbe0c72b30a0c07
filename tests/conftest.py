# SPDX-License-Identifier: MIT
"""Fixtures for every room: a real process that touches memory, and fakes of kernel interfaces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings

from hmd.linux.procfs import identify
from tests.fakes.damon_kernel import DamonKernel
from tests.fakes.huge_block import map_huge_block
from tests.fakes.idle_bitmap import IdleBitmap
from tests.fakes.pagemap import physical_address
from tests.fakes.plugin_memory import EmulatedMemory
from tests.fakes.software_pmu import SoftwarePmu
from tests.fakes.toucher import PROGRAM, Toucher

# GNU readline, which pytest imports, exports the terminal's size to children (readline(3),
# rl_change_environment): tables of commands that tests start would be as narrow as that terminal.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
    os.unsetenv(name)

# A shell starts background jobs with SIGINT ignored, which children inherit across exec; what
# tests interrupt must react. Python resets a handler to the default in a child that calls exec.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The time of an example says more of the machine than of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


pytest_plugins = ["tests.expected_skips", "tests.worker_groups"]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.fixture
def toucher() -> Iterator[Toucher]:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as popen:
        process = identify(popen.pid)
        assert process is not None
        yield Toucher(process, popen)
        if popen.stdin and not popen.stdin.closed:
            popen.stdin.close()


@pytest.fixture
def emulated_memory(tmp_path: Path) -> EmulatedMemory:
    return EmulatedMemory(tmp_path / "emulated")


@pytest.fixture
def huge_block() -> npt.NDArray[np.uint8]:
    return map_huge_block()


@pytest.fixture
def physical() -> Callable[[int, int], int]:
    return physical_address


@pytest.fixture
def damon_kernel(tmp_path: Path) -> DamonKernel:
    return DamonKernel(tmp_path / "damon")


@pytest.fixture
def idle_bitmap() -> IdleBitmap:
    return IdleBitmap()


@pytest.fixture
def software_pmu(tmp_path: Path, toucher: Toucher) -> SoftwarePmu:
    """A PMU of software events; the table of processes is this host's, with the toucher in it."""
    return SoftwarePmu(tmp_path / "pmu")
