# SPDX-License-Identifier: MIT
"""Output files appear whole or not at all, and replace neither devices nor links."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hmd.base.atomic_file import check_writable, finished_file, write_finished
from hmd.base.errors import HmdError, MissingError
from hmd.emulate.recordings.misses import MissStream
from hmd.sample.access_batch import SAMPLE_COLUMNS, Samples
from hmd.trace.convert import export
from hmd.trace.trace import Trace


def stream() -> MissStream:
    return MissStream(
        instructions=np.zeros(1, np.uint64),
        paid_hits=np.zeros(1, np.uint32),
        near_hits=np.zeros(1, np.uint32),
        page=np.zeros(1, np.uint32),
        line=np.zeros(1, np.uint8),
        flags=np.zeros(1, np.uint8),
        depends=np.zeros(1, np.uint16),
        page_address=np.zeros(1, np.uint64),
        user_pages=1,
    )


def trace() -> Trace:
    columns = {name: np.zeros(1, dtype) for name, dtype in SAMPLE_COLUMNS.items()}
    return Trace({"begin_ns": 0}, (), Samples(**columns))


def test_finished_file_failed_block_leaves_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out.npz"
    path.write_text("old")
    for error in (KeyboardInterrupt, ValueError):
        with pytest.raises(error), finished_file(path) as file:
            file.write(b"new")
            raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_finished_file_full_disk_names_file(tmp_path: Path) -> None:
    with (
        pytest.raises(HmdError, match=r"out: No space left on device") as failed,
        finished_file(tmp_path / "out"),
    ):
        raise OSError(28, os.strerror(28))
    assert "partial" not in str(failed.value)


@pytest.mark.parametrize("old", [True, False])
def test_finished_file_link_stays_and_target_replaced(old: bool, tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    if old:
        target.write_text("old")
        target.chmod(0o640)
    link.symlink_to("target")
    write_finished(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert not old or stat.S_IMODE(target.stat().st_mode) == 0o640


def test_miss_stream_and_export_into_pipe_keep_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.npz"
    os.mkfifo(pipe)
    writes: list[Callable[[Path], None]] = [stream().write, lambda path: export(trace(), path)]
    for write in writes:
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            write(pipe)
            assert os.read(reader, 4) == b"PK\3\4"
        finally:
            os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_miss_stream_into_null_device_keeps_it(tmp_path: Path) -> None:
    device = tmp_path / "null.npz"
    os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    stream().write(device)
    assert device.is_char_device()


def test_miss_streams_of_one_stem_have_partial_files_of_their_own(tmp_path: Path) -> None:
    other = tmp_path / "a.partial"
    other.write_text("something else")
    stream().write(tmp_path / "a.misses")
    assert other.read_text() == "something else"


def test_export_failed_leaves_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.npz"
    path.write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(HmdError, match="cannot write"):
        export(trace(), path)
    assert path.read_text() == "old"


def test_check_writable_folder_or_missing_folder_refused(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path, "Is a directory"),
        (tmp_path / "none" / "out", "No such file or directory"),
    ):
        with pytest.raises(MissingError, match=f"cannot write {path}: {reason}"):
            check_writable(path)


def test_check_writable_leaves_nothing_behind(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a reader
    for name in ("new", "pipe"):
        check_writable(tmp_path / name)
    assert [each.name for each in tmp_path.iterdir()] == ["pipe"]
