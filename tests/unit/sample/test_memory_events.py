# SPDX-License-Identifier: MIT
"""Encodings of memory events, compared with the sysfs of fixture machines."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hmd.base.errors import MissingError
from hmd.sample.access_batch import Kind
from hmd.sample.memory_events import EventSpec, Words, choose_events
from hmd.sample.sampler import SampleSettings

MACHINES = Path(__file__).parents[2] / "fixtures/sysfs"


def chosen(machine: str | Path, **choice: object) -> dict[str, EventSpec]:
    root = MACHINES / machine
    specs = choose_events(SampleSettings(**choice), root / "sys", root / "proc")  # type: ignore[arg-type]
    return {spec.name: spec for spec in specs}


@pytest.mark.parametrize(
    ("machine", "name", "pmu_type", "words", "leader", "kind", "cpus"),
    [
        ("cascade-lake", "cpu/mem-loads,ldlat=30/", 4, Words(0x01CD, 30), None, Kind.LOAD, None),
        ("cascade-lake", "cpu/mem-stores/", 4, Words(0x82D0), None, Kind.STORE, None),
        ("ice-lake-sp", "cpu/mem-loads,ldlat=30/", 4, Words(0x01CD, 30), None, Kind.LOAD, None),
        ("ice-lake-sp", "cpu/mem-stores/", 4, Words(0x82D0), None, Kind.STORE, None),
        (
            "sapphire-rapids",
            "cpu/mem-loads,ldlat=30/",
            4,
            Words(0x01CD, 30),
            Words(0x8203),
            Kind.LOAD,
            None,
        ),
        ("sapphire-rapids", "cpu/mem-stores/", 4, Words(0x02CD), None, Kind.STORE, None),
        (
            "alder-lake",
            "cpu_core/mem-loads,ldlat=30/",
            4,
            Words(0x01CD, 30),
            Words(0x8203),
            Kind.LOAD,
            tuple(range(16)),
        ),
        (
            "alder-lake",
            "cpu_core/mem-stores/",
            4,
            Words(0x02CD),
            None,
            Kind.STORE,
            tuple(range(16)),
        ),
        (
            "alder-lake",
            "cpu_atom/mem-loads,ldlat=30/",
            10,
            Words(0x05D0, 30),
            None,
            Kind.LOAD,
            tuple(range(16, 24)),
        ),
        (
            "alder-lake",
            "cpu_atom/mem-stores/",
            10,
            Words(0x06D0),
            None,
            Kind.STORE,
            tuple(range(16, 24)),
        ),
    ],
)
def test_events_of_pebs_machine_encoded_from_sysfs(
    machine: str,
    name: str,
    pmu_type: int,
    words: Words,
    leader: Words | None,
    kind: Kind,
    cpus: tuple[int, ...] | None,
) -> None:
    spec = chosen(machine)[name]
    assert (spec.type, spec.words, spec.leader) == (pmu_type, words, leader)
    assert (spec.kind, spec.cpus, spec.source) == (kind, cpus, "sysfs")
    assert spec.precise == (2, 1)
    assert spec.exclude_kernel


@pytest.mark.parametrize(
    ("machine", "words", "exclude_kernel"),
    [
        ("zen3", Words(1 << 19), False),
        ("zen4", Words(1 << 19 | 1 << 16), False),
        ("zen5", Words(1 << 19 | 1 << 16, 0, 1), True),
    ],
)
def test_events_of_ibs_machine_encoded_from_sysfs(
    machine: str, words: Words, exclude_kernel: bool
) -> None:
    (spec,) = chosen(machine).values()
    assert (spec.type, spec.words, spec.exclude_kernel) == (11, words, exclude_kernel)
    assert spec.precise == ()
    assert spec.period_ratio % 16 == 0


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ("cascade-lake", {"cpu": 0x20D1}),
        ("ice-lake-sp", {"cpu": 0x20D1}),
        ("sapphire-rapids", {"cpu": 0x20D1}),
        ("alder-lake", {"cpu_core": 0x20D1, "cpu_atom": 0x80D1}),
    ],
)
def test_events_of_l3_miss_loads_encoded_from_table(machine: str, words: dict[str, int]) -> None:
    specs = chosen(machine, loads="miss", stores=False).values()
    assert {spec.name.split("/")[0]: spec.words.config for spec in specs} == words
    assert all(spec.source == "table" and spec.leader is None for spec in specs)


@pytest.mark.parametrize(
    ("machine", "load", "aux", "store"),
    [
        ("cascade-lake", 0x01CD, None, 0x82D0),
        ("ice-lake-sp", 0x01CD, None, 0x82D0),
        ("sapphire-rapids", 0x01CD, 0x8203, 0x02CD),
    ],
)
def test_events_without_sysfs_names_table_agrees(
    machine: str, load: int, aux: int | None, store: int, tmp_path: Path
) -> None:
    root = tmp_path / "machine"
    shutil.copytree(MACHINES / machine, root)
    shutil.rmtree(root / "sys/bus/event_source/devices/cpu/events")
    from_table = chosen(root)
    loads = from_table["cpu/mem-loads,ldlat=30/"]
    assert loads.words == Words(load, 30)
    assert loads.leader == (None if aux is None else Words(aux))
    assert from_table["cpu/mem-stores/"].words == Words(store)
    for name, spec in chosen(machine).items():
        assert (spec.words, spec.leader) == (from_table[name].words, from_table[name].leader)
        assert from_table[name].source == "table"


def test_events_of_unknown_model_without_names_refused(tmp_path: Path) -> None:
    root = tmp_path / "machine"
    shutil.copytree(MACHINES / "cascade-lake", root)
    shutil.rmtree(root / "sys/bus/event_source/devices/cpu/events")
    cpuinfo = root / "proc/cpuinfo"
    cpuinfo.write_text(cpuinfo.read_text().replace("model\t\t: 85", "model\t\t: 254"))
    with pytest.raises(MissingError, match="has none for this CPU model: set sampler to faults"):
        chosen(root)


def test_events_follow_chosen_threshold_and_stores() -> None:
    (spec,) = chosen("sapphire-rapids", ldlat_cycles=128, stores=False).values()
    assert spec.words.config1 == 128


def test_events_of_stores_have_longer_period_than_loads() -> None:
    specs = chosen("cascade-lake")
    loads, stores = specs["cpu/mem-loads,ldlat=30/"], specs["cpu/mem-stores/"]
    assert stores.period_ratio > loads.period_ratio == 1


@pytest.mark.parametrize(
    ("machine", "line"),
    [
        ("neoverse-n1", "ARM SPE is present, but hmd does not decode its packets"),
        ("vm-without-pmu", "no PMU that samples memory accesses"),
        ("vm-without-pebs", "PMU cpu has no PEBS here"),
    ],
)
def test_events_of_unsupported_machine_refused_in_one_line(machine: str, line: str) -> None:
    with pytest.raises(MissingError, match=line) as raised:
        chosen(machine)
    assert "\n" not in str(raised.value)
    assert "set sampler to faults" in str(raised.value)


def test_events_of_amd_without_ibs_refused(tmp_path: Path) -> None:
    root = tmp_path / "machine"
    shutil.copytree(MACHINES / "zen4", root)
    shutil.rmtree(root / "sys/bus/event_source/devices/ibs_op")
    with pytest.raises(MissingError, match="no IBS"):
        chosen(root)


def test_events_with_empty_sysfs_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no PMU"):
        choose_events(SampleSettings(), tmp_path, tmp_path)
