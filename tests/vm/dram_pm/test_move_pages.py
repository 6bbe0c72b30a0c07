# SPDX-License-Identifier: MIT
"""Every answer of move_pages(2) in the guest, and the status that the mover reports for it.

tests/vm/programs/move_pages.py provokes them, all in one run in the guest; these tests check
the result.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hmd.base.errors import Exit
from hmd.emulate.vm.boot import Machine

PROGRAMS = Path(__file__).parents[1] / "programs"
CHECKOUT = Path(__file__).parents[3]
CHURN_ROUNDS = 600

# All scenarios run in the set-up of the first test, at a twentieth of this host's speed.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def scenarios(machine: Machine, machine_share: Path) -> dict[str, Any]:
    churn = machine_share / "churn"
    subprocess.run(
        ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", churn, PROGRAMS / "churn.c"],
        check=True,
    )
    done = machine.run(
        [sys.executable, "-m", "tests.vm.programs.move_pages", str(churn), str(CHURN_ROUNDS)],
        cwd=CHECKOUT,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    return {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}


@pytest.fixture
def found(scenarios: dict[str, Any], request: pytest.FixtureRequest) -> dict[str, Any]:
    """The result of the scenario that is the parameter."""
    scenario = scenarios[request.param]
    assert "found" in scenario, scenario.get("failed")
    result: dict[str, Any] = scenario["found"]
    return result


@pytest.mark.parametrize("found", ["there_and_back"], indirect=True)
def test_mover_pages_to_other_node_and_back_intact(found: dict[str, Any]) -> None:
    assert found["before"] == {"0": 2048}
    for number, node in enumerate((1, 0, 1)):
        assert found[f"round{number}"] == {
            "status": {"MOVED": 2048},
            "moved": [[[1 - node, node], 2048]],
            "nodes": {str(node): 2048},
            "intact": True,
        }
    assert found["again"] == {"ALREADY_THERE": 2048}
    # 256 pages is the smallest batch: no more than 8 calls a round, but for busy pages.
    assert 3 <= found["calls"] <= 30


@pytest.mark.parametrize("found", ["dry_run"], indirect=True)
def test_mover_dry_run_moves_nothing(found: dict[str, Any]) -> None:
    assert found == {"status": {"WOULD_MOVE": 256}, "nodes": {"0": 256}}


@pytest.mark.parametrize("found", ["absent"], indirect=True)
def test_mover_absent_and_unmapped_pages_reported(found: dict[str, Any]) -> None:
    """Pages in this order: present, zero page, absent, unmapped, present."""
    assert found["raw"]["result"] == 0
    present, zero, absent, unmapped, last = found["raw"]["status"]
    assert (present, absent, last) == (1, -errno.ENOENT, 1)
    assert zero == -errno.EFAULT
    assert unmapped in (-errno.EFAULT, -errno.ENOENT)
    names = found["status"]
    assert names[:3] == ["ALREADY_THERE", "UNMOVABLE", "NOT_PRESENT"]
    assert names[3] in ("UNMOVABLE", "NOT_PRESENT")
    assert names[4] == "ALREADY_THERE"


@pytest.mark.parametrize("found", ["busy"], indirect=True)
def test_mover_pinned_page_reported_busy_and_in_backoff(found: dict[str, Any]) -> None:
    """A pinned page fails its run: its neighbours move, and the kernel writes no status."""
    assert found["raw"] == {"result": 1, "status": [None, None, None]}
    assert found["nodes"] == [0, 1, 1]
    assert found["status"] == {"ALREADY_THERE": 2, "MOVED": 61, "BUSY": 1}
    assert found["first"] == "BUSY"
    assert found["soon"] == "IN_BACKOFF"


@pytest.mark.parametrize("found", ["tail"], indirect=True)
def test_mover_pages_after_failed_run_moved(found: dict[str, Any]) -> None:
    """The kernel does not reach pages after a failed run, and counts them as not migrated."""
    assert found["raw"] == {"result": 3, "status": [None, None, -errno.ENOENT, None, None]}
    assert found["nodes"] == [0, 1, -errno.ENOENT, 0, 0]
    assert found["status"] == {"ALREADY_THERE": 1, "MOVED": 13, "NOT_PRESENT": 1, "BUSY": 1}


@pytest.mark.parametrize("found", ["pinned_everywhere"], indirect=True)
def test_mover_all_pages_pinned_reported_busy(found: dict[str, Any]) -> None:
    pinned, *own = found["status"]
    assert pinned == ["BUSY"] * 15
    assert own == [["MOVED"] * 15, ["SHARED"] * 15, ["MOVED"] * 15]
    assert found["calls"] <= 20


@pytest.mark.parametrize("found", ["shared"], indirect=True)
def test_mover_shared_pages_moved_only_where_allowed(found: dict[str, Any]) -> None:
    assert found["raw"] == {"result": 0, "status": [-errno.EACCES] * 2}
    assert found["without"] == {"SHARED": 32}
    assert found["with"] == {"MOVED": 32}
    assert found["nodes"] == {"1": 32}
    assert found["intact"]


@pytest.mark.parametrize("found", ["huge_pages"], indirect=True)
def test_mover_huge_pages_moved_whole(found: dict[str, Any]) -> None:
    """One address moves a whole huge page; a second address in it is reported busy."""
    assert found["huge_before"] == found["huge_after"] == 4
    assert found["raw"] == {"result": 0, "status": [1, -errno.EBUSY]}
    assert found["along"]
    assert found["status"] == {"MOVED": 3}
    assert found["moved_pages"] == 3 * 512
    assert found["nodes"] == {"1": 4 * 512}
    assert found["by_small_rows"] == {"MOVED": 512}
    assert found["intact"]


@pytest.mark.parametrize("found", ["split_huge_page"], indirect=True)
def test_mover_split_huge_page_base_pages_moved(found: dict[str, Any]) -> None:
    assert found["huge"] == 0
    assert found["status"] == {"MOVED": 2}
    assert found["moved_pages"] == [512, 512]
    assert found["calls"] > 2
    assert found["nodes"] == {"1": 1024}
    assert found["intact"]


@pytest.mark.parametrize("found", ["large_folios"], indirect=True)
def test_mover_large_folios_moved(found: dict[str, Any]) -> None:
    assert found["raw"] == {"result": 0, "status": [1, -errno.EBUSY]}
    assert found["status"] == {"ALREADY_THERE": 16, "MOVED": 240}
    assert found["nodes"] == {"1": 256}


@pytest.mark.parametrize("found", ["full"], indirect=True)
def test_mover_full_node_reported_no_memory(found: dict[str, Any]) -> None:
    """Pages that fit are moved; then moves to the node stop, and the command names a remedy."""
    status = found["status"]
    assert set(status) == {"MOVED", "NO_MEMORY"}
    assert sum(status.values()) == 96 * 256
    code, out, err = found["cli"]
    assert (code, out) == (Exit.FAILURE, "")
    assert err.startswith("hmd: nothing was moved to node 1: it is full; free memory there")
    assert set(found["back"]) == {"MOVED", "ALREADY_THERE"}
    assert found["back"]["MOVED"] >= status["MOVED"]


@pytest.mark.parametrize("found", ["cpuset"], indirect=True)
def test_mover_node_outside_cpuset_reported(found: dict[str, Any]) -> None:
    assert found["raw"] == {"result": -errno.EACCES, "status": [None, None]}
    assert found["status"] == {"CPUSET": 16}
    code, _, err = found["cli"]
    assert code == Exit.FAILURE
    assert "add 1 to cpuset.mems of its cgroup" in err


@pytest.mark.parametrize("found", ["offline"], indirect=True)
def test_mover_offline_node_reported(found: dict[str, Any]) -> None:
    assert found["raw"] == {"result": -errno.ENODEV, "status": [None, None]}
    assert found["status"] == {"OFFLINE": 16}


@pytest.mark.parametrize("found", ["exited"], indirect=True)
def test_mover_exited_process_reported_gone(found: dict[str, Any]) -> None:
    """For a zombie the kernel answers as for a kernel thread; the mover reports GONE."""
    assert found["not_reaped"] == {"raw": -errno.EINVAL, "status": {"GONE": 64}}
    assert found["reaped"] == {"raw": -errno.ESRCH, "status": {"GONE": 64}}


@pytest.mark.parametrize("found", ["exits_in_the_middle"], indirect=True)
def test_mover_process_exits_during_moves_rest_gone(found: dict[str, Any]) -> None:
    """A signal may reach the process only after the call at which it was sent."""
    assert found
    for calls, status in found.items():
        assert set(status) <= {"MOVED", "GONE"}
        assert sum(status.values()) == 600
        assert status["GONE"] >= 600 - 256 * (int(calls) + 1)


@pytest.mark.parametrize("found", ["kernel_thread"], indirect=True)
def test_mover_kernel_thread_reported_invalid(found: dict[str, Any]) -> None:
    assert found == {"raw": -errno.EINVAL, "status": {"INVALID": 1}}


@pytest.mark.parametrize("found", ["permission"], indirect=True)
def test_mover_foreign_process_reported_permission(found: dict[str, Any]) -> None:
    assert found == {"raw": -errno.EPERM, "own_all": -errno.EPERM, "status": {"PERMISSION": 16}}


@pytest.mark.parametrize("found", ["code"], indirect=True)
def test_mover_program_code_skipped(found: dict[str, Any]) -> None:
    assert found["stayed"]
    assert set(found["status"]) <= {"SKIPPED", "NOT_PRESENT", "UNMOVABLE"}
    assert found["status"]["SKIPPED"] > 10


@pytest.mark.parametrize("found", ["churn"], indirect=True)
def test_mover_changing_process_memory_intact(found: dict[str, Any]) -> None:
    """The process forks, unmaps, executes itself and exits while its pages move."""
    assert found["exit"] == 0, found["said"]
    assert found["said"].startswith("intact ")
    assert found["rounds"] >= 4
    assert min(found["moved"].values()) > 1000
    assert found["pages"]["MOVED"] > 2000


@pytest.mark.parametrize("found", ["command_line"], indirect=True)
def test_migrate_command_options_applied(found: dict[str, Any]) -> None:
    def document(name: str) -> Any:
        code, out, err, nodes = found[name]
        assert (code, err) == (0, "")
        return json.loads(out), nodes

    dry, nodes = document("dry")
    assert dry["dry_run"]
    assert (dry["pages"], nodes) == ({"would_move": 1024}, {"0": 1024})
    limited, nodes = document("limited")
    assert limited["limited"]
    assert (limited["moved_bytes"], nodes) == (1 << 20, {"0": 768, "1": 256})
    rated, nodes = document("rated")
    assert rated["flows"] == [{"from": 0, "to": 1, "pages": 768}]
    assert nodes == {"1": 1024}
    assert found["done"][1].startswith("Nothing to move: process ")
    assert document("wrong_side")[0]["pages"] == {}
    assert found["back"][0] == 0
    assert "Moved 4.0 MiB from node 1 to node 0" in found["back"][1]
    assert found["back"][3] == {"0": 1024}
    whole, nodes = document("whole")
    assert nodes == {"1": 1024}
    assert whole["moved_pages"] >= 1024
    assert found["huge"] == 2
    assert found["intact"]
