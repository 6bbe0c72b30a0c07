# SPDX-License-Identifier: MIT
from pathlib import Path

import pytest

from hmd.cli.main import main
from tests.unit.cli.doctor_findings import findings

MACHINES = Path(__file__).parents[2] / "fixtures/machines"


def doctor(name: str, *options: str) -> int:
    root = MACHINES / name
    return main(["doctor", "--proc", str(root / "proc"), "--sysfs", str(root / "sys"), *options])


def test_doctor_laptop_missing_requirements_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor("laptop", "--json") == 4
    found = findings(capsys)
    failed = {name for name, f in found.items() if f["level"] == "fail"}
    assert {"memory tiers", "move pages", "sample accesses"} <= failed
    assert found["memory tiers"]["action"].startswith("try `hmd emulate`")


def test_doctor_two_tier_server_tiers_and_conflicts_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    doctor("optane-2s", "--json")
    found = findings(capsys)
    assert found["memory tiers"]["state"] == "nodes 0-1 then 2-3, by kernel memory tiers"
    assert found["NUMA balancing"]["action"] == "sysctl -w kernel.numa_balancing=0"
    assert found["move pages"]["level"] == "ok"


def test_doctor_warnings_have_reason_or_action(capsys: pytest.CaptureFixture[str]) -> None:
    machines = [folder.name for folder in MACHINES.iterdir() if folder.is_dir()]
    assert machines
    for machine in machines:
        doctor(machine, "--json")
        found = findings(capsys).values()
        assert any(finding["level"] != "ok" for finding in found)
        for finding in found:
            assert finding["state"]
            assert finding["level"] == "ok" or finding["why"] or finding["action"]


def test_doctor_never_says_to_set_the_sampler_that_is_in_use(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["doctor", "--json"])
    found = findings(capsys)["sampler"]
    in_use = found["state"].partition(":")[0]
    assert f"set sampler to {in_use}" not in found["why"]


def test_doctor_table_same_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor("optane-2s") in (0, 4)
    out = capsys.readouterr().out
    assert "sysctl -w kernel.numa_balancing=0" in out
    assert "demotion by reclaim" in out
    assert out.rstrip().splitlines()[-1] in (
        "hmd can work here.",
        "hmd cannot work here as things are.",
    )
