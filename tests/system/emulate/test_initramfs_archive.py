# SPDX-License-Identifier: MIT
"""The initramfs archive as BusyBox's cpio reads it."""

import stat
import subprocess
from pathlib import Path

from hmd.emulate.vm import images


def test_archive_unpacked_by_cpio_has_the_members(tmp_path: Path) -> None:
    members = [
        images.entry("folder", stat.S_IFDIR | 0o755),
        images.entry("folder/odd", stat.S_IFREG | 0o640, b"12345"),
        images.entry("empty", stat.S_IFREG | 0o755),
    ]
    busybox = ["busybox", "cpio", "-i", "-d"]
    subprocess.run(busybox, input=images.archive(members), cwd=tmp_path, check=True)
    assert (tmp_path / "folder/odd").read_bytes() == b"12345"
    assert (tmp_path / "folder/odd").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "empty").read_bytes() == b""
