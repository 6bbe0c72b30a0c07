# SPDX-License-Identifier: MIT
"""The JSON Schema accepts the files that hmd accepts, and its defaults satisfy it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from hmd.config import loads
from hmd.config.schema import json_schema

ROOT = Path(__file__).parents[3]
SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)

ACCEPTED = {
    "nothing in a section": "tick: 2s\nmachine:\ntargets:\nsample:\ndecide: {histogram: }\n",
    "one or many": "targets: [{name: a, pid: 7, keep: /dev/shm/}, {name: b, pid: [7, 8]}]",
    "a user by number": "targets: [{name: a, user: 1000}, {name: b, user: '1000'}]",
    "zero without a unit": "targets: [{name: a, pid: 1, min_rss: 0, fast_min: 0}]",
    "sizes and shares": "targets: [{name: a, pid: 1, fast_min: 2 GiB, fast_max: 62.5%}]",
    "auto and never": "decide: {pageout: never, age: {idle: auto, active: null}}",
    "durations": "decide: {pageout: 10min, age: {idle: 90s}}",
}
REFUSED = {
    "unknown key": "tragets: []",
    "bare number": "tick: 1",
    "wrong unit": "migrate: {rate: 5MiB}",
    "invalid choice": "sample: {sampler: pebs}",
    "text for a list of nodes": "machine: {tiers: fast}",
}


def problems(text: str) -> list[str]:
    return [e.message for e in VALIDATOR.iter_errors(yaml.safe_load(text) or {})]


def test_json_schema_valid_draft_2020_12() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_json_schema_accepts_example_and_daemonset() -> None:
    assert problems((ROOT / "config/hmd.yaml").read_text()) == []
    documents = yaml.safe_load_all((ROOT / "packaging/kubernetes/hmd.yaml").read_text())
    (text,) = [d["data"]["hmd.yaml"] for d in documents if d["kind"] == "ConfigMap"]
    assert problems(text) == []


def test_json_schema_accepts_commented_targets_of_example() -> None:
    example = (ROOT / "config/hmd.yaml").read_text()
    block = example.split("targets: []\n")[1].split("\n\n")[0]
    text = "targets:\n" + "\n".join(line.removeprefix("#") for line in block.splitlines())
    loads(text)
    assert problems(text) == []


@pytest.mark.parametrize("case", ACCEPTED)
def test_json_schema_accepts_what_loader_accepts(case: str) -> None:
    loads(ACCEPTED[case])
    assert problems(ACCEPTED[case]) == []


@pytest.mark.parametrize("case", REFUSED)
def test_json_schema_refuses_what_loader_refuses(case: str) -> None:
    assert problems(REFUSED[case]) != []


def with_defaults(node: Any, path: str = "$") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        if "default" in node:
            yield path, node
        for key, below in node.items():
            if key != "default":
                yield from with_defaults(below, f"{path}.{key}")


def test_json_schema_every_default_satisfies_own_schema() -> None:
    found = list(with_defaults(SCHEMA))
    assert len(found) > 40
    for path, node in found:
        own = Draft202012Validator({"$defs": SCHEMA["$defs"], **node})
        assert [f"{path}: {e.message}" for e in own.iter_errors(node["default"])] == []
