# SPDX-License-Identifier: MIT
"""The table of settings, compared with the schema from which it is generated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from config_reference import SettingRow, topics

from hmd.config import Config

TABLE = {(topic.path, setting.key): setting for topic in topics() for setting in topic.settings}


def test_setting_row_values_in_configuration_syntax() -> None:
    assert TABLE["", "tick"] == SettingRow(
        "tick",
        "as in 500ms",
        "1s",
        "at least 10ms, at most 1h",
        "Time between two decisions.",
    )
    histogram = TABLE["decide.histogram", "worth"]
    assert (histogram.kind, histogram.default, histogram.limits) == (
        "as in 10%",
        "10%",
        "0% to 100%",
    )
    assert TABLE["migrate", "dry_run"].kind == "true or false"
    assert TABLE["migrate", "dry_run"].default == "false"
    assert TABLE["heat", "store_weight"].limits == "more than 0, at most 100"
    assert TABLE["sample", "period"].limits == "at least 1, at most 2147483648"
    assert TABLE["decide", "pageout"].limits == "at least 1s"
    assert TABLE["machine", "tiers"].kind == "list of lists of whole numbers"
    assert TABLE["decide", "policy"].kind.startswith("one of age, ")


def test_setting_row_without_default_empty() -> None:
    for key in ("name", "pid", "exe", "keep"):
        assert TABLE["targets", key].default == ""


def test_setting_rows_all_have_effect_and_kind() -> None:
    assert all(setting.effect and setting.kind for setting in TABLE.values())


def test_setting_rows_cover_all_of_schema() -> None:
    schema = Config.model_json_schema()

    def keys(path: str, node: dict[str, Any]) -> Iterator[tuple[str, str]]:
        for key, given in node["properties"].items():
            if "$ref" in given:
                below = schema["$defs"][given["$ref"].rsplit("/", 1)[-1]]
                yield from keys(f"{path}.{key}".lstrip("."), below)
            else:
                yield path, key

    targets = set(schema["$defs"]["TargetSection"]["properties"])
    shown = {*keys("", schema), *(("targets", key) for key in targets)}
    assert set(TABLE) == shown - {("decide", "guard")}  # accepted, without effect
