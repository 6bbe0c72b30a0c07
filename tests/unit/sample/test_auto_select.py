"""Which sampler is taken, and why, on the machine at hand and on an emulated one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from hmd.errors import MissingError
from hmd.machine.damon_sysfs import Kdamonds
from hmd.sample.auto_select import SampleSettings, available, open_sampler
from hmd.sample.damon_sampler import open_damon

pytestmark = pytest.mark.root

MACHINES = Path(__file__).parents[2] / "fixtures/sysfs"


def without_pmu(tmp_path: Path) -> Path:
    """A sysfs of a machine without PMU, whose CPUs are ours."""
    (tmp_path / "devices/system/cpu").mkdir(parents=True)
    online = Path("/sys/devices/system/cpu/online").read_text()
    (tmp_path / "devices/system/cpu/online").write_text(online)
    return tmp_path


def test_without_a_pmu_page_faults_are_taken_and_the_reason_told(tmp_path: Path) -> None:
    chosen = open_sampler(SampleSettings(), sysfs=without_pmu(tmp_path))
    chosen.sampler.close()
    assert chosen.sampler.name == "faults"
    assert chosen.reason.startswith("sampling page faults on ")
    assert "no PMU that samples memory accesses" in chosen.reason
    assert "no DAMON" in chosen.reason
    assert "no idle page tracking" in chosen.reason
    assert "emulated" not in chosen.reason
    assert "\n" not in chosen.reason


def test_the_emulated_machine_comes_before_page_faults(emulated_memory: Any) -> None:
    chosen = open_sampler(SampleSettings(), sysfs=without_pmu(emulated_memory.sysfs))
    chosen.sampler.close()
    assert chosen.sampler.name == "emulated"


def test_one_can_be_asked_for(emulated_memory: Any) -> None:
    sysfs = without_pmu(emulated_memory.sysfs)
    chosen = open_sampler(SampleSettings(sampler="faults", period=7), sysfs=sysfs)
    chosen.sampler.close()
    assert (chosen.sampler.name, chosen.sampler.period) == ("faults", 7)
    assert chosen.reason.endswith("(as configured)")


@pytest.mark.parametrize("name", ["pmu", "emulated", "damon", "idle"])
def test_one_asked_for_is_not_replaced_by_another(name: Any, tmp_path: Path) -> None:
    with pytest.raises(MissingError):
        open_sampler(SampleSettings(sampler=name), sysfs=without_pmu(tmp_path))


def test_hardware_that_the_kernel_lacks_falls_back_too(tmp_path: Path) -> None:
    """Sysfs tells of a PMU; opening its events fails on this machine, or they work."""
    machine = tmp_path / "machine"
    shutil.copytree(MACHINES / "sapphire-rapids", machine)
    online = Path("/sys/devices/system/cpu/online").read_text()
    (machine / "sys/devices/system/cpu/online").write_text(online)
    chosen = open_sampler(SampleSettings(), machine / "proc", machine / "sys")
    chosen.sampler.close()
    assert chosen.sampler.name in ("faults", "pmu")


def test_there_is_one_damon_and_an_open_sampler_of_it_goes_on(
    damon_kernel: Any, tmp_path: Path
) -> None:
    kdamonds = Kdamonds(damon_kernel.sysfs, damon_kernel.write)
    first = open_damon(1000, note=tmp_path / "note", kdamonds=kdamonds)
    sysfs = without_pmu(damon_kernel.sysfs)
    found = open_sampler(SampleSettings(sampler="damon", period=2000), sysfs=sysfs, before=first)
    assert found.sampler is first
    assert first.period == 2000
    open_sampler(SampleSettings(sampler="damon"), sysfs=sysfs, before=first)
    assert first.period == 2000
    first.close()


@pytest.mark.parametrize("asked", ["auto", "softdirty"])
def test_soft_dirty_bits_are_never_taken_unasked(asked: Any, tmp_path: Path) -> None:
    """Not even where nothing else works: here, perf events are those of no CPU at all."""
    proc, sysfs = tmp_path / "proc", tmp_path / "sys"
    for folder in (proc, sysfs / "devices/system/cpu"):
        folder.mkdir(parents=True)
    (sysfs / "devices/system/cpu/online").write_text("4095\n")
    with pytest.raises(MissingError) as caught:
        open_sampler(SampleSettings(sampler=asked), proc, sysfs)
    assert ("soft-dirty" in str(caught.value)) == (asked == "softdirty")


def test_what_is_available_is_what_opens(emulated_memory: Any) -> None:
    found = available(SampleSettings(), sysfs=without_pmu(emulated_memory.sysfs))
    assert [one.name for one in found] == [
        "pmu",
        "emulated",
        "damon",
        "idle",
        "faults",
        "softdirty",
    ]
    assert [one.works for one in found][:5] == [False, True, False, False, True]
    assert all(one.detail and "\n" not in one.detail for one in found)
    for one in found:
        if one.works:
            settings = SampleSettings(sampler=one.name)
            open_sampler(settings, sysfs=emulated_memory.sysfs).sampler.close()
