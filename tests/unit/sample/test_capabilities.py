"""Capabilities of samplers: a table in the order of auto, and no comparison by name elsewhere."""

from __future__ import annotations

import ast
from pathlib import Path

from hmd.machine.process_id import PROC
from hmd.sample import auto_select
from hmd.sample.capabilities import CAPABILITIES

PACKAGE = Path(auto_select.__file__).parents[1]


def test_capabilities_list_every_sampler_in_order_of_auto() -> None:
    openers = auto_select._openers(auto_select.SampleSettings(), PROC, Path("/sys"))
    assert tuple(CAPABILITIES) == tuple(openers)


def test_capabilities_only_faults_and_softdirty_miss_reads() -> None:
    blind = {name for name, able in CAPABILITIES.items() if not able.sees_reads}
    assert blind == {"faults", "softdirty"}


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
