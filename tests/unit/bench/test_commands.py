# SPDX-License-Identifier: MIT
"""Commands and files of bench/ that documents and sources name exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
COMMAND = re.compile(r"python -m (bench(?:\.[a-z][a-z_]*)+)")
FILE = re.compile(r"\bbench/[a-z][a-z_/]*\.(?:py|c|yaml)\b")


def texts() -> dict[str, str]:
    """Return the text of each tracked document and source but dated notes, by path."""
    listed = ["git", "ls-files", "*.md", "hmd/*.py", "bench/*.py", "Makefile"]
    files = subprocess.run(listed, cwd=ROOT, text=True, capture_output=True, check=True).stdout
    present = [
        name
        for name in files.split()
        if (ROOT / name).exists() and not name.startswith("docs/lab/")
    ]
    return {name: (ROOT / name).read_text() for name in present}


def test_documents_named_benchmarks_are_runnable_modules() -> None:
    named = {(name, found) for name, text in texts().items() for found in COMMAND.findall(text)}
    assert len(named) > 10
    missing = set()
    for name, module in named:
        path = ROOT / f"{module.replace('.', '/')}.py"
        if not (path.exists() and '__name__ == "__main__"' in path.read_text()):
            missing.add((name, module))
    assert not missing


def test_documents_named_bench_files_exist() -> None:
    named = {(name, found) for name, text in texts().items() for found in FILE.findall(text)}
    assert len(named) > 10
    assert not {(name, file) for name, file in named if not (ROOT / file).exists()}
