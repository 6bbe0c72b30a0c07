# SPDX-License-Identifier: MIT
"""The check of Markdown: what it finds, and what it leaves alone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
pytest.importorskip("markdown_it", reason="no markdown-it-py")


@pytest.fixture(scope="module")
def prose() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prose", ROOT / "packaging/prose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["prose"] = module
    spec.loader.exec_module(module)
    return module


def found(prose: ModuleType, tmp_path: Path, text: str) -> list[tuple[int, str]]:
    file = tmp_path / "a.md"
    file.write_text(text)
    return [(problem.line, problem.message) for problem in prose.check(file)]


@pytest.mark.parametrize(
    "text",
    [
        "```console\nhmd samples. It decides.\n```\n",
        "- one sentence\n- another one, e.g. Linux\n",
        "| a very long table row |" + " x |" * 60 + "\n|---|" + "---|" * 60 + "\n",
        "Denoyelle et al. Describe it.\n",
    ],
)
def test_markdown_code_list_table_accepted(prose: ModuleType, tmp_path: Path, text: str) -> None:
    assert found(prose, tmp_path, text) == []


def test_markdown_two_sentences_on_a_line_reported(prose: ModuleType, tmp_path: Path) -> None:
    ((_, message),) = found(prose, tmp_path, "hmd samples. It decides.\n")
    assert message.startswith("more than one sentence")


def test_markdown_long_line_reported(prose: ModuleType, tmp_path: Path) -> None:
    assert found(prose, tmp_path, "word " * 30 + "\n")[0][1].startswith("150 columns")


def test_markdown_broken_link_reported(prose: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("x\n")
    problems = found(prose, tmp_path, "See [b](b.md#x), [c](c.md), [d](https://e.org).\n")
    assert problems == [(1, "link to c.md: no such file")]
