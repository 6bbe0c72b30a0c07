# SPDX-License-Identifier: MIT
from pathlib import Path

import pytest

from hmd.base.errors import ConfigError
from hmd.base.units import MIB
from hmd.emulate import preset
from hmd.emulate.preset import load, parse, parse_cpus, preset_names, with_cpus, with_nodes
from hmd.emulate.recordings.replay import TimingModel
from hmd.emulate.timing_params import ModelPart, parts_named, timing_params
from hmd.sample.periods import PEBS_RECORD, RecordCost

GOOD = (Path(__file__).parents[3] / "hmd/emulate/presets/dram-pm.yaml").read_text()


def error_of(text: str) -> str:
    with pytest.raises(ConfigError) as raised:
        parse(text.encode(), "p.yaml")
    return str(raised.value)


@pytest.mark.parametrize("name", preset_names())
def test_preset_bundled_accepted_by_timing_model(name: str) -> None:
    machine = load(name)
    assert machine.name == name
    assert len(machine.nodes) >= 2
    with TimingModel(timing_params(machine)) as model:
        assert model.clock_ps == 0


def test_preset_file_added_to_folder_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "near-far.yaml").write_text(GOOD.replace("name: dram-pm", "name: near-far", 1))
    (tmp_path / "README.md").write_text("no preset")
    monkeypatch.setattr(preset, "_PRESETS", tmp_path)
    assert preset_names() == ("near-far",)
    assert load("near-far").name == "near-far"
    with pytest.raises(ConfigError, match="take one of near-far, or"):
        load("dram-pm")


@pytest.mark.parametrize("name", preset_names())
def test_preset_bundled_nodes_name_their_source(name: str) -> None:
    for node in load(name).nodes:
        assert len(node.source) > 20
        assert [point.utilisation for point in node.loaded] == [0.25, 0.5, 0.75, 0.9]


def test_preset_dram_pm_published_optane_figures() -> None:
    optane = load("dram-pm").nodes[1]
    assert (optane.read_latency_ns, optane.read_bandwidth_gbps) == (305, 39.4)
    assert (optane.write_bandwidth_gbps, optane.granularity_bytes) == (13.9, 256)
    assert optane.cpus == ()


def test_preset_error_names_file_line_and_field() -> None:
    line = GOOD[: GOOD.index("read_latency_ns: 305")].count("\n") + 1
    text = GOOD.replace("read_latency_ns: 305", "read_latency_ns: -1")
    assert error_of(text).startswith(f"p.yaml:{line}: nodes.1.read_latency_ns: ")


def test_preset_unknown_or_missing_field_refused() -> None:
    text = GOOD.replace("granularity_bytes: 256", "granularty: 256")
    assert "nodes.1.granularty" in error_of(text)
    assert "nodes.1.size" in error_of(GOOD.replace("Optane\n    size: 1GiB", "Optane"))


def test_preset_duplicate_key_refused() -> None:
    assert "already set" in error_of(GOOD + "name: other\n")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("size: 1GiB", "size: 100MiB\n    granularity_bytes: 96", "power of two"),
        ("size: 1GiB", "size: 65537KiB", "multiple of 2MiB"),
        ("size: 1GiB", "size: 1", "with its unit"),
        ("cpus: 0-1", "cpus: 1-2", "0 to n-1"),
        ("cpus: 0-1", "cpus: ''", "0 to n-1"),
        ("cpus: 0-1", "cpus: 0..1", "list of CPUs"),
        ("utilisation: 0.90, factor: 1.47", "utilisation: 0.90, factor: 1.1", "ascend"),
        ("nodes:", "distances: [[10]]\nnodes:", "2 rows of 2"),
        ("nodes:", "distances: [[10, 9], [20, 10]]\nnodes:", "11 to 254"),
    ],
)
def test_preset_impossible_machine_refused(old: str, new: str, message: str) -> None:
    assert old in GOOD
    assert message in error_of(GOOD.replace(old, new, 1))


def test_preset_unknown_name_error_lists_presets() -> None:
    with pytest.raises(ConfigError, match="dram-cxl, dram-pm"):
        load("dram-pn")
    with pytest.raises(ConfigError, match="cannot be read"):
        load("/nowhere/p.yaml")


def test_preset_path_given_file_loaded(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace("name: dram-pm", "name: mine"))
    assert load(str(path)).name == "mine"


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-1", (0, 1)), ("0,2-3", (0, 2, 3)), (3, (3,)), ("", ()), (None, ()), ([1, 0], (1, 0))],
)
def test_parse_cpus_each_notation_expected_tuple(text: object, cpus: tuple[int, ...]) -> None:
    assert parse_cpus(text) == cpus


def test_node_flags_replace_nodes_and_inherit_other_fields() -> None:
    flags = ["size=256MiB,cpus=0,2", "size=128MiB,cpus=1", "read-latency=400,read-bandwidth=10"]
    made = with_nodes(load("dram-pm"), flags)
    assert [node.size // MIB for node in made.nodes] == [256, 128, 1024]
    assert [node.cpus for node in made.nodes] == [(0, 2), (1,), ()]
    assert made.nodes[0].read_latency_ns == load("dram-pm").nodes[0].read_latency_ns
    assert (made.nodes[2].read_latency_ns, made.nodes[2].read_bandwidth_gbps) == (400, 10)
    assert made.nodes[2].granularity_bytes == 256


def test_node_flags_without_cpus_first_node_has_all() -> None:
    made = with_nodes(load("dram-pm"), ["size=256MiB", "size=128MiB"])
    assert [node.cpus for node in made.nodes] == [(0, 1), ()]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("speed=3", "'speed=3' is not FIELD=VALUE"),
        ("size", "'size' is not FIELD=VALUE"),
        ("size=1", "nodes.0.size: write a size with its unit"),
        ("read-latency=slow", "nodes.0.read_latency_ns"),
    ],
)
def test_node_flags_invalid_reported(flag: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_nodes(load("dram-pm"), [flag])


def test_with_cpus_spread_over_nodes_with_cpus() -> None:
    two = with_nodes(load("dram-pm"), ["cpus=0", "cpus=1", "size=1GiB"])
    assert [node.cpus for node in with_cpus(two, 4).nodes] == [(0, 1), (2, 3), ()]
    with pytest.raises(ConfigError, match="2 to 16"):
        with_cpus(two, 1)


def test_model_parts_by_name_unknown_refused() -> None:
    assert parts_named(["cache", "mlp"]) == ModelPart.CACHE | ModelPart.MLP
    assert timing_params(load("dram-pm"), ModelPart.CACHE).parts == ModelPart.CACHE
    with pytest.raises(ConfigError, match="bandwith"):
        parts_named(["bandwith"])


def test_default_cost_of_samples_is_what_samplers_assume() -> None:
    sampling = load("dram-pm").sampling
    assert (
        RecordCost(sampling.record_ns, sampling.interrupt_ns, sampling.buffer_records)
        == PEBS_RECORD
    )
