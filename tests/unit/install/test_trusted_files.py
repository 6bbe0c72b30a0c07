# SPDX-License-Identifier: MIT
"""Who may change what the service would run: every file, folder and link on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hmd.daemon import install
from hmd.daemon.install import list_untrusted, refusal


@pytest.fixture(autouse=True)
def own_files_are_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests run as any user: that user stands for root."""
    monkeypatch.setattr(install, "ROOT", os.getuid())


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    command = tmp_path / "home/venv/bin/hmd"
    command.parent.mkdir(parents=True)
    command.touch(0o755)
    library = tmp_path / "home/venv/lib/hmd/cli"
    library.mkdir(parents=True)
    (library / "main.py").touch(0o644)
    for folder in (tmp_path, *(path for path in tmp_path.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    return tmp_path / "home/venv"


def below(places: list[str], folder: Path) -> list[str]:
    """Return the places below a folder: what is above it is this machine's."""
    return [place.removeprefix(f"{folder}/") for place in places if place.startswith(f"{folder}/")]


def test_files_of_root_alone_trusted(venv: Path, tmp_path: Path) -> None:
    assert below(list_untrusted([venv / "bin/hmd", venv / "lib"]), tmp_path) == []


@pytest.mark.parametrize("place", ["home", "home/venv", "home/venv/bin", "home/venv/bin/hmd"])
def test_place_on_the_way_that_everyone_may_write_found(
    venv: Path, tmp_path: Path, place: str
) -> None:
    (tmp_path / place).chmod(0o777)
    assert below(list_untrusted([venv / "bin/hmd"]), tmp_path) == [f"{place} (everyone may write)"]


def test_library_below_a_folder_found(venv: Path, tmp_path: Path) -> None:
    (venv / "lib/hmd/cli/main.py").chmod(0o646)
    assert below(list_untrusted([venv / "lib"]), tmp_path) == [
        "home/venv/lib/hmd/cli/main.py (everyone may write)"
    ]


def test_target_of_a_link_found(venv: Path, tmp_path: Path) -> None:
    link = tmp_path / "bin"
    link.symlink_to(venv / "bin")
    (venv / "bin").chmod(0o777)
    assert below(list_untrusted([link / "hmd"]), tmp_path) == ["home/venv/bin (everyone may write)"]


def test_sticky_folder_of_root_trusted(venv: Path, tmp_path: Path) -> None:
    (tmp_path / "home").chmod(0o1777)
    assert below(list_untrusted([venv / "bin/hmd"]), tmp_path) == []


def test_file_of_another_user_found(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "ROOT", os.getuid() + 1)
    assert f"home/venv/bin/hmd (uid {os.getuid()})" in below(
        list_untrusted([venv / "bin/hmd"]), tmp_path
    )


def test_refusal_lists_a_few_and_counts_the_rest() -> None:
    line = refusal([f"/home/{name} (uid 1000)" for name in "abcde"])
    assert "/home/a (uid 1000), /home/b (uid 1000), /home/c (uid 1000) and 2 more; " in line
    assert "--accept-writable" in line


def test_link_below_a_folder_and_its_target_found(venv: Path, tmp_path: Path) -> None:
    others = tmp_path / "others/package"
    others.mkdir(parents=True)
    (others / "code.py").touch()
    (others / "code.py").chmod(0o646)
    (venv / "lib/package").symlink_to(others)
    assert below(list_untrusted([venv / "lib"]), tmp_path) == [
        "home/venv/lib/package/code.py (everyone may write)"
    ]


def test_folder_that_a_pth_file_adds_found(venv: Path, tmp_path: Path) -> None:
    """Python imports from what .pth files name, wherever that is."""
    added = tmp_path / "home/project"
    added.mkdir()
    added.chmod(0o777)
    (venv / "lib/editable.pth").write_text(f"import sys\n{added}\n/no/such/folder\n")
    assert below(list_untrusted([venv / "lib"]), tmp_path) == ["home/project (everyone may write)"]
