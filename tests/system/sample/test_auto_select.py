# SPDX-License-Identifier: MIT
"""Selection of the sampler, with its reason, on this host and on an emulated machine."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hmd.base.errors import MissingError
from hmd.linux.damon import Kdamonds
from hmd.sample import damon_sampler, selection
from hmd.sample.damon_sampler import DamonSampler, open_damon
from hmd.sample.sampler import SampleSettings
from hmd.sample.selection import list_availability, open_sampler
from tests.fakes.damon_kernel import DamonKernel
from tests.fakes.plugin_memory import EmulatedMemory

MACHINES = Path(__file__).parents[2] / "fixtures/sysfs"


def proc_of(machine: str, folder: Path) -> Path:
    """The host's /proc with the cpuinfo of a fixture machine: the host's own CPU has no part."""
    proc = folder / "proc"
    proc.mkdir()
    for name in ("self", "sys", "filesystems"):
        (proc / name).symlink_to(Path("/proc") / name)
    shutil.copy(MACHINES / machine / "proc/cpuinfo", proc / "cpuinfo")
    return proc


@pytest.fixture
def proc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The /proc of a virtual machine on an Intel CPU."""
    return proc_of("vm-without-pmu", tmp_path_factory.mktemp("machine"))


def without_pmu(tmp_path: Path) -> Path:
    """A sysfs of a machine without PMU, whose CPUs are the host's."""
    (tmp_path / "devices/system/cpu").mkdir(parents=True)
    online = Path("/sys/devices/system/cpu/online").read_text()
    (tmp_path / "devices/system/cpu/online").write_text(online)
    return tmp_path


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        ("vm-without-pmu", "no PMU that samples memory accesses"),
        ("sapphire-rapids", "no PMU that samples memory accesses"),
        ("zen4", "this AMD CPU shows no IBS"),
        ("neoverse-n1", "no PMU that samples memory accesses"),
    ],
)
def test_auto_without_pmu_takes_page_faults_and_says_why(
    machine: str, why: str, tmp_path: Path
) -> None:
    sysfs = without_pmu(tmp_path / "sys")
    chosen = open_sampler(SampleSettings(), proc_of(machine, tmp_path), sysfs)
    chosen.sampler.close()
    assert chosen.sampler.name == "faults"
    assert chosen.reason.startswith("sampling page faults on ")
    assert why in chosen.reason
    assert "no DAMON" in chosen.reason
    assert "no idle page tracking" in chosen.reason
    assert "emulated" not in chosen.reason
    assert "\n" not in chosen.reason


def test_auto_on_emulated_machine_takes_its_pmu(
    emulated_memory: EmulatedMemory, proc: Path
) -> None:
    chosen = open_sampler(SampleSettings(), proc, without_pmu(emulated_memory.sysfs))
    chosen.sampler.close()
    assert chosen.sampler.name == "emulated"


def test_configured_sampler_is_taken(emulated_memory: EmulatedMemory, proc: Path) -> None:
    sysfs = without_pmu(emulated_memory.sysfs)
    chosen = open_sampler(SampleSettings(sampler="faults", period=7), proc, sysfs)
    chosen.sampler.close()
    assert (chosen.sampler.name, chosen.sampler.period) == ("faults", 7)
    assert chosen.reason.endswith("(as configured)")


@pytest.mark.parametrize("name", ["pmu", "emulated", "damon", "idle"])
def test_configured_sampler_that_is_missing_is_an_error(
    name: Any, tmp_path: Path, proc: Path
) -> None:
    with pytest.raises(MissingError):
        open_sampler(SampleSettings(sampler=name), proc, without_pmu(tmp_path))


def test_auto_where_pmu_events_do_not_open_takes_page_faults(tmp_path: Path) -> None:
    """Sysfs has a PMU; its events fail to open on this machine, or they work."""
    machine = tmp_path / "machine"
    shutil.copytree(MACHINES / "sapphire-rapids", machine)
    online = Path("/sys/devices/system/cpu/online").read_text()
    (machine / "sys/devices/system/cpu/online").write_text(online)
    chosen = open_sampler(SampleSettings(), machine / "proc", machine / "sys")
    chosen.sampler.close()
    assert chosen.sampler.name in ("faults", "pmu")


def test_open_damon_sampler_is_returned_again(
    damon_kernel: DamonKernel, tmp_path: Path, proc: Path
) -> None:
    kdamonds = Kdamonds(damon_kernel.sysfs, damon_kernel.write)
    first = open_damon(SampleSettings(period=1000), note=tmp_path / "note", kdamonds=kdamonds)
    sysfs = without_pmu(damon_kernel.sysfs)
    wanted = SampleSettings(sampler="damon", period=2000)
    found = open_sampler(wanted, proc, sysfs, before=first)
    assert found.sampler is first
    assert first.period == 2000
    open_sampler(SampleSettings(sampler="damon"), proc, sysfs, before=first)
    assert first.period == 2000
    first.close()


def test_available_samplers_are_those_that_open(
    emulated_memory: EmulatedMemory, proc: Path
) -> None:
    found = list_availability(SampleSettings(), proc, without_pmu(emulated_memory.sysfs))
    assert [one.name for one in found] == [
        "pmu",
        "spe",
        "emulated",
        "damon",
        "idle",
        "faults",
    ]
    assert [one.works for one in found] == [False, False, True, False, False, True]
    assert all(one.detail and "\n" not in one.detail for one in found)
    for one in found:
        if one.works:
            settings = SampleSettings(sampler=one.name)
            open_sampler(settings, proc, emulated_memory.sysfs).sampler.close()


def test_damon_taken_by_another_program_is_claimed_again_once_it_is_free(
    damon_kernel: DamonKernel, proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While hmd's kdamond is off between two cycles, others may set up theirs."""
    kdamonds = Kdamonds(damon_kernel.sysfs, damon_kernel.write, busy_s=0.1)
    opened = partial(open_damon, note=tmp_path / "note", kdamonds=kdamonds, max_regions=40)
    monkeypatch.setattr(damon_sampler, "open_damon", opened)
    monkeypatch.setattr(selection, "stop_left_behind", lambda _: None)
    settings = SampleSettings(sampler="damon")
    lost = open_sampler(settings, proc, damon_kernel.sysfs).sampler
    again = open_sampler(settings, proc, damon_kernel.sysfs, lost).sampler
    assert again is lost
    count = damon_kernel.path / "nr_kdamonds"
    damon_kernel.write(count, "0")
    (damon_kernel.sysfs / "another inode").mkdir()
    damon_kernel.write(count, "1")
    (damon_kernel.path / "0/contexts/nr_contexts").write_text("1\n")
    with pytest.raises(MissingError, match="set up by another"):
        open_sampler(settings, proc, damon_kernel.sysfs, lost)
    damon_kernel.write(count, "0")
    found = open_sampler(settings, proc, damon_kernel.sysfs, lost).sampler
    assert found is not lost
    assert isinstance(found, DamonSampler)
    assert found.usable
    found.close()
