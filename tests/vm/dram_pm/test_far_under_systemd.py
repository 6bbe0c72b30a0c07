# SPDX-License-Identifier: MIT
"""Far memory that `hmd enable --far` makes, in the guest: nbd over a bad link, and zram.

tests/vm/programs/far_under_systemd.py does it all in one run, while a program keeps track of its
memory; these tests check the result.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hmd.emulate.preset import load, with_nodes
from hmd.emulate.vm.boot import Machine
from hmd.emulate.vm.images import warm_kernels
from tests.vm.conftest import CHECKOUT, PROGRAMS, environment
from tests.vm.dram_pm.test_far_memory import MEMORY, remember_and_modules

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def found(machine_share: Path) -> dict[str, Any]:
    words = remember_and_modules(machine_share, ["nbd", "zram", "veth", "sch_netem"])
    # One tier: what comes back is where it may go out again.
    preset = with_nodes(load("dram-pm"), ["size=1280MiB,cpus=0-1"])
    warm_kernels()
    first = ["/bin/sh", str(PROGRAMS / "systemd_first.sh")]
    argv = [sys.executable, str(PROGRAMS / "far_under_systemd.py"), *words]
    with Machine(preset, share=[machine_share], first=first) as machine:
        done = machine.run(argv, cwd=CHECKOUT, env=environment(), timeout=1300)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _lines(text: str) -> set[str]:
    return {" ".join(line.split()) for line in text.splitlines()}


def test_enable_nbd_prints_plan_and_makes_swap(found: dict[str, Any]) -> None:
    wanted = {
        "create /etc/systemd/system/hmd-far.service",
        "run systemctl enable --now hmd-far.service",
    }
    assert wanted <= _lines(found["enabled"])
    assert [path.startswith("/dev/nbd") for path in found["swaps"]] == [True]
    assert found["connections"] == 2


def test_server_killed_and_restarted_no_word_is_wrong(found: dict[str, Any]) -> None:
    assert found["swapped_bytes"] > MEMORY * 3 // 4
    assert found["wrong_words"] == "0"


def test_server_killed_page_out_stops_and_the_daemon_goes_on(found: dict[str, Any]) -> None:
    assert "connections are missing" in found["down"]["stopped"]
    assert found["down_metrics"]["hmd_pageout_stopped"] == 1
    assert found["later"]["ticks"] > found["down"]["ticks"]
    assert found["later"]["pid"] == found["before"]["pid"]
    assert found["later"]["paged_out_bytes"] == found["down"]["paged_out_bytes"]
    said = [line["message"] for line in found["journal"]]
    assert any("nothing is paged out until it works again" in line for line in said)


def test_server_back_page_out_goes_on(found: dict[str, Any]) -> None:
    assert found["up"]["pid"] == found["before"]["pid"]
    assert found["again"]["paged_out_bytes"] > found["up"]["paged_out_bytes"] + MEMORY * 3 // 4
    assert found["up_metrics"]["hmd_pageout_stopped"] == 0
    assert any("swap works again" in line["message"] for line in found["journal"])
    assert [line for line in found["far_lines"] if "connections are missing" in line]
    assert [line for line in found["far_lines"] if line.endswith("there again")]


def test_zram_takes_the_place_of_nbd_and_disable_ends_it(found: dict[str, Any]) -> None:
    assert "run systemctl stop hmd-far.service" in _lines(found["replaced"])
    assert [path.startswith("/dev/zram") for path in found["zram_swaps"]] == [True]
    assert found["zram_swapped_bytes"] > MEMORY * 3 // 4
    assert found["left_swaps"] == []
    # The one that the module makes as it is loaded.
    assert found["left_devices"] == ["zram0"]
    assert found["wrong_words_of_zram"] == "0"
