"""Output files that appear whole or not at all.

A file is written as ``FILE.partial`` next to it, which replaces FILE at the end: an error or Ctrl-C
leaves the old file. A symbolic link stays one, and its target is replaced. A pipe, a device or a
descriptor (``/dev/stdout``) is written to directly.
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
from typing import NoReturn, cast

from hmd.errors import HmdError, os_error


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

    A ``private`` file has mode 0600, another one keeps the mode that it had. Raises what
    ``os_error`` makes of an error in the block; BrokenPipeError stays one.
    """
    try:
        if is_written_directly(path):
            with cast(BufferedWriter, BufferedWriter(_Stream(path, "wb"))) as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        partial = target.with_name(f"{target.name}.partial")
        try:
            with os.fdopen(_create(partial, target, private=private), "wb") as file:
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


def _create(partial: Path, target: Path, *, private: bool) -> int:
    """Return a descriptor of a new file with the mode that the target must have."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(partial, flags, 0o600 if private else 0o666)
    try:
        if private:
            os.fchmod(fd, 0o600)
        elif target.exists():
            os.fchmod(fd, stat.S_IMODE(target.stat().st_mode))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _cannot_write(path: Path, error: OSError) -> HmdError:
    return os_error(error, f"cannot write {path}: {error.strerror or error}")
