"""Real pages between real nodes: every answer of move_pages(2), and what the mover makes of it.

tests/vm/programs/move_pages.py provokes them, all in one run in the guest; here is what is right.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hmd.emulate.boot import Machine
from hmd.errors import Exit

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
        [sys.executable, str(PROGRAMS / "move_pages.py"), str(churn), str(CHURN_ROUNDS)],
        cwd=CHECKOUT,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    return {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}


@pytest.fixture
def found(scenarios: dict[str, Any], request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the scenario of the test's name found."""
    scenario = scenarios[request.node.originalname.removeprefix("test_")]
    assert "found" in scenario, scenario.get("failed")
    result: dict[str, Any] = scenario["found"]
    return result


def test_there_and_back(found: dict[str, Any]) -> None:
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


def test_dry_run(found: dict[str, Any]) -> None:
    assert found == {"status": {"WOULD_MOVE": 256}, "nodes": {"0": 256}}


def test_absent(found: dict[str, Any]) -> None:
    """A page that is there, the zero page, one that is not, an unmapped one, one that is there."""
    assert found["raw"]["result"] == 0
    present, zero, absent, unmapped, last = found["raw"]["status"]
    assert (present, absent, last) == (1, -errno.ENOENT, 1)
    assert zero == -errno.EFAULT
    assert unmapped in (-errno.EFAULT, -errno.ENOENT)
    names = found["status"]
    assert names[:3] == ["ALREADY_THERE", "UNMOVABLE", "NOT_PRESENT"]
    assert names[3] in ("UNMOVABLE", "NOT_PRESENT")
    assert names[4] == "ALREADY_THERE"


def test_busy(found: dict[str, Any]) -> None:
    """A pinned page fails its whole run: its neighbours move, and the kernel says nothing."""
    assert found["raw"] == {"result": 1, "status": [None, None, None]}
    assert found["nodes"] == [0, 1, 1]
    assert found["status"] == {"ALREADY_THERE": 2, "MOVED": 61, "BUSY": 1}
    assert found["first"] == "BUSY"
    assert found["soon"] == "BLACKLISTED"
    assert found["blacklisted"] == 1


def test_tail(found: dict[str, Any]) -> None:
    """What lies behind a failed run is not come to, but counted as not migrated."""
    assert found["raw"] == {"result": 3, "status": [None, None, -errno.ENOENT, None, None]}
    assert found["nodes"] == [0, 1, -errno.ENOENT, 0, 0]
    assert found["status"] == {"ALREADY_THERE": 1, "MOVED": 13, "NOT_PRESENT": 1, "BUSY": 1}


def test_pinned_everywhere(found: dict[str, Any]) -> None:
    pinned, *own = found["status"]
    assert pinned == ["BUSY"] * 15
    assert own == [["MOVED"] * 15, ["SHARED"] * 15, ["MOVED"] * 15]
    assert found["calls"] <= 20


def test_shared(found: dict[str, Any]) -> None:
    assert found["raw"] == {"result": 0, "status": [-errno.EACCES] * 2}
    assert found["without"] == {"SHARED": 32}
    assert found["with"] == {"MOVED": 32}
    assert found["nodes"] == {"1": 32}
    assert found["intact"]


def test_huge_pages(found: dict[str, Any]) -> None:
    """One address moves all of a huge page; a second one is busy, and has moved along."""
    assert found["huge_before"] == found["huge_after"] == 4
    assert found["raw"] == {"result": 0, "status": [1, -errno.EBUSY]}
    assert found["along"]
    assert found["status"] == {"MOVED": 3}
    assert found["moved_pages"] == 3 * 512
    assert found["nodes"] == {"1": 4 * 512}
    assert found["by_small_rows"] == {"MOVED": 512}
    assert found["intact"]


def test_split_huge_page(found: dict[str, Any]) -> None:
    assert found["huge"] == 0
    assert found["status"] == {"MOVED": 2}
    assert found["moved_pages"] == [512, 512]
    assert found["split"] == 2
    assert found["nodes"] == {"1": 1024}
    assert found["intact"]


def test_large_folios(found: dict[str, Any]) -> None:
    assert found["raw"] == {"result": 0, "status": [1, -errno.EBUSY]}
    assert found["status"] == {"ALREADY_THERE": 16, "MOVED": 240}
    assert found["nodes"] == {"1": 256}


def test_full(found: dict[str, Any]) -> None:
    """What fits is moved; then the node is fed no more, and the command says what to do."""
    status = found["status"]
    assert set(status) == {"MOVED", "NO_MEMORY"}
    assert sum(status.values()) == 96 * 256
    code, out, err = found["cli"]
    assert (code, out) == (Exit.FAILURE, "")
    assert err.startswith("hmd: nothing was moved to node 1: it is full; free memory there")
    assert set(found["back"]) == {"MOVED", "ALREADY_THERE"}
    assert found["back"]["MOVED"] >= status["MOVED"]


def test_cpuset(found: dict[str, Any]) -> None:
    assert found["raw"] == {"result": -errno.EACCES, "status": [None, None]}
    assert found["status"] == {"CPUSET": 16}
    code, _, err = found["cli"]
    assert code == Exit.FAILURE
    assert "add 1 to cpuset.mems of its cgroup" in err


def test_offline(found: dict[str, Any]) -> None:
    assert found["raw"] == {"result": -errno.ENODEV, "status": [None, None]}
    assert found["status"] == {"OFFLINE": 16}


def test_exited(found: dict[str, Any]) -> None:
    """Until it is reaped the kernel answers as for a kernel thread; the mover knows better."""
    assert found["not_reaped"] == {"raw": -errno.EINVAL, "status": {"GONE": 64}}
    assert found["reaped"] == {"raw": -errno.ESRCH, "status": {"GONE": 64}}


def test_exits_in_the_middle(found: dict[str, Any]) -> None:
    """A signal may reach the process only after the call at which it was sent."""
    assert found
    for calls, status in found.items():
        assert set(status) <= {"MOVED", "GONE"}
        assert sum(status.values()) == 600
        assert status["GONE"] >= 600 - 256 * (int(calls) + 1)


def test_kernel_thread(found: dict[str, Any]) -> None:
    assert found == {"raw": -errno.EINVAL, "status": {"INVALID": 1}}


def test_permission(found: dict[str, Any]) -> None:
    assert found == {"raw": -errno.EPERM, "own_all": -errno.EPERM, "status": {"PERMISSION": 16}}


def test_code(found: dict[str, Any]) -> None:
    assert found["stayed"]
    assert set(found["status"]) <= {"SKIPPED", "NOT_PRESENT", "UNMOVABLE"}
    assert found["status"]["SKIPPED"] > 10


def test_churn(found: dict[str, Any]) -> None:
    """Not a word is lost of a process that forks, unmaps, executes itself and exits meanwhile."""
    assert found["exit"] == 0, found["said"]
    assert found["said"].startswith("intact ")
    assert found["rounds"] >= 4
    assert min(found["moved"].values()) > 1000
    assert found["pages"]["MOVED"] > 2000


def test_command_line(found: dict[str, Any]) -> None:
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
