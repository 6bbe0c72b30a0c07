# SPDX-License-Identifier: MIT
"""ARCHITECTURE.md and CONTRIBUTING.md name files that exist, and every room of the package."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOP = "hmd|bench|config|docs|packaging|setup|systemd|tests"
PATH = re.compile(rf"`((?:{TOP})/[\w./-]*)`")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_document_named_path_exists(document: str) -> None:
    named = set(PATH.findall((ROOT / document).read_text()))
    assert len(named) > 5
    files = {path for path in named if "NAME" not in path and "TOPOLOGY" not in path}
    assert sorted(path for path in files if not (ROOT / path).exists()) == []


def test_architecture_start_file_exists_in_its_room() -> None:
    rows = re.findall(r"^\| `(hmd/\w+/)` \| .* \| ([^|]*) \|$", ARCHITECTURE, re.MULTILINE)
    files = [(room, name) for room, names in rows for name in re.findall(r"`([\w./]+)`", names)]
    assert len(files) > 20
    assert [room + name for room, name in files if not (ROOT / room / name).exists()] == []


def test_architecture_every_room_of_the_package_listed() -> None:
    rooms = {f"hmd/{p.parent.name}/" for p in ROOT.glob("hmd/*/__init__.py")}
    assert len(rooms) > 10
    assert sorted(room for room in rooms if f"`{room}`" not in ARCHITECTURE) == []


def test_sources_name_their_licence() -> None:
    listed = ["git", "ls-files", "hmd", "bench", "tests", "packaging", "setup"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    sources = [
        ROOT / name
        for name in names.splitlines()
        if name.endswith((".py", ".c", ".h", ".js")) and not name.startswith("tests/fixtures")
    ]
    assert len(sources) > 500
    texts = ((path, path.read_text()[:200]) for path in sources if path.exists())
    assert not [str(path) for path, text in texts if "SPDX-License-Identifier: MIT" not in text]
