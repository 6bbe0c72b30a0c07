# SPDX-License-Identifier: MIT
"""The name of the distribution and its extras, in messages, documents and pyproject.toml."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.machinery import PathFinder
from pathlib import Path
from typing import get_args

import pytest

from hmd.base import errors
from hmd.base.errors import MissingError

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_distribution_name_equals_hmd_tiering() -> None:
    assert PROJECT["name"] == errors.DISTRIBUTION == "hmd-tiering"
    assert PROJECT["scripts"] == {"hmd": "hmd.__main__:main"}


def test_extras_in_messages_equal_pyproject_extras() -> None:
    extras = PROJECT["optional-dependencies"].keys() - {"dev", "ci"}
    assert set(get_args(errors.Extra)) == extras


def test_missing_extra_message_names_running_interpreter() -> None:
    error = errors.missing_extra("a picture", "matplotlib", "plot", "or use --json")
    assert isinstance(error, MissingError)
    command = f"{sys.executable} -m pip install 'hmd-tiering[plot]'"
    assert str(error) == f"a picture needs matplotlib: {command}; or use --json"


def test_install_command_without_pip_names_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmd.base.errors.PathFinder.find_spec", lambda _: None)
    assert "pip install" not in errors.install_command("plot")
    assert "the wheel 'hmd-tiering[plot]'" in errors.install_command("plot")


@pytest.mark.skipif(PathFinder.find_spec("pip") is None, reason="no pip in this environment")
def test_pip_install_of_extra_needs_no_index_for_hmd(tmp_path: Path) -> None:
    """The command in the message installs the packages of an extra for the installed hmd."""
    folder = tmp_path / "hmd_tiering-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: hmd-tiering\nVersion: 0.1.0\n"
        'Provides-Extra: plot\nRequires-Dist: numpy; extra == "plot"\n'
    )
    (folder / "INSTALLER").write_text("pip\n")
    (folder / "RECORD").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-index", "hmd-tiering[plot]"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert "Requirement already satisfied: hmd-tiering[plot]" in done.stdout
    assert "Requirement already satisfied: numpy" in done.stdout


def test_documents_and_sources_never_install_pypi_project_hmd() -> None:
    folders = ("hmd", "docs", "bench", "packaging", "config", "setup", "README.md")
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", *folders],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    texts = [ROOT / name for name in listed if name.endswith((".py", ".md", ".yaml", ".sh"))]
    assert len(texts) > 100
    wrong = re.compile(r"pip install '?hmd(\[|\b(?!-|_))|\bhmd\[")
    assert [str(path) for path in texts if path.exists() and wrong.search(path.read_text())] == []
