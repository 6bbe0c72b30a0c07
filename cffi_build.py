# SPDX-License-Identifier: MIT
"""Build hmd's two native modules and manual pages: an in-tree PEP 517 backend.

It wraps the backend of setuptools.

``hmd._native``          move_pages, perf_event_open, the ring reader and other calls (hmd/native)
``hmd.emulate._timing``  the timing model of the emulated machine (hmd/emulate/timing)

cffi builds each in API mode from the C sources of a folder, as one translation unit with the
limited C API, so that one wheel serves CPython 3.11 and later. Its declarations are the public
headers. A wheel also contains the manual pages and completions that packaging/pages generates.

``python cffi_build.py`` only writes the C files; ``python cffi_build.py compile_commands`` writes
compile_commands.json, with which clangd reads each C file of hmd.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cffi import FFI
from setuptools import build_meta as _setuptools

ROOT = Path(__file__).resolve().parent


@dataclass(frozen=True)
class NativeModule:
    """A module of the C sources in ``folder``; ``headers`` (a glob) declare what Python calls."""

    name: str
    folder: Path
    target: Path
    headers: str


MODULES = (
    NativeModule("hmd._native", ROOT / "hmd/native", ROOT / "hmd/_native.c", "*.h"),
    NativeModule(
        "hmd.emulate._timing",
        ROOT / "hmd/emulate/timing",
        ROOT / "hmd/emulate/_timing.c",
        "timing.h",
    ),
)
# Lines of a header that cffi cannot read: all directives but numbers.
_DIRECTIVE = re.compile(r"^#(?!define \w+ \d+$).*\n", re.M)

get_requires_for_build_wheel = _setuptools.get_requires_for_build_wheel
get_requires_for_build_sdist = _setuptools.get_requires_for_build_sdist
get_requires_for_build_editable = _setuptools.get_requires_for_build_editable
prepare_metadata_for_build_wheel = _setuptools.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = _setuptools.prepare_metadata_for_build_editable


def write_sources() -> None:
    """Write the C file of each native module; unchanged files keep their time stamp."""
    for module in MODULES:
        ffi = FFI()
        for header in sorted(module.folder.glob(module.headers)):
            ffi.cdef(_DIRECTIVE.sub("", header.read_text()))
        sources = sorted(module.folder.glob("*.c"))
        # One translation unit, so that no list of objects can be out of date. The digest of the
        # headers makes a changed header change the unit.
        headers = b"".join(path.read_bytes() for path in sorted(module.folder.glob("*.h")))
        preamble = f"/* headers {sha256(headers).hexdigest()} */\n"
        preamble += "#ifndef _GNU_SOURCE\n#define _GNU_SOURCE\n#endif\n"
        preamble += "\n".join(
            f'#line 1 "{source.relative_to(ROOT)}"\n{source.read_text()}' for source in sources
        )
        ffi.set_source(module.name, preamble, py_limited_api=True)
        ffi.emit_c_code(str(module.target))


def write_compile_commands() -> None:
    """Write compile_commands.json (clang.llvm.org/docs/JSONCompilationDatabase.html)."""
    folders = [*(module.folder for module in MODULES), ROOT / "hmd/emulate/plugin"]
    flags = ["cc", "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra"]
    flags += [f"-I{folder.relative_to(ROOT)}" for folder in folders]
    commands = [
        {"directory": str(ROOT), "file": path, "arguments": [*flags, "-c", path]}
        for folder in folders
        for source in sorted(folder.glob("*.c"))
        for path in [str(source.relative_to(ROOT))]
    ]
    (ROOT / "compile_commands.json").write_text(json.dumps(commands, indent=1) + "\n")


@contextmanager
def revision() -> Iterator[None]:
    """Have hmd/REVISION, the commit, during a build; a source distribution has its own."""
    command = ["git", "-c", "safe.directory=*", "describe", "--always", "--dirty", "--abbrev=40"]
    if not (ROOT / ".git").exists():
        yield
        return
    path = ROOT / "hmd/REVISION"
    with path.open("w") as file:
        subprocess.run([*command, "--exclude=*"], cwd=ROOT, stdout=file, check=False)
    try:
        yield
    finally:
        path.unlink()


def write_documents() -> None:
    """Write manual pages and completions where pyproject.toml expects them."""
    share = ROOT / "build/share"
    shutil.rmtree(share, ignore_errors=True)
    generator = ROOT / "packaging/pages/generate.py"
    subprocess.run([sys.executable, str(generator), str(share)], check=True)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):  # type: ignore[no-untyped-def]
    """PEP 517 build_wheel."""
    write_sources()
    write_documents()
    with revision():
        return _setuptools.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):  # type: ignore[no-untyped-def]
    """PEP 660 build_editable."""
    write_sources()
    return _setuptools.build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):  # type: ignore[no-untyped-def]
    """PEP 517 build_sdist."""
    write_sources()
    with revision():
        return _setuptools.build_sdist(sdist_directory, config_settings)


if __name__ == "__main__":
    if sys.argv[1:] == ["compile_commands"]:
        write_compile_commands()
    else:
        write_sources()
