"""Build of hmd's two native modules and its documents: an in-tree PEP 517 backend.

It wraps that of setuptools.

``hmd._native``          libnuma, move_pages, perf_event_open and the ring drain (hmd/native/*.c)
``hmd.emulate._timing``  the timing model of the emulated machine (hmd/emulate/timing/*.c)

Each is made by cffi in API mode from a declarations file (``*.cdef``) and the C sources beside
it, as one translation unit with the limited C API, so that one wheel serves CPython 3.11 on.
``python cffi_build.py`` only writes the C files. A wheel has manual pages and completions too,
written by packaging/pages.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from cffi import FFI
from setuptools import build_meta as _setuptools

ROOT = Path(__file__).resolve().parent
MODULES = {
    "hmd._native": (ROOT / "hmd/native", ROOT / "hmd/_native.c"),
    "hmd.emulate._timing": (ROOT / "hmd/emulate/timing", ROOT / "hmd/emulate/_timing.c"),
}

get_requires_for_build_wheel = _setuptools.get_requires_for_build_wheel
get_requires_for_build_sdist = _setuptools.get_requires_for_build_sdist
get_requires_for_build_editable = _setuptools.get_requires_for_build_editable
prepare_metadata_for_build_wheel = _setuptools.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = _setuptools.prepare_metadata_for_build_editable


def write_sources() -> None:
    """Write the C of each native module; untouched where it would not change."""
    for name, (folder, target) in MODULES.items():
        ffi = FFI()
        for declarations in sorted(folder.glob("*.cdef")):
            ffi.cdef(declarations.read_text())
        sources = sorted(folder.glob("*.c"))
        # One translation unit: the sources themselves, so that no object list goes stale; and
        # a mark of the headers, so that a changed header changes the unit too.
        headers = b"".join(header.read_bytes() for header in sorted(folder.glob("*.h")))
        preamble = f"/* headers {sha256(headers).hexdigest()} */\n"
        preamble += "#ifndef _GNU_SOURCE\n#define _GNU_SOURCE\n#endif\n"
        preamble += "\n".join(
            f'#line 1 "{source.relative_to(ROOT)}"\n{source.read_text()}' for source in sources
        )
        ffi.set_source(name, preamble, py_limited_api=True)
        ffi.emit_c_code(str(target))


def write_documents() -> None:
    """Write manual pages and completions to where pyproject.toml takes them from."""
    share = ROOT / "build/share"
    shutil.rmtree(share, ignore_errors=True)
    generator = ROOT / "packaging/pages/generate.py"
    subprocess.run([sys.executable, str(generator), str(share)], check=True)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):  # type: ignore[no-untyped-def]
    """PEP 517 build_wheel."""
    write_sources()
    write_documents()
    return _setuptools.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):  # type: ignore[no-untyped-def]
    """PEP 660 build_editable."""
    write_sources()
    return _setuptools.build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):  # type: ignore[no-untyped-def]
    """PEP 517 build_sdist."""
    write_sources()
    return _setuptools.build_sdist(sdist_directory, config_settings)


if __name__ == "__main__":
    write_sources()
    sys.stdout.write(
        "wrote " + ", ".join(str(t.relative_to(ROOT)) for _, t in MODULES.values()) + "\n"
    )
