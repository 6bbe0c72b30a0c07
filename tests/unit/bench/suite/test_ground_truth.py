# SPDX-License-Identifier: MIT
"""Digests of recordings: they depend on code and inputs, and not on comments."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.suite.ground_truth import code_of, program_digest, source_files
from bench.suite.program import load_program, program_names

C = "/* A comment\n * of two lines. */\nint f(void)\n{\n\treturn 1; // one\n}\n"
PYTHON = '"""Doc."""\n\n\ndef f():\n    """Doc."""\n    return 1  # one\n'


@pytest.mark.parametrize(
    ("name", "text", "comment", "code"),
    [
        ("a.c", C, C.replace("of two lines", "reworded"), C.replace("1;", "2;")),
        ("a.py", PYTHON, PYTHON.replace("Doc.", "Other."), PYTHON.replace("return 1", "return 2")),
        ("a.yaml", "a: 1\n", "\na: 1\n", "a: 2\n"),
    ],
)
def test_code_of_comment_changed_same_digest_code_changed_other(
    tmp_path: Path, name: str, text: str, comment: str, code: str
) -> None:
    found = []
    for each in (text, comment, code):
        path = tmp_path / name
        path.write_text(each)
        found.append(code_of(path))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("program", "files"),
    [
        ("updates_scattered", {"updates.c", "common.h"}),
        ("redis", {"redis_load.c", "common.h", "inputs.py"}),
        ("pagerank", {"pagerank.py", "inputs.py"}),
        ("align", {"inputs.py"}),
        ("btree", set()),
    ],
)
def test_program_digest_covers_sources_headers_scripts_generators(
    program: str, files: set[str]
) -> None:
    assert {path.name for path in source_files(load_program(program))} == files


def test_program_digests_differ_between_programs() -> None:
    assert len({program_digest(name) for name in program_names()}) == len(program_names())
