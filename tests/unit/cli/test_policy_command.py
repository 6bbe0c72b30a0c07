"""hmd policy: list and show, as tables, JSON and YAML."""

from __future__ import annotations

import json

import pytest

from hmd.cli.main import main
from hmd.config import loads
from hmd.decide import registry
from hmd.errors import Exit


def test_policy_list_shows_all_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "list"]) == Exit.OK
    text = capsys.readouterr().out
    for name in registry.names():
        assert f"  {name} " in text
    assert f"{registry.DEFAULT} *" in text


def test_policy_list_json_names_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "list", "--json"]) == Exit.OK
    found = json.loads(capsys.readouterr().out)
    assert [policy["name"] for policy in found] == list(registry.names())
    assert [policy["name"] for policy in found if policy["default"]] == [registry.DEFAULT]


def test_policy_show_units_and_effects(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "show", "histogram"]) == Exit.OK
    text = capsys.readouterr().out
    assert "headroom       auto" in text
    assert "headroom_min   4MiB" in text
    assert "0% to 99%" in text
    assert "hysteresis: How many times hotter a page must be" in text


def test_policy_show_json_in_base_units(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "show", "histogram", "--json"]) == Exit.OK
    shown = json.loads(capsys.readouterr().out)
    by_key = {knob["key"]: knob for knob in shown["settings"]}
    assert by_key["headroom_min"]["default"] == 4 << 20
    assert by_key["headroom_min"]["unit"] == "bytes"
    assert by_key["worth"]["most"] == 1


@pytest.mark.parametrize("name", registry.names())
def test_policy_show_yaml_is_configuration_of_defaults(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "show", name, "--yaml"]) == Exit.OK
    config = loads(capsys.readouterr().out)
    assert config.decide.policy == name
    about = registry.about(name)
    assert about.settings(**config.decide.policy_settings()) == about.settings()


def test_policy_show_unknown_name_one_line_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "show", "lru"]) == Exit.USAGE
    assert capsys.readouterr().err.startswith("hmd: there is no policy 'lru': choose one of ")
