# SPDX-License-Identifier: MIT
"""Which program a process runs, from outside: what stays the same when it runs again.

A program is the name of its file and its ELF build ID, a note that linkers add (ld --build-id;
elf(5)). A file without one, as of Go, is the digest of its size and of its first and last
``END_BYTES``. All scripts of an interpreter share its file: they are told apart by the script as
the command line names it, and by the target. Users are apart: nobody writes what is known of
another user's programs.

/proc/PID/exe opens the file that runs, also where it was deleted, or is of another mount namespace.
That may wait for a file system of users (FUSE, NFS): call from a thread that may wait. At most
0.6 MiB is read, whatever the file says of itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
from pathlib import Path, PurePath
from sys import byteorder
from typing import Final

from hmd.linux.procfs import PROC, ProcessId, absent, read_bytes, read_identity

END_BYTES: Final = 64 << 10
"""Bytes at each end of a file without a build ID that its identity is made of."""

KEY: Final = re.compile(r"(?P<name>[\w+.][\w+.-]{0,47})-(?P<uid>\d{1,10})-[0-9a-f]{16}", re.ASCII)
"""What keys of programs look like: the names of their files."""

_SEGMENT: Final = struct.Struct("=I4xQ16xQ8xQ")  # Elf64_Phdr: type, offset, bytes, alignment
_PT_NOTE, _NT_GNU_BUILD_ID = 4, 3
_MAX_SEGMENTS, _NOTE_BYTES, _MAX_OFFSET = 128, 4096, 1 << 48
_ARGUMENT_BYTES: Final = 4096
_DELETED: Final = " (deleted)"
_INTERPRETERS: Final = re.compile(
    r"(?:(?:python|pypy|perl|ruby|lua|php|tclsh|bash|ksh|zsh)[-.\d]*|sh|dash|busybox|luajit|node"
    r"|deno|bun|java|julia|R|dotnet|mono|octave-cli|beam\.smp)"
)
_WITH_VALUE: Final = frozenset({"-cp", "-classpath", "--class-path", "-W", "-X", "-r", "-I"})
"""Options of interpreters that are followed by a value of their own."""


def program_key(process: ProcessId, target: str, proc: Path = PROC) -> str | None:
    """Return the key of the program that a process runs, by which its profile is filed.

    None where the process has exited, has no file, or is not this user's to inspect. Raises OSError
    where the file cannot be read for another reason.
    """
    folder = proc / str(process.pid)
    path = program_path(process, proc)
    identity = _identify_file(folder / "exe") if path else None
    user = read_identity(process, proc)
    # Where the program was replaced meanwhile, execve(2), what was read may be of both.
    if path is None or identity is None or user is None or program_path(process, proc) != path:
        return None
    name, parts = PurePath(path).name, [identity]
    if _INTERPRETERS.fullmatch(name):
        arguments = os.fsdecode(read_bytes(folder / "cmdline", _ARGUMENT_BYTES) or b"")
        script = _script(arguments.rstrip("\0").split("\0")[1:])
        parts += [target, *script]
        if script and script[0] != "-c":
            name = PurePath(script[-1]).name
    digest = hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:16]
    name = re.sub(r"[^\w+.-]", "_", name, flags=re.ASCII).lstrip("-")[:48]
    return f"{name or 'program'}-{user.real_uid}-{digest}"


def program_path(process: ProcessId, proc: Path = PROC) -> str | None:
    """Return the path of what a process runs, without opening it; None as ``program_key``."""
    try:
        path = os.readlink(proc / str(process.pid) / "exe")  # noqa: PTH115 - may be no path
    except OSError as error:
        if absent(error):
            return None
        raise
    return path.removesuffix(_DELETED)


def _identify_file(path: Path) -> str | None:
    """Return the build ID of a program's file, or a digest of its ends; None where it is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if absent(error):
            return None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        if (found := build_id(fd)) is not None:
            return f"build {found}"
        last = max(status.st_size - END_BYTES, 0)
        ends = os.pread(fd, END_BYTES, 0) + os.pread(fd, END_BYTES, last)
        return f"file {status.st_size} {hashlib.sha256(ends).hexdigest()}"
    finally:
        os.close(fd)


def build_id(fd: int) -> str | None:
    """Return the build ID of an open 64-bit ELF file of this machine in hexadecimal.

    None where it has none, is damaged, or is another kind of file. Reads the header, at most
    ``_MAX_SEGMENTS`` program headers, and ``_NOTE_BYTES`` of each that has notes.
    """
    head = os.pread(fd, 64, 0)
    if len(head) < 64 or head[:6] != b"\x7fELF\x02" + (b"\1" if byteorder == "little" else b"\2"):
        return None
    first, size, count = *struct.unpack_from("=Q", head, 32), *struct.unpack_from("=HH", head, 54)
    if size != _SEGMENT.size or first > _MAX_OFFSET:
        return None
    table = os.pread(fd, size * min(count, _MAX_SEGMENTS), first)
    for kind, offset, bytes_, align in _SEGMENT.iter_unpack(table[: len(table) // size * size]):
        if kind == _PT_NOTE and offset <= _MAX_OFFSET:
            notes = os.pread(fd, min(bytes_, _NOTE_BYTES), offset)
            if (found := _find_build_id(notes, 8 if align == 8 else 4)) is not None:
                return found
    return None


def _find_build_id(notes: bytes, align: int) -> str | None:
    at = 0
    while at + 12 <= len(notes):
        name_bytes, bytes_, kind = struct.unpack_from("=III", notes, at)
        begin = at + -(-(12 + name_bytes) // align) * align
        if kind == _NT_GNU_BUILD_ID and notes[at + 12 : at + 12 + name_bytes] == b"GNU\0":
            found = notes[begin : begin + bytes_]
            return found.hex() if 8 <= bytes_ == len(found) <= 64 else None
        at = -(-(begin + bytes_) // align) * align
    return None


def _script(arguments: list[str]) -> list[str]:
    """Return what of an interpreter's arguments names the script: the option before it, if any."""
    option = ""
    for argument in arguments:
        if option in _WITH_VALUE:
            option = ""
        elif not argument.startswith("-"):
            return [option, argument] if option in ("-m", "-jar", "-c") else [argument]
        else:
            option = argument
    return []
