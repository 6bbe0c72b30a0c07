# SPDX-License-Identifier: MIT
"""Encodings of memory events, compared with the sysfs of fixture machines."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from hmd.base.errors import MissingError
from hmd.sample.access_batch import Kind
from hmd.sample.memory_events import EventSpec, Words, choose_events
from hmd.sample.periods import PRIME_PERIODS
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
    spec = chosen(machine, loads="latency")[name]
    assert (spec.type, spec.words, spec.leader) == (pmu_type, words, leader)
    assert (spec.kind, spec.cpus) == (kind, cpus)
    assert spec.precise == (2, 1)
    assert spec.can_exclude_kernel
    assert spec.exclude_guest, "virtual machines could not have the PMU"
    assert spec.latency == (kind is Kind.LOAD)
    assert not spec.twice, "load latency is to be taken alone"


@pytest.mark.parametrize(
    ("machine", "words", "can_exclude_kernel"),
    [
        ("zen3", Words(1 << 19), False),
        ("zen4", Words(1 << 19 | 1 << 16), False),
        ("zen5", Words(1 << 19 | 1 << 16, 0, 1), True),
    ],
)
def test_events_of_ibs_machine_encoded_from_sysfs(
    machine: str, words: Words, can_exclude_kernel: bool
) -> None:
    (spec,) = chosen(machine).values()
    assert (spec.type, spec.words, spec.can_exclude_kernel) == (11, words, can_exclude_kernel)
    assert spec.precise == ()
    assert spec.period_ratio == (16 if words.config & 1 << 16 else 16 * 64)
    assert not spec.exclude_guest, "IBS refuses it"
    # At most the default overhead, 1 % of a CPU, at the longest period and 4 µs per record,
    # whatever a core retires: 8 ops per cycle at 5 GHz.
    if not words.config & 1 << 16:
        assert 40e9 / (PRIME_PERIODS[-1] * spec.period_ratio) * 4e-6 < 0.01


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ("cascade-lake", {"cpu": 0x20D1}),
        ("ice-lake-sp", {"cpu": 0x20D1}),
        ("sapphire-rapids", {"cpu": 0x20D1}),
        ("granite-rapids", {"cpu": 0x20D1}),
        ("vm-with-pebs", {"cpu": 0x20D1}),
        ("alder-lake", {"cpu_core": 0x20D1, "cpu_atom": 0x80D1}),
    ],
)
def test_events_of_l3_miss_loads_are_the_default(machine: str, words: dict[str, int]) -> None:
    """A sample of load latency stands for an unknown number of loads."""
    specs = chosen(machine, stores=False).values()
    assert list(specs) == list(chosen(machine, loads="miss", stores=False).values())
    assert all(spec.twice and not spec.latency for spec in specs)
    assert {spec.name.split("/")[0]: spec.words.config for spec in specs} == words
    assert all(spec.leader is None for spec in specs)


@pytest.mark.parametrize(
    ("machine", "load", "aux", "store"),
    [
        ("cascade-lake", 0x01CD, None, 0x82D0),
        ("ice-lake-sp", 0x01CD, None, 0x82D0),
        ("sapphire-rapids", 0x01CD, 0x8203, 0x02CD),
        ("granite-rapids", 0x01CD, None, 0x02CD),
        ("sierra-forest", 0x05D0, None, 0x06D0),
    ],
)
def test_events_without_sysfs_names_table_agrees(
    machine: str, load: int, aux: int | None, store: int, tmp_path: Path
) -> None:
    root = tmp_path / "machine"
    shutil.copytree(MACHINES / machine, root)
    shutil.rmtree(root / "sys/bus/event_source/devices/cpu/events")
    from_table = chosen(root, loads="latency")
    loads = from_table["cpu/mem-loads,ldlat=30/"]
    assert loads.words == Words(load, 30)
    assert loads.leader == (None if aux is None else Words(aux))
    (stores,) = (spec for spec in from_table.values() if spec.kind is Kind.STORE)
    assert stores.words == Words(store)
    named = chosen(machine, loads="latency").values()
    for spec, raw in zip(named, from_table.values(), strict=True):
        assert (spec.words, spec.leader) == (raw.words, raw.leader)


def test_events_of_unknown_model_without_names_refused(tmp_path: Path) -> None:
    root = tmp_path / "machine"
    shutil.copytree(MACHINES / "cascade-lake", root)
    shutil.rmtree(root / "sys/bus/event_source/devices/cpu/events")
    cpuinfo = root / "proc/cpuinfo"
    cpuinfo.write_text(cpuinfo.read_text().replace("model\t\t: 85", "model\t\t: 254"))
    with pytest.raises(MissingError, match="knows for this CPU model: set sampler to damon"):
        chosen(root)


def with_model(tmp_path: Path, model: int) -> Path:
    root = tmp_path / f"model-{model:x}"
    shutil.copytree(MACHINES / "cascade-lake", root)
    cpuinfo = root / "proc/cpuinfo"
    cpuinfo.write_text(cpuinfo.read_text().replace("model\t\t: 85", f"model\t\t: {model}"))
    return root


def test_events_of_core_without_miss_event_are_by_latency(tmp_path: Path) -> None:
    sierra_forest, unknown = with_model(tmp_path, 0xAF), with_model(tmp_path, 0xFE)
    for root in (sierra_forest, unknown):
        assert "cpu/mem-loads,ldlat=30/" in chosen(root)
        with pytest.raises(MissingError, match=r"set sample\.loads to latency"):
            chosen(root, loads="miss")


def test_events_of_core_without_stores_are_loads_alone(tmp_path: Path) -> None:
    root = with_model(tmp_path, 0x57)  # Knights Landing
    shutil.rmtree(root / "sys/bus/event_source/devices/cpu/events")
    assert list(chosen(root)) == ["cpu/mem_uops_retired.l2_miss_loads/"]
    with pytest.raises(MissingError, match=r"set sample\.loads to miss"):
        chosen(root, loads="latency")


def test_events_follow_chosen_threshold_and_stores() -> None:
    (spec,) = chosen("sapphire-rapids", loads="latency", ldlat_cycles=128, stores=False).values()
    assert spec.words.config1 == 128


def test_events_of_stores_have_longer_period_than_loads() -> None:
    specs = chosen("cascade-lake")
    loads, stores = specs["cpu/mem_load_retired.l3_miss/"], specs["cpu/mem-stores/"]
    assert stores.period_ratio > loads.period_ratio == 1


@pytest.mark.parametrize(
    ("machine", "line"),
    [
        ("neoverse-n1", "this CPU samples by ARM SPE: set sampler to spe"),
        ("grace", "this CPU samples by ARM SPE: set sampler to spe"),
        ("vm-without-pmu", "no PMU that samples memory accesses"),
        ("vm-without-pebs", "PMU cpu has no PEBS here"),
    ],
)
def test_events_of_unsupported_machine_refused_in_one_line(machine: str, line: str) -> None:
    with pytest.raises(MissingError, match=line) as raised:
        chosen(machine)
    assert "\n" not in str(raised.value)
    assert re.search("set sampler to spe|damon and faults need none", str(raised.value))


def test_events_of_amd_without_ibs_refused(tmp_path: Path) -> None:
    root = tmp_path / "machine"
    shutil.copytree(MACHINES / "zen4", root)
    shutil.rmtree(root / "sys/bus/event_source/devices/ibs_op")
    with pytest.raises(MissingError, match="no IBS"):
        chosen(root)


def test_events_with_empty_sysfs_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no PMU"):
        choose_events(SampleSettings(), tmp_path, tmp_path)


def test_loads_alone_sampled_where_the_kernel_names_no_stores(tmp_path: Path) -> None:
    """Nehalem and Westmere: mem-loads in sysfs, and no event of stores with addresses."""
    device = tmp_path / "sys/bus/event_source/devices/cpu"
    for name, text in (
        ("type", "4"),
        ("events/mem-loads", "event=0x0b,umask=0x10,ldlat=3"),
        ("format/event", "config:0-7"),
        ("format/umask", "config:8-15"),
        ("format/ldlat", "config1:0-15"),
        ("caps/max_precise", "3"),
    ):
        file = device / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(
        "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 26\n"
    )
    specs = choose_events(SampleSettings(), tmp_path / "sys", tmp_path / "proc")
    assert [(spec.name, spec.kind) for spec in specs] == [("cpu/mem-loads,ldlat=30/", Kind.LOAD)]
