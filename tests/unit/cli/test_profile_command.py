# SPDX-License-Identifier: MIT
"""hmd profile: list, show, export, import and forget, without a daemon."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hmd.base.errors import Exit
from hmd.cli.main import main
from hmd.linux.mappings import MappingKind
from hmd.profiles.objects import ObjectKey
from hmd.profiles.profile import Profile, ProfileObject
from hmd.profiles.store import ProfileStore

KEY = "cg-1000-0123456789abcdef"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one profile: a heap with a hot end, later a file with a hot begin."""
    folder = tmp_path / "profiles"
    folder.mkdir(0o700)
    counts = np.zeros((4, 20), np.float32)
    counts[:2, 9], counts[2:, 10], counts[:, 0] = 800, 400, 1
    objects = (
        ProfileObject(ObjectKey(MappingKind.HEAP, ""), float(10 << 20), 10),
        ProfileObject(ObjectKey(MappingKind.FILE, "matrix.\x1b[31m"), float(20 << 20), 10),
    )
    ProfileStore(folder).write(KEY, Profile(objects, counts, 3.5, 12.5).to_bytes())
    return folder


def test_folder_that_no_daemon_has_made_says_how_it_comes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (("list",), ("show", "x")):
        assert run(*words, "--directory", tmp_path / "none") == Exit.MISSING
        said = capsys.readouterr().err
        assert said == (
            f"hmd: there are no profiles: no folder {tmp_path}/none, which a daemon with 'learn'"
            " makes\n"
        )


def run(*words: str | Path) -> int:
    return main([str(word) for word in ("profile", *words)])


def test_list_shows_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--directory", folder) == Exit.OK
    text = capsys.readouterr().out
    for part in ("cg", "1000", "3.5", "12.500 s", KEY):
        assert part in text


def test_list_names_damaged_ones_and_leaves_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / f"{KEY}.profile").write_bytes(b"damaged")
    assert run("list", "--directory", folder, "--json") == Exit.OK
    (found,) = json.loads(capsys.readouterr().out)["profiles"]
    assert found["key"] == KEY
    assert found["runs"] is None
    assert "no usable profile" in found["problem"]
    assert (folder / f"{KEY}.profile").exists()
    assert run("list", "--directory", folder) == Exit.OK
    assert "no usable profile" in capsys.readouterr().out


def test_show_draws_objects_and_phases(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "cg", "--directory", folder) == Exit.OK
    heap, file = (
        line for line in capsys.readouterr().out.splitlines() if "heap" in line or "file" in line
    )
    assert "10.0 MiB" in heap
    assert "66." in heap
    assert "·        █" in heap
    assert "██" in heap
    assert "█   " in file
    assert "\x1b" not in file


def test_show_json_has_shares_that_sum_to_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("show", KEY, "--directory", folder, "--json") == Exit.OK
    found = json.loads(capsys.readouterr().out)
    assert found["key"] == KEY
    assert sum(one["share"] for one in found["objects"]) == pytest.approx(1)
    heap = found["objects"][0]
    assert sum(heap["by_block"]) == pytest.approx(heap["share"])
    assert sum(heap["by_phase"]) == pytest.approx(heap["share"])


def test_export_and_import_elsewhere(folder: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "cg.profile", tmp_path / "other"
    other.mkdir()
    assert run("export", "cg", file, "--directory", folder) == Exit.OK
    assert file.stat().st_mode & 0o777 == 0o600
    assert run("import", file, "--directory", other) == Exit.USAGE
    assert run("import", file, "--key", KEY, "--directory", other) == Exit.OK
    name = f"{KEY}.profile"
    assert (other / name).read_bytes() == (folder / name).read_bytes()
    (other / name).unlink()
    assert run("import", folder / name, "--directory", other) == Exit.OK


def test_import_refuses_what_is_no_profile(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / f"{KEY}.profile").read_bytes()
    file = tmp_path / f"{KEY}.profile"
    file.write_bytes(b"\0" * 1000)
    assert run("import", file, "--directory", folder) == Exit.FAILURE
    assert "no usable profile" in capsys.readouterr().err
    assert (folder / f"{KEY}.profile").read_bytes() == before


def test_forget_removes_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("forget", "cg", "--directory", folder) == Exit.OK
    assert not list(folder.iterdir())
    assert run("forget", "cg", "--directory", folder) == Exit.TARGET
    assert "no profile 'cg'" in capsys.readouterr().err
