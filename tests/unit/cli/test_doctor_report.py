# SPDX-License-Identifier: MIT
"""The file of ``hmd doctor --report``: a fixture machine with the same findings."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from hmd.cli.main import main
from hmd.linux.machine_report import collect_files
from tests.unit.cli.doctor_findings import findings

FIXTURES = Path(__file__).parents[2] / "fixtures"
MACHINES = sorted(path for path in (FIXTURES / "machines").iterdir() if path.is_dir())
PMUS = sorted(path for path in (FIXTURES / "sysfs").iterdir() if path.is_dir())


def doctor(root: Path, *options: str) -> None:
    main(["doctor", "--proc", str(root / "proc"), "--sysfs", str(root / "sys"), *options])


def unpack(report: Path, folder: Path) -> Path:
    with tarfile.open(report) as archive:
        for member in archive:
            assert (member.isreg(), member.uname, member.uid, member.mtime) == (True, "", 0, 0)
            content = archive.extractfile(member)
            assert content is not None
            path = folder / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())
    return folder


@pytest.mark.parametrize("machine", [*MACHINES, *PMUS], ids=lambda path: path.name)
def test_report_as_a_fixture_has_the_same_findings(
    machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.tar.gz"
    doctor(machine, "--json", "--report", str(report))
    here = json.dumps(findings(capsys))
    copy = unpack(report, tmp_path / "copy")
    doctor(copy, "--json")
    assert json.dumps(findings(capsys)).replace(str(copy), str(machine)) == here
    document = json.loads((copy / "report.json").read_text())
    assert json.dumps({f["name"]: f for f in document["findings"]}) == here


def test_report_of_this_machine_as_a_fixture_has_the_same_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.tar.gz"
    main(["doctor", "--json", "--report", str(report)])
    here = findings(capsys)
    copy = unpack(report, tmp_path / "copy")
    doctor(copy, "--json")
    there = findings(capsys)
    from_files = {
        "memory tiers",
        "NUMA balancing",
        "zone reclaim",
        "transparent huge pages",
        "numad",
    }
    assert from_files & set(here)
    for name in from_files & set(here):
        assert there[name] == here[name]
    files = collect_files(copy / "proc", copy / "sys")
    counted = {name: text for name, text in files.items() if not name.endswith("meminfo")}
    assert all((copy / name).read_text() == text for name, text in counted.items())


def test_report_has_nothing_personal(tmp_path: Path) -> None:
    proc, sysfs = tmp_path / "proc", tmp_path / "sys"
    files = {
        proc / "cpuinfo": "processor\t: 0\nmodel\t: A\nSerial\t\t: SECRET1\n\nprocessor\t: 1\n",
        proc / "self/status": "Name:\tSECRET2\nUid:\t4711\nCapEff:\t0000000000000000\n",
        proc / "self/limits": "Max open files            1024   4096   files\nMax x  SECRET3\n",
        proc / "self/environ": "HOME=/home/SECRET4",
        proc / "77/comm": "SECRET5\n",
        proc / "77/cmdline": "SECRET6\n",
        proc / "78/comm": "numad\n",
        proc / "78/environ": "SECRET7\n",
        proc / "sys/kernel/hostname": "SECRET8\n",
        proc / "sys/kernel/numa_balancing": "1\n",
        sysfs / "class/dmi/id/product_serial": "SECRET9\n",
        sysfs / "devices/system/node/node0/cpulist": "0-1\n",
        sysfs / "kernel/mm/damon/admin/kdamonds/0/contexts/0/targets/0/pid_target": "SECRET10\n",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = collect_files(proc, sysfs)
    assert "SECRET" not in json.dumps(found)
    assert "4711" not in json.dumps(found)
    assert found == {
        "proc/cpuinfo": "processor\t: 0\nmodel\t: A\n\nprocessor\t: 1\n\n",
        "proc/self/status": "CapEff:\t0000000000000000\n",
        "proc/self/limits": "Max open files            1024   4096   files\n",
        "proc/78/comm": "numad\n",
        "proc/sys/kernel/numa_balancing": "1\n",
        "sys/devices/system/node/node0/cpulist": "0-1\n",
    }


def test_report_that_cannot_be_written_is_an_error_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "no folder/report.tar.gz"
    assert main(["doctor", "--report", str(target)]) == 4
    assert f"cannot write {target}: No such file or directory" in capsys.readouterr().err
