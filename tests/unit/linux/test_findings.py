# SPDX-License-Identifier: MIT
import errno
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmd.base.errors import Severity
from hmd.linux.checks import (
    Capability,
    competing_findings,
    page_size_finding,
    parse_capabilities,
    parse_open_files,
    privilege_findings,
    read_privileges,
    topology_finding,
)


def by_name(findings: Any) -> Any:
    assert len({f.name for f in findings}) == len(findings)
    return {f.name: f for f in findings}


def competing(root: Path) -> Any:
    return by_name(competing_findings(root / "proc", root / "sys"))


def test_conflicts_of_optane_server_warned(machine: Callable[[str], Path]) -> None:
    found = competing(machine("optane-2s"))
    warned = {name for name, f in found.items() if f.level == Severity.WARN}
    assert warned == {
        "NUMA balancing",
        "demotion by reclaim",
        "numad",
        "damon_lru_sort",
    }
    assert "promotes from slow tiers" in found["NUMA balancing"].state
    assert "812" in found["numad"].state
    assert found["transparent huge pages"].state == "always (defrag madvise)"
    assert all(f.action and f.why for f in found.values() if f.level != Severity.OK)


def test_conflicts_of_machine_without_any_all_ok(machine: Callable[[str], Path]) -> None:
    found = competing(machine("three-tier"))
    assert {f.level for f in found.values()} == {Severity.OK}
    assert not any(f.action for f in found.values())


def test_conflicts_without_kernel_features_only_numad(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    assert set(competing(tmp_path)) == {"numad"}


def test_conflicts_damon_migration_scheme_warned(machine_copy: Callable[[str], Path]) -> None:
    root = machine_copy("three-tier")
    admin = root / "sys/kernel/mm/damon/admin/kdamonds"
    for thread, state, action in (
        ("0", "on", "stat"),
        ("1", "on", "migrate_cold"),
        ("2", "off", "pageout"),
    ):
        scheme = admin / thread / "contexts/0/schemes/0"
        scheme.mkdir(parents=True)
        (scheme / "action").write_text(action + "\n")
        (admin / thread / "state").write_text(state + "\n")
    finding = competing(root)["DAMON schemes"]
    assert finding.level == Severity.WARN
    assert finding.action == "echo off > /sys/kernel/mm/damon/admin/kdamonds/1/state"
    (admin / "1/state").write_text("off\n")
    assert competing(root)["DAMON schemes"].level == Severity.OK


def test_conflicts_zone_reclaim_has_sysctl_action(machine_copy: Callable[[str], Path]) -> None:
    root = machine_copy("laptop")
    (root / "proc/sys/vm/zone_reclaim_mode").write_text("1\n")
    assert competing(root)["zone reclaim"].action == "sysctl -w vm.zone_reclaim_mode=0"


def privileges(root: Path) -> Any:
    return by_name(privilege_findings(read_privileges(root / "proc")))


def test_privileges_with_unit_capabilities_all_ok(machine: Callable[[str], Path]) -> None:
    held = read_privileges(machine("optane-2s") / "proc")
    assert held.capabilities == {Capability.PERFMON, Capability.SYS_PTRACE, Capability.SYS_NICE}
    assert {f.level for f in privileges(machine("optane-2s")).values()} == {Severity.OK}


def test_privileges_of_ordinary_user_fail_with_actions(machine: Callable[[str], Path]) -> None:
    found = privileges(machine("laptop"))
    assert found["move pages"].level == Severity.FAIL
    assert "CAP_SYS_PTRACE" in found["move pages"].action
    assert found["sample accesses"].level == Severity.FAIL
    assert "perf_event_paranoid is 3" in found["sample accesses"].state
    assert found["move shared pages"].level == Severity.WARN
    assert found["open files"].level == Severity.WARN
    assert all(f.action for f in found.values() if f.level != Severity.OK)


def test_privileges_with_perf_event_paranoid_3_warned(machine_copy: Callable[[str], Path]) -> None:
    root = machine_copy("optane-2s")
    (root / "proc/sys/kernel/perf_event_paranoid").write_text("3\n")
    found = privileges(root)["sample accesses"]
    assert found.level == Severity.WARN
    assert found.action == "sysctl -w kernel.perf_event_paranoid=2"


def test_privileges_of_root_all_ok(machine: Callable[[str], Path]) -> None:
    assert {f.level for f in privileges(machine("three-tier")).values()} == {Severity.OK}
    assert privileges(machine("three-tier"))["open files"].state == "unlimited"


def test_privileges_with_negative_perf_event_paranoid_ok(
    machine_copy: Callable[[str], Path],
) -> None:
    root = machine_copy("laptop")
    (root / "proc/sys/kernel/perf_event_paranoid").write_text("-1\n")
    assert privileges(root)["sample accesses"].level == Severity.OK


def test_privileges_without_perf_events_name_kernel_option(
    machine_copy: Callable[[str], Path],
) -> None:
    root = machine_copy("three-tier")
    (root / "proc/sys/kernel/perf_event_paranoid").unlink()
    assert "CONFIG_PERF_EVENTS" in privileges(root)["sample accesses"].action


def test_privileges_with_small_ring_limit_warned(machine_copy: Callable[[str], Path]) -> None:
    root = machine_copy("laptop")
    (root / "proc/sys/kernel/perf_event_mlock_kb").write_text("64\n")
    assert privileges(root)["memory of sample rings"].level == Severity.WARN


@given(st.text(max_size=200))
def test_privileges_of_random_text_are_none(text: Any) -> None:
    parse_capabilities(text)
    parse_open_files(text)
    assert parse_capabilities("CapEff: zz\n" + text.replace("CapEff", "")) == frozenset()


def test_privileges_of_this_process_match_euid() -> None:
    held = read_privileges()
    if os.geteuid() == 0:
        assert held.has(Capability.SYS_PTRACE)
    assert held.open_files is not None


@pytest.mark.parametrize(
    ("name", "level", "action"),
    [
        ("optane-2s", Severity.OK, ""),
        ("xeon6-cxl", Severity.OK, ""),
        ("xeon-max-flat", Severity.WARN, "tiers: [[2, 3], [0, 1]]"),
        ("laptop", Severity.FAIL, "hmd emulate"),
        ("opteron-memoryless", Severity.FAIL, "hmd emulate"),
    ],
)
def test_topology_finding_of_fixture_machine_expected(
    machine: Callable[[str], Path], name: str, level: Any, action: str
) -> None:
    finding = topology_finding(machine(name) / "sys")
    assert finding.level == level
    assert action in finding.action


def test_page_size_finding_names_kernel_and_huge_pages() -> None:
    found = page_size_finding()
    assert found.level == Severity.OK
    assert f"{mmap.PAGESIZE >> 10} KiB, huge pages of " in found.state


def test_page_size_finding_of_pages_that_are_not_the_kernel_s_fails() -> None:
    found = page_size_finding(2 * mmap.PAGESIZE)
    assert found.level == Severity.FAIL
    assert "unset HMD_PAGE_BYTES" in found.action


def test_refused_perf_event_is_not_allowed_by_capabilities(tmp_path: Path) -> None:
    """A seccomp profile refuses the call to a process that has all capabilities."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text(f"CapEff:\t{1 << Capability.PERFMON:016x}\n")
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/perf_event_paranoid").write_text("2\n")
    permitted = read_privileges(tmp_path)
    assert by_name(privilege_findings(permitted))["sample accesses"].level is Severity.OK
    refused = replace(permitted, perf_refusal=errno.EPERM)
    found = by_name(privilege_findings(refused))["sample accesses"]
    assert (found.level, "seccomp" in found.action) == (Severity.FAIL, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_damon_that_may_not_be_read_is_not_absent(tmp_path: Path) -> None:
    kdamonds = tmp_path / "sys/kernel/mm/damon/admin/kdamonds"
    (kdamonds / "0").mkdir(parents=True)
    for name in ("nr_kdamonds", "0/state"):
        (kdamonds / name).write_text("1\n")
        (kdamonds / name).chmod(0o600)
    (tmp_path / "proc").mkdir()
    for folder in (tmp_path, *tmp_path.parents):
        folder.chmod(folder.stat().st_mode | 0o011)
    code = (
        "import os, pathlib, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "from hmd.linux.checks import competing_findings\n"
        "from hmd.linux.damon import damon_finding\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "found = (damon_finding(root / 'sys'), *competing_findings(root / 'proc', root / 'sys'))\n"
        "print([each.state for each in found if each.name.startswith('DAMON')])"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "['not known', 'not known']\n"
