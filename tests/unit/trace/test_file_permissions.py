# SPDX-License-Identifier: MIT
"""Traces and recordings are for their user alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmd.base.atomic_file import create_private
from hmd.emulate.recordings.misses import MissStream
from hmd.trace.convert import export
from hmd.trace.reader import read_trace
from hmd.trace.writer import TraceWriter


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def open_umask() -> None:
    os.umask(0o022)


@pytest.mark.parametrize("before", [None, 0o644, 0o666])
def test_private_file_new_or_replaced_is_for_its_user(tmp_path: Path, before: int | None) -> None:
    path = tmp_path / "file"
    if before is not None:
        path.write_text("old and longer")
        path.chmod(before)
    with create_private(path) as file:
        file.write(b"new")
    assert (mode(path), path.read_bytes()) == (0o600, b"new")


def test_private_file_of_a_device_keeps_its_mode() -> None:
    before = mode(Path("/dev/null"))
    create_private(Path("/dev/null")).close()
    assert mode(Path("/dev/null")) == before


def test_trace_and_its_export_are_for_their_user(tmp_path: Path) -> None:
    path = tmp_path / "a.hmdt"
    with TraceWriter(path, {"begin_ns": 0}):
        pass
    assert mode(path) == 0o600
    exported = tmp_path / "a.npz"
    export(read_trace(path, salvage=True), exported)
    assert mode(exported) == 0o600
    with np.load(exported) as columns:
        assert len(columns["time_ns"]) == 0


def test_miss_recording_is_for_its_user(tmp_path: Path) -> None:
    path = tmp_path / "a.misses"
    columns: dict[str, Any] = dict.fromkeys(MissStream.__dataclass_fields__, np.zeros(0, np.uint8))
    MissStream(**columns | {"threads": None, "frees": None}).write(path)
    assert mode(path) == 0o600
