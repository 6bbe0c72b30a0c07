# SPDX-License-Identifier: MIT
"""Profiles on disk: a file for each program in one folder, the least recently used leave.

Files are private (mode 0600) and appear whole, under names of their own until then, so that
processes of several machines may write into one folder without locks: a writer merges the file
that is there with its own, and replaces it. A file is read only if its owner is trusted, nobody
else may write it, and it is sound; a damaged one is refused, and kept beside as ``.damaged`` until
room is needed.

Each call may wait for the file system, as one on NFS whose server is gone: the daemon calls from a
thread that ticks do not wait for.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from hmd.base.atomic_file import PRIVATE
from hmd.base.errors import HmdError, NotPermittedError, TargetError, UsageError, os_error
from hmd.profiles.learning import merge
from hmd.profiles.profile import MAX_BYTES, Profile
from hmd.profiles.programs import KEY

FOLDER: Final = "profiles"
"""The name of the folder within the state folder."""
MAX_TOTAL_BYTES: Final = 64 << 20

_SUFFIX, _DAMAGED, _PARTIAL = ".profile", ".damaged", ".partial"
_FILE: Final = re.compile(
    rf"(?P<key>{KEY.pattern})(?P<suffix>\.profile|\.damaged|\.[0-9a-f]{{16}}\.partial)", re.ASCII
)
_MAX_ENTRIES: Final = 16384
"""Files of a folder that are looked at: it may be of other machines, too."""
_STALE_S: Final = 3600.0
"""Age of a partial file whose writer was killed."""


@dataclass(frozen=True, slots=True)
class StoredProfile:
    """A file of the folder: ``used_s`` is the Unix time of its last use, ``uid`` its owner."""

    key: str
    size_bytes: int
    used_s: float
    uid: int


def unreadable(folder: Path, error: OSError) -> HmdError:
    """Return the error of a folder of profiles; of one that no daemon has made, how it comes."""
    line = f"cannot read the profiles in {folder}: {error.strerror}"
    if isinstance(error, FileNotFoundError):
        line = f"there are no profiles: no folder {folder}, which a daemon with 'learn' makes"
    return os_error(error, line)


class ProfileStore:
    """The profiles in one folder, which must exist.

    ``owners`` are the users whose files are trusted, besides root and the user of this process.
    """

    def __init__(self, folder: Path, owners: Collection[int] = ()) -> None:
        self.folder = folder
        self._owners = frozenset({0, os.geteuid(), *owners})

    def read(self, key: str) -> bytes | None:
        """Return a file's content, None without one.

        Raises ``NotPermittedError`` for one that may not be read or is not trusted, ``HmdError``
        where reading fails or it is too large.
        """
        path = self.path_of(key)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise os_error(error, f"cannot read {path}: {error.strerror}", HmdError) from None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise NotPermittedError(f"{path} is no regular file: remove it")
            if status.st_uid not in self._owners:
                raise NotPermittedError(
                    f"{path} belongs to user {status.st_uid}, who is not among profiles.owners:"
                    " it is not used"
                )
            if status.st_mode & 0o022:
                raise NotPermittedError(f"{path} may be written by others: chmod 600 {path}")
            with open(fd, "rb", closefd=False) as file:
                return file.read(MAX_BYTES + 1)
        except OSError as error:
            raise os_error(error, f"cannot read {path}: {error.strerror}", HmdError) from None
        finally:
            os.close(fd)

    def load(self, key: str) -> Profile | None:
        """Return a program's profile, None without one, and note that it was used.

        Raises as ``read``, and ``HmdError`` for a damaged one, which is put aside.
        """
        data = self.read(key)
        with suppress(OSError):  # of another owner: its time stays
            os.utime(self.path_of(key), follow_symlinks=False)
        try:
            return None if data is None else Profile.from_bytes(data, str(self.path_of(key)))
        except HmdError as error:
            kept = self.folder / f"{key}{_DAMAGED}"
            with suppress(OSError):
                self.path_of(key).replace(kept)
            raise HmdError(f"{error}; kept as {kept.name}") from None

    def add_run(
        self, key: str, run: Profile, former: Profile | None, written: bytes | None
    ) -> bytes:
        """Merge a run into a program's profile; return what was written.

        ``former`` was there when the run began, and ``written`` what this run wrote since: where it
        is still there, it is replaced. What others wrote meanwhile is merged instead.
        """
        present: bytes | None = None
        with suppress(NotPermittedError):  # not trusted: replaced, where the folder permits it
            present = self.read(key)
        if present != written or written is None:
            with suppress(HmdError):
                former = self.load(key)
        data = merge(former, run).to_bytes()
        self.write(key, data)
        return data

    def write(self, key: str, data: bytes) -> None:
        """Write a profile, and remove the least recently used ones beyond the room for all.

        As root, the file belongs to the folder's owner. Raises ``HmdError``, the old file is then
        as it was.
        """
        partial = self.folder / f"{key}.{secrets.token_hex(8)}{_PARTIAL}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            try:
                with open(os.open(partial, flags, PRIVATE), "wb") as file:  # noqa: PTH123
                    if os.geteuid() == 0:
                        owner = self.folder.stat()
                        os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(self.path_of(key))
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
            self._make_room()
        except OSError as error:
            line = f"cannot write {self.path_of(key)}: {error.strerror}"
            raise os_error(error, line, HmdError) from None

    def remove(self, key: str) -> None:
        """Remove a program's profile; raises ``HmdError``."""
        try:
            self.path_of(key).unlink(missing_ok=True)
        except OSError as error:
            line = f"cannot remove {self.path_of(key)}: {error.strerror}"
            raise os_error(error, line, HmdError) from None

    def entries(self) -> list[StoredProfile]:
        """Return the profiles, the last used first; raises ``HmdError`` for an unreadable folder.

        ``MissingError`` where there is no folder, ``NotPermittedError`` where it may not be read.
        """
        try:
            found = [one for one, suffix in self._files() if suffix == _SUFFIX]
        except OSError as error:
            raise unreadable(self.folder, error) from None
        return sorted(found, key=lambda one: -one.used_s)

    def resolve(self, name: str) -> str:
        """Return the key that a person's name, or the beginning of a key, means.

        Raises ``TargetError`` where there is none, ``UsageError`` where there are several.
        """
        keys = [one.key for one in self.entries()]
        exact = [key for key in keys if key == name or key.rsplit("-", 2)[0] == name]
        found = exact or [key for key in keys if key.startswith(name)]
        if not found:
            raise TargetError(f"there is no profile {name[:80]!r} in {self.folder}")
        if len(found) > 1:
            raise UsageError(f"{name!r} may be {', '.join(found[:8])}: name one")
        return found[0]

    def path_of(self, key: str) -> Path:
        """Return the path of a program's file; ValueError for what is no key."""
        if not KEY.fullmatch(key):
            raise ValueError(f"{key[:80]!r} is no key of a program")
        return self.folder / f"{key}{_SUFFIX}"

    def _files(self) -> Iterator[tuple[StoredProfile, str]]:
        """Yield the files with what follows their keys, and no others; raises OSError."""
        with os.scandir(self.folder) as listing:
            for entry in islice(listing, _MAX_ENTRIES):
                if (named := _FILE.fullmatch(entry.name)) is None:
                    continue
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    used_s, uid = status.st_mtime, status.st_uid
                    yield StoredProfile(named["key"], status.st_size, used_s, uid), named["suffix"]

    def _make_room(self) -> None:
        """Remove what killed writers left, and the least recently used files beyond the room."""
        left_bytes, now_s = MAX_TOTAL_BYTES, time.time()
        for one, suffix in sorted(self._files(), key=lambda file: -file[0].used_s):
            stale = suffix.endswith(_PARTIAL) and now_s - one.used_s > _STALE_S
            if suffix in (_SUFFIX, _DAMAGED):
                left_bytes -= one.size_bytes
            if stale or (left_bytes < 0 and suffix in (_SUFFIX, _DAMAGED)):
                with suppress(OSError):
                    (self.folder / f"{one.key}{suffix}").unlink()
