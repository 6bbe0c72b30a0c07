"""The prose check: what it finds in Markdown, Python and C, and what it leaves alone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def prose() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prose", ROOT / "packaging/prose/prose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["prose"] = module
    spec.loader.exec_module(module)
    return module


def found(prose: ModuleType, tmp_path: Path, name: str, text: str) -> list[tuple[int, str]]:
    file = tmp_path / name
    file.write_text(text)
    return [(p.line, p.message) for p in prose.check(file, prose.load_phrases())]


@pytest.mark.parametrize(
    ("line", "write"),
    [
        ("The page was hot of late.", "recently"),
        ("It costs 12 bytes a page.", "per"),
        ("The socket tells the state.", "reports"),
        ("hmd beside its peers.", "compared with"),
        ("Every so manieth miss.", "one in N"),
        ("The bug is mended.", "fix"),
    ],
)
def test_markdown_banned_phrase_reported_with_replacement(
    prose: ModuleType, tmp_path: Path, line: str, write: str
) -> None:
    (problem,) = found(prose, tmp_path, "a.md", f"# Title\n\n{line}\n")
    assert problem[0] == 3
    assert write in problem[1]


def test_markdown_phrase_over_line_end_reported_once(prose: ModuleType, tmp_path: Path) -> None:
    problems = found(prose, tmp_path, "a.md", "A page that was hot of\nlate stays.\n")
    assert [line for line, _ in problems] == [1]


@pytest.mark.parametrize(
    "text",
    [
        "A key `of late` is code.\n",
        "```console\nhmd tell of late\n```\n",
        "He said: of late. <!-- prose: allow -->\n",
        "- one sentence\n- another one, e.g. Linux\n",
        "| a very long table row |" + " x |" * 60 + "\n|---|" + "---|" * 60 + "\n",
        "Denoyelle et al. Describe it.\n",
    ],
)
def test_markdown_code_quotation_table_accepted(
    prose: ModuleType, tmp_path: Path, text: str
) -> None:
    assert found(prose, tmp_path, "a.md", text) == []


def test_markdown_two_sentences_on_a_line_reported(prose: ModuleType, tmp_path: Path) -> None:
    ((_, message),) = found(prose, tmp_path, "a.md", "hmd samples. It decides.\n")
    assert message.startswith("more than one sentence")


def test_markdown_long_line_reported(prose: ModuleType, tmp_path: Path) -> None:
    assert found(prose, tmp_path, "a.md", "word " * 30 + "\n")[0][1].startswith("150 columns")


def test_markdown_broken_link_reported(prose: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("x\n")
    problems = found(prose, tmp_path, "a.md", "See [b](b.md#x), [c](c.md), [d](https://e.org).\n")
    assert problems == [(1, "link to c.md: no such file")]


def test_python_docstring_comment_and_text_reported(prose: ModuleType, tmp_path: Path) -> None:
    source = '"""Text of late."""\nof_late = 1  # told\nx = "hot of late"\ny = "`of late`"\n'
    assert [line for line, _ in found(prose, tmp_path, "a.py", source)] == [1, 2, 3]


def test_c_comment_reported_and_code_not(prose: ModuleType, tmp_path: Path) -> None:
    source = 'int told; /* one\n * of late */\nchar *x = "told"; // anew\n'
    assert [line for line, _ in found(prose, tmp_path, "a.c", source)] == [2, 3]


def test_phrases_each_name_a_replacement(prose: ModuleType) -> None:
    phrases = prose.load_phrases()
    assert len(phrases) > 20
    assert all(phrase.write for phrase in phrases)
