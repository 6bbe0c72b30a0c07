"""ARCHITECTURE.md and CONTRIBUTING.md name files that exist, and every room of the package."""

from __future__ import annotations

import re
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
