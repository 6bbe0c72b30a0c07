# SPDX-License-Identifier: MIT
"""Limits on the length of argument lists in hmd/."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import hmd

PACKAGE = Path(hmd.__file__).parent
#: Arguments that a call may give by position, and in all.
MOST_BY_POSITION, MOST = 8, 12


def argument_lists(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Yield each function's place and its numbers of positional and of all arguments."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = [arg.arg for arg in node.args.posonlyargs + node.args.args]
                count = len(given) - (given[:1] in (["self"], ["cls"]))
                place = f"{file.relative_to(folder)}:{node.lineno} {node.name}"
                yield place, count, count + len(node.args.kwonlyargs)


def test_functions_argument_lists_within_limits() -> None:
    found = list(argument_lists(PACKAGE))
    assert len(found) > 1000
    long = [
        f"{place}: {by_position} by position, {all_of_them} in all"
        for place, by_position, all_of_them in found
        if by_position > MOST_BY_POSITION or all_of_them > MOST
    ]
    assert not long, "\n".join(long)
