# SPDX-License-Identifier: MIT
"""Loading a configuration: any bytes give settings or ConfigError."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from config_reference import decide_example
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hmd.base import quantities
from hmd.base.errors import ConfigError
from hmd.base.yaml_document import parse_document, resolve
from hmd.config import Config, load, loads
from hmd.config.load import validate

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "config/hmd.yaml"


def test_load_empty_file_all_defaults() -> None:
    assert loads("") == loads("# nothing\n") == loads("sample:\ntargets:\n") == Config()


def test_load_result_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        loads("").tick = 2.0


def test_load_values_in_base_units() -> None:
    config = loads(
        "tick: 500ms\ntargets: [{name: db, pid: 7, min_rss: 64MiB}]\n"
        "migrate: {rate: 1.5GiB/s, batch: 5ms}\nsample: {cpu_quota: 2.5%}\n"
        "machine: {tiers: [[0, 2], [1]]}\nobserve: {metrics: off}\n"
    )
    assert config.tick == 0.5
    assert config.targets[0].pid == (7,)
    assert config.targets[0].min_rss == 64 << 20
    assert config.migrate.rate == 1536 << 20
    assert config.migrate.batch == pytest.approx(0.005)
    assert config.sample.cpu_quota == pytest.approx(0.025)
    assert config.machine.tiers == ((0, 2), (1,))
    assert config.observe.metrics == "off"


def test_load_target_limits_sizes_or_shares_round_trip() -> None:
    config = loads(
        "targets: [{name: a, pid: 1, fast_min: 2GiB, fast_max: 62.5%, keep: x}, {name: b, pid: 2}]"
    )
    one, other = config.targets
    assert (one.fast_min, one.fast_max) == (
        quantities.Amount(size=2 << 30),
        quantities.Amount(share=0.625),
    )
    assert (other.fast_min, other.fast_max) == (
        quantities.Amount(size=0),
        quantities.Amount(share=1.0),
    )
    assert one.keep == ("x",)
    dumped = config.model_dump(mode="json")
    assert dumped["targets"][0]["fast_max"] == "62.5%"
    assert loads(yaml.safe_dump(dumped)) == config


def test_load_runtime_drop_ins_before_administrator_drop_ins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch system adds its job as a target; the administrator's drop-ins take precedence."""
    file, runtime = tmp_path / "hmd.yaml", tmp_path / "run"
    module = sys.modules[load.__module__]
    monkeypatch.setattr(module, "CONFIG_FILE", file)
    monkeypatch.setattr(module, "RUNTIME_DROP_INS", runtime)
    file.write_text("tick: 1s\n")
    assert load(file).tick == 1
    for folder, tick in ((runtime, 3), (tmp_path / "hmd.d", 4)):
        folder.mkdir()
        (folder / "job.yaml").write_text(
            f"tick: {tick}s\ntargets: [{{name: job{tick}, cgroup: /job{tick}}}]\n"
        )
    config = load(file)
    assert [target.name for target in config.targets] == ["job3", "job4"]
    assert config.tick == 4
    other = tmp_path / "other.yaml"
    other.write_text("tick: 1s\n")
    assert load(other).targets == ()


def test_load_drop_ins_merged_in_name_order(tmp_path: Path) -> None:
    (tmp_path / "hmd.yaml").write_text("tick: 1s\ntargets: [{name: a, pid: 1}]\n")
    folder = tmp_path / "hmd.d"
    folder.mkdir()
    (folder / "20.yaml").write_text("migrate: {dry_run: true}\ntick: 3s\n")
    (folder / "10.yaml").write_text(
        "tick: 2s\ntargets: [{name: b, pid: 2}]\nmigrate: {rate: 1MiB/s}\n"
    )
    (folder / "notes.txt").write_text("not: [yaml")
    config = load(tmp_path / "hmd.yaml")
    assert config.tick == 3
    assert [target.name for target in config.targets] == ["a", "b"]
    assert (config.migrate.dry_run, config.migrate.rate) == (True, 1 << 20)


def test_example_valid_shows_every_setting_at_default() -> None:
    text = EXAMPLE.read_text()
    load(EXAMPLE)
    for path, default in leaves(Config().model_dump(mode="json")):
        key = path[-1]
        assert re.search(rf"^ *(# )?{key}:", text, re.MULTILINE), f"{path} is not shown"
        if (shown := at(yaml.safe_load(text), path)) is not None:
            assert shown == default, f"{path} is not at its default"


def test_example_decide_section_matches_policies() -> None:
    text = EXAMPLE.read_text()
    start, end = text.index("decide:\n"), text.index("\nmigrate:\n")
    assert text[start:end] == decide_example()


def leaves(
    tree: dict[str, object], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], object]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def at(tree: dict[str, object], path: tuple[str, ...]) -> object:
    node: object = tree
    for key in path:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def test_load_dumped_config_round_trips() -> None:
    config = load(EXAMPLE)
    assert loads(yaml.safe_dump(config.model_dump(mode="json"))) == config


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_load_any_bytes_settings_or_config_error(data: bytes) -> None:
    try:
        validate(parse_document(data, "f"))
    except ConfigError as error:
        assert all(line.startswith("f:") for line in str(error).splitlines())


WORDS = st.sampled_from(
    ["tick", "targets", "sample", "stores", "name", "pid", ": ", "- ", "\n", "  ", "{", "}", "[",
     "]", "&a ", "*a", "!!int ", "|\n", "? ", "'", '"', "\\", "1s", "yes", "0777", "%YAML 9.9\n",
     "---\n", "...\n", "#", ",", "<<", "\ud7ff", "\\ud800", "\\UFFFFFFFF", "\t", "9" * 5000]
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(WORDS, max_size=30).map("".join))
def test_load_any_near_yaml_settings_or_config_error(text: str) -> None:
    try:
        loads(text, "f")
    except ConfigError as error:
        lines = str(error).split("\n")
        assert all(line.startswith("f:") and line.isprintable() for line in lines)


KEYS = st.sampled_from(["tick", "targets", "sample", "migrate", "name", "pid", "x"])
LEAVES = st.none() | st.booleans() | st.text() | st.integers() | st.floats()


@settings(deadline=None)
@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner)))
def test_load_any_yaml_value_settings_or_config_error(value: object) -> None:
    try:
        loads(yaml.safe_dump(value), "f")
    except ConfigError as error:
        assert str(error).startswith("f:")


@settings(deadline=None)
@given(st.integers(0, 2**50))
def test_parse_size_and_rate_round_trip(size: int) -> None:
    assert quantities.parse_size(quantities.format_size(size)) == size
    assert quantities.parse_rate(quantities.format_rate(size)) == size


@settings(deadline=None)
@given(st.floats(1e-5, 1e5))
def test_parse_duration_round_trips(seconds: float) -> None:
    assert quantities.parse_duration(quantities.format_duration(seconds)) == pytest.approx(
        seconds, rel=1e-5
    )


@settings(deadline=None)
@given(st.floats(0.001, 1))
def test_parse_share_round_trips(share: float) -> None:
    assert quantities.parse_share(quantities.format_percent(share)) == pytest.approx(
        share, rel=1e-5
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("no", "no"), ("0", 0), ("-7", -7), ("010", "010"), ("1e3", "1e3"),
     ("2.50", 2.5), (".inf", ".inf"), ("~", None), ("2001-01-01", "2001-01-01")],
)  # fmt: skip
def test_resolve_plain_scalar_follows_core_schema(text: str, value: object) -> None:
    assert resolve(text) == value
    assert type(resolve(text)) is type(value)
