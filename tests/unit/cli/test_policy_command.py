# SPDX-License-Identifier: MIT
"""hmd policy: list and show, as tables, JSON and YAML."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hmd.base.errors import ConfigError, Exit
from hmd.cli.main import main
from hmd.config import loads
from hmd.policy import registry


def test_policy_list_shows_all_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "list"]) == Exit.OK
    text = capsys.readouterr().out
    for name in registry.names():
        assert f"\n{name} " in text
    assert f"{registry.DEFAULT} *" in text


def test_policy_list_json_names_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "list", "--json"]) == Exit.OK
    found = json.loads(capsys.readouterr().out)["policies"]
    assert [policy["name"] for policy in found] == list(registry.names())
    assert [policy["name"] for policy in found if policy["default"]] == [registry.DEFAULT]


def test_policy_show_units_and_effects(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "show", "histogram"]) == Exit.OK
    text = capsys.readouterr().out
    assert re.search(r"^headroom +auto ", text, re.MULTILINE)
    assert re.search(r"^headroom_min +4MiB ", text, re.MULTILINE)
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
    about = registry.info(name)
    assert config.decide.policy_settings() == about.settings_type()


def test_policy_show_unknown_name_one_line_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "show", "lru"]) == Exit.USAGE
    assert capsys.readouterr().err.startswith("hmd: there is no policy 'lru': choose one of ")


def test_policy_file_that_is_not_there_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "show", f"{tmp_path}/mine.py"]) == Exit.USAGE
    assert capsys.readouterr().err == f"hmd: policy {tmp_path}/mine.py: No such file\n"


def test_policy_file_that_may_not_be_reached_is_an_error_of_the_configuration() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with TemporaryDirectory() as folder:  # of mode 700
        os.seteuid(65534)
        try:
            with pytest.raises(ConfigError, match="PermissionError"):
                registry.add_file(Path(folder, "mine.py"))
        finally:
            os.seteuid(0)
