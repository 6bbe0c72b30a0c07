"""Build hmd's two native modules and manual pages: an in-tree PEP 517 backend.

It wraps the backend of setuptools.

``hmd._native``          libnuma, move_pages, perf_event_open and the ring drain (hmd/native/*.c)
``hmd.emulate._timing``  the timing model of the emulated machine (hmd/emulate/timing/*.c)

cffi builds each in API mode from declarations (``*.cdef``) and the C sources in the same folder,
as one translation unit with the limited C API, so that one wheel serves CPython 3.11 and later.
``python cffi_build.py`` only writes the C files. A wheel also contains the manual pages and
completions that packaging/pages generates.
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
    """Write the C file of each native module; unchanged files keep their time stamp."""
    for name, (folder, target) in MODULES.items():
        ffi = FFI()
        for declarations in sorted(folder.glob("*.cdef")):
            ffi.cdef(declarations.read_text())
        sources = sorted(folder.glob("*.c"))
        # One translation unit, so that no list of objects can be out of date. The digest of the
        # headers makes a changed header change the unit.
        headers = b"".join(header.read_bytes() for header in sorted(folder.glob("*.h")))
        preamble = f"/* headers {sha256(headers).hexdigest()} */\n"
        preamble += "#ifndef _GNU_SOURCE\n#define _GNU_SOURCE\n#endif\n"
        preamble += "\n".join(
            f'#line 1 "{source.relative_to(ROOT)}"\n{source.read_text()}' for source in sources
        )
        ffi.set_source(name, preamble, py_limited_api=True)
        ffi.emit_c_code(str(target))


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
