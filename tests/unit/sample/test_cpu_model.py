"""How far cores look ahead, by the CPU that /proc/cpuinfo names."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmd.sample.cpu_model import CpuModel, read_cpu_model, reorder_window

MACHINES = Path(__file__).parents[2] / "fixtures/sysfs"


@pytest.mark.parametrize(
    ("machine", "window"),
    [
        ("cascade-lake", 224),
        ("ice-lake-sp", 352),
        ("sapphire-rapids", 512),
        ("alder-lake", 512),
        ("zen3", 256),
        ("zen4", 320),
        ("zen5", 448),
        ("neoverse-n1", None),
    ],
)
def test_the_window_of_a_machine(machine: str, window: int | None) -> None:
    assert reorder_window(read_cpu_model(MACHINES / machine / "proc")) == window


@pytest.mark.parametrize(
    ("vendor", "family", "model", "window"),
    [
        ("GenuineIntel", 6, 0x4F, 192),  # Broadwell
        ("GenuineIntel", 6, 0xAD, 512),  # Granite Rapids
        ("GenuineIntel", 6, 0xAF, 256),  # Sierra Forest
        ("AuthenticAMD", 0x17, 0x01, 192),  # Naples
        ("AuthenticAMD", 0x17, 0x31, 224),  # Rome
        ("AuthenticAMD", 0x19, 0x11, 320),  # Genoa
        ("GenuineIntel", 6, 0xFE, None),
        ("GenuineIntel", 15, 0x55, None),
        ("AuthenticAMD", 0x19, 0xF0, None),
        ("AuthenticAMD", 15, 107, None),
        ("", 0, 0, None),
    ],
)
def test_the_window_of_a_model(vendor: str, family: int, model: int, window: int | None) -> None:
    assert reorder_window(CpuModel(vendor, family, model, 0.0)) == window
