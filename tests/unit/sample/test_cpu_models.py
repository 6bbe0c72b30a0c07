# SPDX-License-Identifier: MIT
"""Reorder window and outstanding misses of the core, by the CPU model of /proc/cpuinfo."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from hmd.sample.cpu_models import Core, CpuModel, find_core, find_raw_events, read_cpu_model

MACHINES = Path(__file__).parents[2] / "fixtures/sysfs"


@pytest.mark.parametrize(
    ("machine", "core"),
    [
        ("cascade-lake", Core(224, 12)),
        ("ice-lake-sp", Core(352, 12)),
        ("sapphire-rapids", Core(512, 16)),
        ("granite-rapids", Core(512, 16)),
        ("sierra-forest", Core(256, 16)),
        ("vm-with-pebs", Core(352, 12)),
        ("alder-lake", Core(512, 16)),
        ("zen3", Core(256, 24)),
        ("zen4", Core(320, 24)),
        ("zen5", Core(448, 24)),
        ("neoverse-n1", None),
    ],
)
def test_core_of_fixture_machine_is_known(machine: str, core: Core | None) -> None:
    assert find_core(read_cpu_model(MACHINES / machine / "proc")) == core


@pytest.mark.parametrize(
    ("vendor", "family", "model", "core"),
    [
        ("GenuineIntel", 6, 0x4F, Core(192, 10)),  # Broadwell
        ("GenuineIntel", 6, 0xAD, Core(512, 16)),  # Granite Rapids
        ("GenuineIntel", 6, 0xAF, Core(256, 16)),  # Sierra Forest
        ("GenuineIntel", 6, 0xC6, Core(576, 16)),  # Arrow Lake
        ("AuthenticAMD", 0x17, 0x01, Core(192, 22)),  # Naples
        ("AuthenticAMD", 0x17, 0x31, Core(224, 22)),  # Rome
        ("AuthenticAMD", 0x19, 0x11, Core(320, 24)),  # Genoa
        ("GenuineIntel", 6, 0x5E, Core(224, 10)),  # Skylake, desktop
        ("GenuineIntel", 6, 0xFE, None),
        ("GenuineIntel", 15, 0x55, None),
        ("AuthenticAMD", 0x19, 0xF0, None),
        ("AuthenticAMD", 15, 107, None),
        ("", 0, 0, None),
    ],
)
def test_core_of_cpu_model_is_known(
    vendor: str, family: int, model: int, core: Core | None
) -> None:
    assert find_core(CpuModel(vendor, family, model, 0.0)) == core


def test_nominal_clock_does_not_follow_the_present_one(tmp_path: Path) -> None:
    """The kernel's ``cpu MHz`` is the clock of the moment, of an idle CPU or one in turbo."""
    for machine, mhz in (("sapphire-rapids", 2000.0), ("zen4", 2400.0), ("cascade-lake", 2500.0)):
        root = tmp_path / machine
        shutil.copytree(MACHINES / machine, root)
        cpuinfo = root / "proc/cpuinfo"
        for present in ("800.000", "3799.998"):
            text = re.sub(r"(?m)^cpu MHz\t\t: .*$", f"cpu MHz\t\t: {present}", cpuinfo.read_text())
            cpuinfo.write_text(text)
            assert read_cpu_model(root / "proc", root / "sys").mhz == mhz


@pytest.mark.parametrize(
    ("family", "model", "pmu", "miss", "stores"),
    [
        (6, 0xAF, "cpu", None, 0x06D0),  # Sierra Forest: 0x80D1 is L2_MISS, without addresses
        (6, 0xDD, "cpu", None, 0x06D0),  # Clearwater Forest
        (6, 0xAD, "cpu", 0x20D1, 0x02CD),  # Granite Rapids
        (6, 0xB5, "cpu_atom", None, 0x06D0),  # Arrow Lake U, Crestmont
        (6, 0xC6, "cpu_core", 0x20D1, 0x02CD),  # Arrow Lake S, Lion Cove
        (6, 0xC5, "cpu_lowpower", None, 0x06D0),  # Arrow Lake H
        (6, 0xBD, "cpu_core", 0x20D1, 0x02CD),  # Lunar Lake
        (6, 0xCC, "cpu_atom", None, 0x06D0),  # Panther Lake, Darkmont
        (6, 0xBE, "cpu", 0x80D1, 0x06D0),  # Alder Lake N, Gracemont
        (6, 0x97, "cpu", 0x20D1, 0x02CD),  # Alder Lake, small cores off
        (6, 0x57, "cpu", 0x0404, None),  # Knights Landing: no L3
        (18, 0x01, "cpu_core", None, 0x02CD),  # Nova Lake
        (18, 0x02, "cpu_core", None, None),
        (6, 0x5, "cpu", None, None),
    ],
)
def test_raw_events_of_model_are_those_with_addresses(
    family: int, model: int, pmu: str, miss: int | None, stores: int | None
) -> None:
    found = find_raw_events(CpuModel("GenuineIntel", family, model, 0.0), pmu)
    assert (found.load_miss and found.load_miss.config) == miss
    assert (found.stores and found.stores.config) == stores
