# SPDX-License-Identifier: MIT
"""Building the plugin: caching, and errors in one line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hmd.base.errors import MissingError
from hmd.emulate import assets


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HMD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(assets, "_PLUGIN_OPTIONS", ("-O0", "-shared", "-fPIC"))
    return tmp_path / "cache"


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sources, to change."""
    folders = []
    for folder in assets.PLUGIN_SOURCES:
        folders.append(Path(shutil.copytree(folder, tmp_path / "sources" / folder.name)))
    monkeypatch.setattr(assets, "PLUGIN_SOURCES", tuple(folders))
    return tmp_path / "sources"


def test_plugin_library_is_compiled_once_per_source_state(cache: Path, sources: Path) -> None:
    first = assets.plugin_library()
    assert first.parent == cache
    assert b"qemu_plugin_install" in first.read_bytes()
    written = first.stat().st_mtime_ns
    assert assets.plugin_library() == first
    assert first.stat().st_mtime_ns == written
    with (sources / "plugin/shared.h").open("a") as file:
        file.write("/* changed */\n")
    second = assets.plugin_library()
    assert second != first
    assert {path.name for path in cache.iterdir()} == {first.name, second.name}


def test_plugin_library_without_compiler_reports_one_line(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_args, **_keywords: None)
    with pytest.raises(MissingError) as raised:
        assets.plugin_library()
    assert str(raised.value).startswith("cc is not installed")
    assert "\n" not in str(raised.value)


def test_plugin_library_compile_error_is_one_line_and_leaves_no_file(
    cache: Path, sources: Path
) -> None:
    (sources / "plugin/broken.c").write_text("int f(void) { return nothing; }\n")
    with pytest.raises(MissingError) as raised:
        assets.plugin_library()
    assert "\n" not in str(raised.value)
    assert "cannot compile the emulated machine's plugin" in str(raised.value)
    assert list(cache.iterdir()) == []
