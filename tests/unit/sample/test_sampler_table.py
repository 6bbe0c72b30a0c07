# SPDX-License-Identifier: MIT
"""The table of samplers: its openers, and no comparison by name elsewhere."""

from __future__ import annotations

import ast
from inspect import signature
from pathlib import Path

import pytest

import hmd.sample
from hmd.sample.sampler import CAPABILITIES, SAMPLERS
from hmd.sample.selection import find_opener

PACKAGE = Path(hmd.sample.__file__).parents[1]


@pytest.mark.parametrize("name", SAMPLERS)
def test_entry_names_an_opener_of_settings_and_folders(name: str) -> None:
    parameters = list(signature(find_opener(name)).parameters)
    exclusive = SAMPLERS[name].capabilities.exclusive
    assert parameters[: 3 + exclusive] == ["settings", "proc", "sysfs", "before"][: 3 + exclusive]


def test_capabilities_only_faults_miss_reads() -> None:
    blind = {name for name, able in CAPABILITIES.items() if not able.sees_reads}
    assert blind == {"faults"}


def test_modules_compare_no_sampler_by_name() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and names_of(node) & CAPABILITIES.keys():
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert not found


def names_of(comparison: ast.Compare) -> set[object]:
    """Return the string constants that a comparison has on either side, in tuples too."""
    sides = [comparison.left, *comparison.comparators]
    return {
        part.value
        for side in sides
        for part in [side, *getattr(side, "elts", [])]
        if isinstance(part, ast.Constant)
    }
