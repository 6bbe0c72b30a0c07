# SPDX-License-Identifier: MIT
"""Why memory of a target that is never slow may lie on slower tiers, as hmd config check says."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmd.config import loads
from hmd.daemon.checks import target_warnings
from hmd.linux.topology import Node, Topology
from tests.unit.linux.conftest import FakeProc

MIB_PAGES = (1 << 20) // 4096
TOPOLOGY = Topology(
    (Node(0, (0,), 1 << 30, (10, 20), 0), Node(1, (), 4 << 30, (20, 10), 1)),
)
DATABASE, SESSION = "/system.slice/db.service", "/jobs/7"
HAND = "0 in {cgroups}/jobs/7/cpuset.mems prevents it"


def warned(
    folder: Path, cgroup: str, *, others: str = "/", mems: str = "0-1", mib: int = 100
) -> list[str]:
    """Return what is said of a target whose process is in a cgroup, and another is in another."""
    proc = FakeProc(folder / "proc")
    proc.add(10, exe="/bin/db", cgroup=f"0::{cgroup}\n", rss_pages=mib * MIB_PAGES)
    proc.add(11, exe="/bin/other", cgroup=f"0::{others}\n", rss_pages=MIB_PAGES)
    group = folder / f"cgroup{cgroup}"
    group.mkdir(parents=True, exist_ok=True)
    (group / "cpuset.mems.effective").write_text(f"{mems}\n")
    config = loads("targets: [{name: a, exe: db, never_slow: true}]")
    found = list(target_warnings(config, TOPOLOGY, proc.root, folder / "cgroup"))
    assert all(each.path == ("targets", 0, "never_slow") for each in found)
    return [each.text for each in found]


def test_unit_of_the_target_alone_is_confined_by_its_manager(tmp_path: Path) -> None:
    (text,) = warned(tmp_path, DATABASE)
    assert text.endswith("; systemctl set-property db.service AllowedMemoryNodes=0 prevents it")


def test_cgroup_without_a_unit_is_confined_by_its_file(tmp_path: Path) -> None:
    (text,) = warned(tmp_path, SESSION)
    assert text.endswith(HAND.format(cgroups=tmp_path / "cgroup"))


@pytest.mark.parametrize(
    "group", ["/system.slice/$(reboot).service", "/user.slice/user@1000.service/db.service"]
)
def test_group_named_by_a_user_is_no_command_for_root(tmp_path: Path, group: str) -> None:
    (text,) = warned(tmp_path, group)
    assert "systemctl" not in text
    assert text.endswith(f"0 in {tmp_path}/cgroup{group}/cpuset.mems prevents it")


def test_name_that_would_garble_a_terminal_is_shown_escaped(tmp_path: Path) -> None:
    (text,) = warned(tmp_path, "/jobs/\x1b[2J", others="/jobs/\x1b[2J")
    assert text.isprintable()


@pytest.mark.parametrize("others", [DATABASE, f"{DATABASE}/below"])
def test_cgroup_with_other_programs_is_not_to_be_confined(tmp_path: Path, others: str) -> None:
    (text,) = warned(tmp_path, DATABASE, others=others)
    assert text.endswith(f"its cgroup {DATABASE} has other programs, too: give it one of its own")


def test_confined_target_gives_no_warning(tmp_path: Path) -> None:
    assert warned(tmp_path, DATABASE, mems="0") == []


def test_target_larger_than_the_fastest_tier_gives_warning(tmp_path: Path) -> None:
    (text,) = warned(tmp_path, DATABASE, mems="0", mib=1500)
    assert text == "its processes have 1500 MiB, and the fastest tier 1024 MiB"
