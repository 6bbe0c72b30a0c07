# SPDX-License-Identifier: MIT
"""Anonymous pages paged out to zram and read back, on the real kernel in the guest."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hmd.emulate.assets import find_kernel
from hmd.emulate.vm.boot import Machine
from hmd.emulate.vm.images import load_order

PROGRAM = Path(__file__).parents[1] / "programs" / "pageout.py"
CHECKOUT = Path(__file__).parents[3]
PAGES = 1024

pytestmark = pytest.mark.timeout(900)


def test_pageout_idle_pages_to_zram_read_back_intact(machine: Machine, machine_share: Path) -> None:
    modules = []
    for name, image in load_order(find_kernel(), ["zram"]):
        path = machine_share / f"{name}.ko"
        path.write_bytes(image)
        modules.append(str(path))
    done = machine.run([sys.executable, str(PROGRAM), *modules], cwd=CHECKOUT, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tried"] == PAGES // 2
    # One that the kernel was just looking at may stay.
    assert found["out_bytes"] >= (PAGES // 2 - 32) * 4096
    assert found["swapped_kib"] == found["out_bytes"] // 1024
    assert found["resident"] == PAGES - found["out_bytes"] // 4096
    assert found["intact"]
    assert found["back"] == PAGES
