# SPDX-License-Identifier: MIT
"""Sizes of pages and cache lines are defined once, in a module that imports nothing of hmd."""

from __future__ import annotations

import ast
from pathlib import Path

from hmd.base import units

ROOT = Path(__file__).parents[2]


def assigned_names(path: Path) -> set[str]:
    """Return the names that a module assigns at its top level, without leading underscores."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        names |= {each.id.lstrip("_") for each in targets if isinstance(each, ast.Name)}
    return names


def test_units_sizes_not_redefined_elsewhere() -> None:
    home = Path(units.__file__)
    shared = assigned_names(home)
    assert {"PAGE_BYTES", "HUGE_PAGE_BYTES", "LINE_BYTES"} <= shared
    again = {
        f"{path.relative_to(ROOT)}: {name}"
        for room in ("hmd", "bench")
        for path in (ROOT / room).rglob("*.py")
        if path != home
        for name in assigned_names(path) & shared
    }
    assert not again


def test_units_import_nothing_of_hmd() -> None:
    found = {
        node.module
        for node in ast.walk(ast.parse(Path(units.__file__).read_text()))
        if isinstance(node, ast.ImportFrom)
    }
    assert found == {"__future__", "pathlib", "typing"}
