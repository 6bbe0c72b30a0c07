# SPDX-License-Identifier: MIT
"""docs/how-to/troubleshooting.md has each diagnostic of doctor, and its messages when not ok.

The messages are read from the code: the calls of ``Diagnostic``, the warnings of the
daemon's start, and the errors of samplers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.system.docs.blocks import ROOT

FILE = ROOT / "docs/how-to/troubleshooting.md"
PAGE = re.sub(r"[`\s]+", " ", FILE.read_text().replace("\\|", "|"))
REFUSING = [
    *("hmd/sample/memory_events.py", "hmd/sample/perf_events.py", "hmd/sample/idle_pages.py"),
    *("hmd/sample/emulated_pebs.py", "hmd/sample/selection.py", "hmd/linux/damon.py"),
]
LEAST = 10
"""Letters of a text that is looked for: shorter ones are words between two values."""


def parsed(file: str | Path) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


def calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            found = called.attr if isinstance(called, ast.Attribute) else ast.unparse(called)
            if found == name:
                yield node


def fragments(node: ast.AST) -> Iterator[str]:
    """Yield the fixed texts in an expression, up to the advice behind a colon."""
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            text = re.sub(r"[`\s]+", " ", each.value).split(":")[0].strip(" ;,(")
            if len(text) >= LEAST:
                yield text


@cache
def findings() -> dict[str, set[str]]:
    """Return what each finding of the code may say where it is not ok, by its name."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "hmd").rglob("*.py")):
        tree = parsed(path)
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            for call in calls(function, "Diagnostic"):
                names = list(_names(call.args[0], function, tree))
                assert names, f"{path}:{call.lineno}: a finding whose name is not to be seen"
                for name in names:
                    messages = found.setdefault(name, set())
                    if ast.unparse(call.args[1]) != "Severity.OK":
                        messages |= set(fragments(call.args[2]))
    return found


def _names(node: ast.expr, function: ast.FunctionDef, tree: ast.Module) -> Iterator[str]:
    """Yield the names that an expression may have: a text, a variable's, or a parameter's."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    if not isinstance(node, ast.Name):
        return
    for each in ast.walk(function):
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == node.id:
            yield from _names(each.value, function, tree)
    for place, parameter in enumerate(function.args.args):
        if parameter.arg == node.id:
            for call in calls(tree, function.name):
                yield from _names(call.args[place], function, tree)


def section(name: str) -> str:
    found = re.split(r" ##+ ", PAGE.split(f" ### {name} ")[1])
    return found[0]


def test_findings_of_the_sources_include_known_diagnostics() -> None:
    names = set(findings())
    assert {"memory tiers", "sampler", "move_pages", "damon_reclaim", "NUMA balancing"} <= names
    assert len(names) >= 20


@pytest.mark.parametrize("name", sorted(findings()))
def test_finding_has_a_section_with_its_messages(name: str) -> None:
    assert f" ### {name} " in PAGE, f"docs/how-to/troubleshooting.md: ### {name}"
    missing = [text for text in findings()[name] if text not in section(name)]
    assert not missing, f"docs/how-to/troubleshooting.md: ### {name}: {missing}"


def test_sections_name_existing_diagnostics() -> None:
    part = FILE.read_text().split("\n## Diagnostics of doctor\n")[1].split("\n## ")[0]
    sections = re.findall(r"^### (.+)$", part, re.MULTILINE)
    assert len(sections) >= 20
    assert set(sections) <= set(findings())


def test_start_warnings_are_all_documented() -> None:
    messages = {
        text
        for node in ast.walk(parsed("hmd/daemon/checks.py"))
        if isinstance(node, ast.Yield) and node.value is not None
        for text in fragments(node.value)
    }
    for function in ast.walk(parsed("hmd/linux/topology.py")):
        if isinstance(function, ast.FunctionDef) and "tier_warning" in function.name:
            for returned in ast.walk(function):
                if isinstance(returned, ast.Return) and returned.value is not None:
                    messages |= set(fragments(returned.value))
    assert len(messages) >= 8
    assert not {text for text in messages if text not in PAGE}


def test_sampler_errors_are_all_documented() -> None:
    part = PAGE.split(" ### sampler ")[1].split(" ### ")[0]
    messages = set()
    for file in REFUSING:
        tree = parsed(file)
        for error in ("MissingError", "NotPermittedError", "os_error"):
            messages |= {text for call in calls(tree, error) for text in fragments(call)}
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and function.name == "_advice":
                messages |= {
                    text
                    for returned in ast.walk(function)
                    if isinstance(returned, ast.Return) and returned.value is not None
                    for text in fragments(returned.value)
                }
    assert len(messages) >= 20
    missing = sorted(text for text in messages if text not in part)
    assert not missing
