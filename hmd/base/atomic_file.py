# SPDX-License-Identifier: MIT
"""Output files: those that appear whole or not at all, and those that only their user may read.

``finished_file`` writes ``FILE.partial`` next to a file, which replaces FILE at the end: an error
or Ctrl-C leaves the old file. A symbolic link stays one, and its target is replaced. A pipe, a
device or a descriptor (``/dev/stdout``) is written to directly.

Private files have mode 0600: traces have the addresses that a program accesses. ``create_private``
writes a file in place, for a recording that must be readable if its writer is killed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EISDIR
from io import BufferedWriter, FileIO, UnsupportedOperation
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final, NoReturn, cast

from hmd.base.errors import HmdError, os_error

PRIVATE: Final = 0o600


class _Stream(FileIO):
    """A file without positions: zipfile takes those of /dev/null, which are all 0, for real."""

    def seekable(self) -> bool:
        """Return False."""
        return False

    def tell(self) -> NoReturn:
        """Raise UnsupportedOperation, as a pipe does."""
        raise UnsupportedOperation("tell")

    def seek(self, *_: int) -> NoReturn:
        """Raise UnsupportedOperation, as a pipe does."""
        raise UnsupportedOperation("seek")


@contextmanager
def finished_file(path: Path, *, private: bool = False) -> Iterator[BufferedWriter]:
    """Give a file to write to, which is ``path`` once the block has ended.

    A ``private`` file has mode 0600, another one keeps the mode that it had. An OSError of the
    block becomes that of ``os_error``, but for BrokenPipeError.
    """
    try:
        if is_written_directly(path):
            with cast(BufferedWriter, BufferedWriter(_Stream(path, "wb"))) as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        partial = target.with_name(f"{target.name}.partial")
        try:
            mode = PRIVATE if private else _mode_of(target)
            with _create(partial, mode, os.O_NOFOLLOW) as file:
                yield file
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _cannot_write(path, error) from None


def write_finished(path: Path, text: str) -> None:
    """Write a text file; raises as ``finished_file``."""
    with finished_file(path) as file:
        file.write(text.encode())


def check_writable(path: Path) -> None:
    """Raise, before the work begins, the error of ``finished_file`` that can be foreseen.

    Leaves nothing behind: an empty file may be valid input if the work is stopped.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(EACCES, os.strerror(EACCES))
        if not is_written_directly(path):
            check_writable_folder(Path(os.path.realpath(path)).parent)
    except OSError as error:
        raise _cannot_write(path, error) from None


def check_writable_folder(path: Path) -> None:
    """Raise OSError where no file can be created in a folder."""
    TemporaryFile(dir=path).close()


def is_written_directly(path: Path) -> bool:
    """Return True for what is no regular file, and for descriptors of this process."""
    folder = Path(os.path.realpath(path.parent))
    if folder == Path("/dev") or Path("/proc") in folder.parents:
        return True
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def create_private(path: Path) -> BufferedWriter:
    """Open a file for writing with mode 0600, also where it exists; raises OSError.

    A pipe or device keeps its mode.
    """
    return _create(path, PRIVATE)


def _create(path: Path, mode: int | None, flags: int = 0) -> BufferedWriter:
    """Open a file for writing, emptied, and with a mode if it is a regular file; None: any mode."""
    flags |= os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    fd = os.open(path, flags, 0o666 if mode is None else mode)
    try:
        if mode is not None and stat.S_ISREG(os.fstat(fd).st_mode):
            os.fchmod(fd, mode)
        return os.fdopen(fd, "wb")
    except BaseException:
        os.close(fd)
        raise


def _mode_of(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None


def _cannot_write(path: Path, error: OSError) -> HmdError:
    return os_error(error, f"cannot write {path}: {error.strerror or error}")
