"""The initramfs archive as BusyBox's cpio reads it."""

import stat
import subprocess
from pathlib import Path

from hmd.emulate.virtual_machine import initramfs


def test_archive_unpacked_by_cpio_has_the_members(tmp_path: Path) -> None:
    members = [
        initramfs.entry("folder", stat.S_IFDIR | 0o755),
        initramfs.entry("folder/odd", stat.S_IFREG | 0o640, b"12345"),
        initramfs.entry("empty", stat.S_IFREG | 0o755),
    ]
    busybox = ["busybox", "cpio", "-i", "-d"]
    subprocess.run(busybox, input=initramfs.archive(members), cwd=tmp_path, check=True)
    assert (tmp_path / "folder/odd").read_bytes() == b"12345"
    assert (tmp_path / "folder/odd").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "empty").read_bytes() == b""
