# SPDX-License-Identifier: MIT
from __future__ import annotations

from pathlib import Path

import pytest

from hmd.base.errors import ConfigError
from hmd.base.units import GIB
from hmd.tensors.memory_system import load_system, preset_names


@pytest.mark.parametrize("name", preset_names())
def test_preset_loads_with_a_source(name: str) -> None:
    system = load_system(name)
    assert system.name == name
    assert system.source


def test_g10_preset_paths_and_bandwidths() -> None:
    system = load_system("g10")
    assert system.names == ("gpu", "host", "ssd")
    assert not system.in_place
    assert system.bandwidth(1, inwards=True) == pytest.approx(15.754e9)
    assert system.bandwidth(2, inwards=False) == pytest.approx(3.2e9)
    assert set(system.path(1)) & set(system.path(2)) == {0}


def test_latency_of_path_lowers_rate_of_small_transactions() -> None:
    system = load_system("g10")
    links = (system.links[0].model_copy(update={"latency_us": 10.0}), *system.links[1:])
    slow = system.model_copy(update={"links": links})
    assert slow.latency_seconds(1) == pytest.approx(10e-6)
    assert system.transfer_rate(1, 4096, inwards=True) == system.bandwidth(1, inwards=True)
    expected = 4096 / (10e-6 + 4096 / 15.754e9)
    assert slow.transfer_rate(1, 4096, inwards=True) == pytest.approx(expected)


def test_changed_system_has_other_capacity_and_rate() -> None:
    system = load_system("g10").changed({"host": 16 * GIB}, {"flash": 6.4})
    assert system.tiers[1].capacity == 16 * GIB
    assert system.bandwidth(2, inwards=True) == pytest.approx(6.4e9)


TIERS = "{{name: x, tiers: [{{name: a, capacity: {}}}, {{name: b}}]"
LINKS = "links: [{{name: l, between: [a, b], in: {}, out: 1}}]"


def test_system_file_reads_decimal_units_and_words_that_look_like_dates(tmp_path: Path) -> None:
    file = tmp_path / "system.yaml"
    text = f"{TIERS.format('40GB')}, {LINKS.format('1')}}}"
    file.write_text(text.replace("name: x", "name: 2020-13-45"))
    system = load_system(str(file))
    assert (system.name, system.tiers[0].capacity) == ("2020-13-45", 40 * 10**9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tiers: [", "not YAML"),
        ("name: x", "tiers: Field required"),
        (
            "{name: x, tiers: [{name: a}, {name: b}],"
            " links: [{name: l, between: [a, c], in: 1, out: 1}]}",
            "none lead from b to a",
        ),
        (
            "{name: x, tiers: [{name: a, capacity: 3 apples}, {name: b}],"
            " links: [{name: l, between: [a, b], in: 1, out: 1}]}",
            "write a size with its unit",
        ),
        (f"{TIERS.format('infGiB')}, {LINKS.format('1')}}}", "write a size with its unit"),
        (f"{TIERS.format('40')}, {LINKS.format('1')}}}", "write a size with its unit"),
        (f"{TIERS.format('40GiB')}, {LINKS.format('1e-300')}}}", "greater than or equal to 0.001"),
        ("{name: x, name: y}", "'name' is already set in line 1"),
        ("[" * 5000, "nested"),
        (
            "{name: x, tiers: [{name: a}, {name: b, access_us: 1}],"
            " links: [{name: l, between: [a, b], in: 1, out: 1}]}",
            "access_us is for lower tiers that kernels compute from",
        ),
    ],
)
def test_wrong_system_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "system.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_system(str(file))
    assert "\n" not in str(caught.value)


def test_unknown_system_names_the_presets() -> None:
    with pytest.raises(ConfigError, match="g10"):
        load_system("nothing")
