# SPDX-License-Identifier: MIT
"""Which program a process is: build IDs, files without one, scripts, and files made to do harm."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from hmd.linux.procfs import ProcessId, identify
from hmd.profiles.programs import KEY, build_id, program_key, program_path

ID = bytes(range(20))
PAUSE = "import sys; print(flush=True); sys.stdin.read()"
C_PROGRAM = '#include <stdio.h>\nint main(void) { puts(""); fflush(stdout); return getchar(); }\n'


def note(name: bytes = b"GNU\0", kind: int = 3, content: bytes = ID) -> bytes:
    def padded(data: bytes) -> bytes:
        return data + bytes(-len(data) % 4)

    return struct.pack("=III", len(name), len(content), kind) + padded(name) + padded(content)


def elf(notes: bytes, *, bytes_: int | None = None, offset: int = 120, segments: int = 1) -> bytes:
    order = 1 if sys.byteorder == "little" else 2
    head = b"\x7fELF\x02" + bytes([order, 1]) + bytes(9)
    head += struct.pack("=HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, segments, 0, 0, 0)
    size = len(notes) if bytes_ is None else bytes_
    return head + struct.pack("=IIQQQQQQ", 4, 4, offset, 0, 0, size, size, 4) + notes


def found_in(tmp_path: Path, data: bytes) -> str | None:
    file = tmp_path / "file"
    file.write_bytes(data)
    fd = os.open(file, os.O_RDONLY)
    try:
        return build_id(fd)
    finally:
        os.close(fd)


def test_build_id_after_other_notes(tmp_path: Path) -> None:
    notes = note(b"stapsdt\0", 3, b"x" * 9) + note(b"GNU\0", 1, bytes(16)) + note()
    assert found_in(tmp_path, elf(notes)) == ID.hex()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x7fELF",
        b"#!/bin/sh\n" + bytes(200),
        elf(b""),
        elf(note(content=b"short")),
        elf(note(content=bytes(65))),
        elf(struct.pack("=III", 0xFFFFFFFF, 0xFFFFFFFF, 3) + b"GNU\0"),
        elf(struct.pack("=III", 0, 0, 0) * 1000),
        elf(note(), bytes_=0xFFFFFFFFFFFFFFFF, offset=0xFFFFFFFFFFFFFFFF),
        elf(note(), bytes_=0xFFFFFFFFFFFFFFFF, offset=(1 << 63) - 1),
        elf(note())[:130],
    ],
    ids=lambda data: f"{len(data)} bytes",
)
def test_file_without_sound_build_id_has_none(tmp_path: Path, data: bytes) -> None:
    assert found_in(tmp_path, data) is None


def test_count_of_segments_beyond_file_is_no_error(tmp_path: Path) -> None:
    assert found_in(tmp_path, elf(note(), segments=65535)) == ID.hex()


def test_random_damage_is_no_error(tmp_path: Path) -> None:
    random, sound = Random(45), elf(note(b"stapsdt\0", 3, b"x" * 9) + note())
    for _ in range(2000):
        data = bytearray(sound)
        for _ in range(random.randint(1, 8)):
            data[random.randrange(6, len(data))] = random.choice((0, 1, 127, 128, 255))
        found = found_in(tmp_path, bytes(data))
        assert found is None or 16 <= len(found) <= 128


@contextmanager
def running(*command: str | Path, cwd: Path | None = None) -> Iterator[ProcessId]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        process = identify(child.pid)
        assert process is not None
        yield process
        child.stdin.close()


def key_of(*command: str | Path, target: str = "t", cwd: Path | None = None) -> str:
    with running(*command, cwd=cwd) as process:
        key = program_key(process, target)
    assert key is not None
    assert KEY.fullmatch(key)
    return key


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Two builds: with a build ID, and without."""
    source = tmp_path / "main.c"
    source.write_text(C_PROGRAM)
    for name, option in (("with", "--build-id"), ("without", "--build-id=none")):
        subprocess.run(["cc", f"-Wl,{option}", "-o", tmp_path / name, source], check=True)
    return tmp_path


def test_copy_is_the_same_program_whatever_the_target_and_arguments(programs: Path) -> None:
    (programs / "copies").mkdir()
    copy = shutil.copy(programs / "with", programs / "copies/with")
    key = key_of(programs / "with")
    assert key == key_of(copy, "argument", target="other")
    assert key.startswith(f"with-{os.getuid()}-")


def test_file_without_build_id_is_known_by_its_content(programs: Path) -> None:
    key = key_of(programs / "without")
    shutil.copy(programs / "without", programs / "copied")
    assert key.rsplit("-", 1)[1] == key_of(programs / "copied").rsplit("-", 1)[1]
    with (programs / "copied").open("ab") as file:
        file.write(b"another build")
    assert key.rsplit("-", 1)[1] != key_of(programs / "copied").rsplit("-", 1)[1]


def test_deleted_program_is_still_known(programs: Path) -> None:
    key = key_of(programs / "with")
    with running(programs / "with") as process:
        (programs / "with").unlink()
        assert program_path(process) == str(programs / "with")
        assert program_key(process, "t") == key


def test_program_made_of_notes_to_do_harm_is_known_by_its_content(programs: Path) -> None:
    data = bytearray((programs / "with").read_bytes())
    at = data.index(struct.pack("=III", 4, 20, 3) + b"GNU\0")
    data[at : at + 12] = struct.pack("=III", 0xFFFFFFFF, 0xFFFFFFFF, 3)
    harmful = programs / "harmful"
    harmful.write_bytes(data)
    harmful.chmod(0o700)
    digest = key_of(harmful).rsplit("-", 1)[1]
    assert digest != key_of(programs / "with").rsplit("-", 1)[1]


def test_scripts_of_one_interpreter_are_apart(tmp_path: Path) -> None:
    for name in ("train.py", "serve.py"):
        (tmp_path / name).write_text(PAUSE)
    train = key_of(sys.executable, "-u", "-X", "dev", tmp_path / "train.py", "--epochs", "3")
    assert train.startswith("train.py-")
    assert train == key_of(sys.executable, tmp_path / "train.py", "--epochs", "4")
    assert train != key_of(sys.executable, tmp_path / "serve.py")
    assert train != key_of(sys.executable, tmp_path / "train.py", target="other")


def test_modules_and_code_of_one_interpreter_are_apart(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(PAUSE)
    module = key_of(sys.executable, "-m", "work", cwd=tmp_path)
    assert module.startswith("work-")
    code = key_of(sys.executable, "-c", PAUSE)
    assert code.startswith("python")
    assert code != key_of(sys.executable, "-c", f"{PAUSE} ")


def test_name_has_no_bytes_that_harm_paths_or_terminals(programs: Path) -> None:
    odd = programs / "-\x1b[31m..;\u00e4 b"
    shutil.copy(programs / "with", odd)
    assert key_of(odd).startswith("__31m..___b-")


def test_exited_process_and_kernel_thread_are_no_program() -> None:
    child = subprocess.Popen(["true"])
    process = identify(child.pid)
    child.wait()
    assert process is not None
    assert program_key(process, "t") is None
    assert program_path(process) is None
    assert program_key(ProcessId(2, 0), "t") is None


def test_pid_of_another_process_is_no_program() -> None:
    with running(sys.executable, "-c", PAUSE) as process:
        assert program_key(ProcessId(process.pid, process.start_ticks + 1), "t") is None
