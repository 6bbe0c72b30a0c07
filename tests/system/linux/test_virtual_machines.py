# SPDX-License-Identifier: MIT
"""Virtual machines of KVM: a real one, and what the kernel shows of QEMU's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hmd.heat.table import HeatTable
from hmd.linux.checks import competing_findings
from hmd.linux.mappings import parse_maps, runs_guests
from hmd.linux.procfs import ProcessId, identify
from hmd.residency.sweep import ResidencySweep, StepLimit
from tests.fakes import kvm_guest

WHOLE = StepLimit(1 << 18, 60.0)
QEMU = """\
7f5a3c000000-7f5abc000000 rw-p 00000000 00:00 0
7f5ad4200000-7f5ad4203000 rw-s 00000000 00:0e 2053                       anon_inode:kvm-vcpu:1
7f5ad4203000-7f5ad4206000 rw-s 00000000 00:0e 2053                       anon_inode:kvm-vcpu:0
7ffd1c2a5000-7ffd1c2c6000 rw-p 00000000 00:00 0                          [stack]
"""
OPENS_KVM_ALONE = """\
7f5a3c000000-7f5abc000000 rw-p 00000000 00:00 0
7f5ad4200000-7f5ad4203000 rw-s 00000000 00:0e 2053                       anon_inode:kvm-vm
7f5ad4203000-7f5ad4206000 rw-s 00000000 00:0e 2053                       anon_inode:[perf_event]
"""


@pytest.mark.parametrize(("maps", "runs"), [(QEMU, True), (OPENS_KVM_ALONE, False)])
def test_mapped_cpu_of_kvm_shows_virtual_machine(maps: str, runs: bool) -> None:
    assert runs_guests(parse_maps(maps.encode()).path) == runs


def test_doctor_names_processes_of_virtual_machines(tmp_path: Path) -> None:
    for pid, opened in ((7, "/dev/kvm"), (9, "anon_inode:kvm-vcpu:0")):
        (tmp_path / f"{pid}/fd").mkdir(parents=True)
        (tmp_path / f"{pid}/fd/3").symlink_to(opened)
    found = {one.name: one for one in competing_findings(tmp_path, tmp_path / "sys")}
    assert found["virtual machines"].state == "1 of KVM (pid 9)"
    (tmp_path / "9/fd/3").unlink()
    names = {one.name for one in competing_findings(tmp_path, tmp_path / "sys")}
    assert "virtual machines" not in names


@pytest.fixture
def guest() -> Iterator[ProcessId]:
    if not kvm_guest.usable():
        pytest.skip("this host gives no virtual machines (/dev/kvm)")
    words = [sys.executable, kvm_guest.__file__]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert int(program.stdout.readline()) > 0
        process = identify(program.pid)
        assert process is not None
        yield process
        program.kill()


def test_sweep_finds_real_virtual_machine(guest: ProcessId) -> None:
    own = identify(os.getpid())
    assert own is not None
    heat, sweep = HeatTable(), ResidencySweep()
    heat.track_processes([own, guest])
    sweep.step(heat, WHOLE)
    assert sweep.guest_mask([own, guest]).tolist() == [False, True]
    heat.track_processes([own])
    sweep.step(heat, WHOLE)
    assert sweep.guest_mask([guest]).tolist() == [False]
