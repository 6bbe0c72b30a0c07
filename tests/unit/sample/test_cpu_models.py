# SPDX-License-Identifier: MIT
"""Reorder window and outstanding misses of the core, by the CPU model of /proc/cpuinfo."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmd.sample.cpu_models import Core, CpuModel, find_core, read_cpu_model

MACHINES = Path(__file__).parents[2] / "fixtures/sysfs"


@pytest.mark.parametrize(
    ("machine", "core"),
    [
        ("cascade-lake", Core(224, 12)),
        ("ice-lake-sp", Core(352, 12)),
        ("sapphire-rapids", Core(512, 16)),
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
