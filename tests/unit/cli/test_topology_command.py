# SPDX-License-Identifier: MIT
import json
from pathlib import Path

import pytest

from hmd.cli.main import main

MACHINES = Path(__file__).parents[2] / "fixtures/machines"


def topology(name: str, *options: str) -> int:
    return main(["topology", "--sysfs", str(MACHINES / name / "sys"), *options])


def test_topology_table_shows_nodes_and_tiers(capsys: pytest.CaptureFixture[str]) -> None:
    assert topology("xeon6-cxl") == 0
    out = capsys.readouterr().out
    assert "0-171" in out
    assert "91/91 ns" in out
    assert "1510/390 ns" in out
    assert "98.3/92.16 GB/s" in out
    assert "fastest first: 0  then  1   (by kernel memory tiers)" in out
    assert "Warning" not in out


def test_topology_json_expected_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert topology("optane-2s", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tiers"] == [[0, 1], [2, 3]]
    assert document["tier_source"] == "kernel memory tiers"
    assert document["warning"] is None
    node = document["nodes"][3]
    assert node["cpus"] == []
    assert node["distances"] == {"0": 28, "1": 17, "2": 28, "3": 10}
    assert node["total_bytes"] == 253952 << 20
    assert node["read_latency_ns"] is None


def test_topology_one_tier_warning_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert topology("laptop") == 0
    assert "Warning: this machine has one memory node" in capsys.readouterr().out


def test_topology_tiers_option_overrides_tiers(capsys: pytest.CaptureFixture[str]) -> None:
    assert topology("xeon-max-flat", "--tiers", "[[2,3],[0,1]]") == 0
    out = capsys.readouterr().out
    assert "2-3  then  0-1   (by configuration)" in out
    assert "Warning" not in out


@pytest.mark.parametrize(
    "text", ["0", "[0,1]", "[[0],[true]]", "[[0", '[["0"]]', "{}", "[[9]]", "[" * 9**6]
)
def test_topology_invalid_tiers_option_refused(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert topology("optane-2s", "--tiers", text) == 2
    err = capsys.readouterr().err
    assert err.startswith("hmd: --tiers")
    assert err.count("\n") == 1
    assert len(err) < 200


def test_topology_without_numa_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--sysfs", str(tmp_path)]) == 4
    assert "CONFIG_NUMA" in capsys.readouterr().err


def test_topology_this_machine_has_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"][0]["total_bytes"] > 0
