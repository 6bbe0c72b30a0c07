# SPDX-License-Identifier: MIT
"""Compilation with numba's cache, and without one where no folder can be written to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CODE = """
from hmd.base.numba_kernels import generic_kernel, kernel

@kernel
def doubled(value: int) -> int:
    return 2 * value

@generic_kernel
def tripled(value):
    return 3 * value
"""


TYPED = CODE[: CODE.index("@generic")]

BUNDLE = """
from typing import NamedTuple
from hmd.base.numba_kernels import Float64s, kernel

class {name}(NamedTuple):
    values: Float64s

@kernel
def first(bundle: {name}) -> float:
    return bundle.values[0]

import numpy as np
def doubled(_): return int(first({name}(np.ones(1))))
def tripled(_): return {name}.__name__
"""


USE = "from functions import *; print(doubled(2), tripled(2))"


def _run(
    folder: Path, environment: dict[str, str], code: str = CODE, program: str = USE
) -> subprocess.CompletedProcess[str]:
    """Use both kinds of compiled functions in a fresh interpreter."""
    source = folder / "functions.py"
    if not source.exists() or source.read_text() != code:
        source.write_text(code)
    path = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    others = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    return subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env=others | {"PYTHONPATH": path} | environment,
    )


def test_functions_without_writable_cache_are_compiled_with_one_note(tmp_path: Path) -> None:
    # Numba's own way to name where it looks for a cache: nowhere, without NUMBA_CACHE_DIR.
    done = _run(tmp_path, {"NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"})
    assert done.stdout == "4 6\n"
    assert done.stderr.count("NUMBA_CACHE_DIR") == len(done.stderr.splitlines()) == 1


def test_compilation_of_a_generic_kernel_is_noted(tmp_path: Path) -> None:
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    program = "from functions import *; print(tripled(2))"
    noted = [_run(tmp_path, cache, program=program).stderr for _ in range(2)]
    assert ["compiling kernels" in text for text in noted] == [True, False]


def test_functions_with_cache_are_kept_in_it_and_noted_where_compiled(tmp_path: Path) -> None:
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    done = _run(tmp_path, cache)
    assert (done.stdout, done.stderr.count("compiling kernels")) == ("4 6\n", 1)
    assert len(list((tmp_path / "cache").rglob("*.nbi"))) == 2
    # An installer, or the copy into an image, gives the source another time.
    os.utime(tmp_path / "functions.py", (1, 1))
    done = _run(tmp_path, cache)
    assert (done.stdout, done.stderr) == ("4 6\n", "")


def test_cache_that_cannot_be_written_to_is_read(tmp_path: Path) -> None:
    """As in a container image whose files are read-only; root may write to any folder."""
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    _run(tmp_path, cache)
    refuse = (
        "import tempfile\n"
        "def refuse(**_): raise OSError(30, 'Read-only file system')\n"
        "tempfile.TemporaryFile = refuse\n"
    )
    (tmp_path / "sitecustomize.py").write_text(refuse)
    done = _run(tmp_path, cache)
    assert (done.stdout, done.stderr) == ("4 6\n", "")


def test_code_next_to_sources_of_another_user_is_read(tmp_path: Path) -> None:
    """As of a package: root has compiled it, and the daemon's user has a cache of its own."""
    program = "from functions import *; print(doubled(2))"
    _run(tmp_path, {}, TYPED, program)
    refuse = (
        "import tempfile\n"
        "write = tempfile.TemporaryFile\n"
        "def refuse(dir=None, **options):\n"
        "    if str(dir).endswith('__pycache__'): raise OSError(13, 'Permission denied')\n"
        "    return write(dir=dir, **options)\n"
        "tempfile.TemporaryFile = refuse\n"
    )
    (tmp_path / "sitecustomize.py").write_text(refuse)
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    done = _run(tmp_path, cache, TYPED, program)
    assert (done.stdout, done.stderr) == ("4\n", "")
    assert not list((tmp_path / "cache").rglob("*.nbi"))
    changed = TYPED.replace("2 * value", "3 * value")
    done = _run(tmp_path, cache, changed, program)
    assert (done.stdout, done.stderr.count("compiling kernels")) == ("6\n", 1)
    assert len(list((tmp_path / "cache").rglob("*.nbi"))) == 1


def test_pending_kernels_compiled_in_forks_leave_nothing_to_compile(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("from functions import doubled\n" + TYPED)
    steps = (
        "import other; from hmd.base.numba_kernels import *; counts = []\n"
        "compile_pending(lambda *each: counts.append(each))\n"
        "print(uncompiled(), counts, sorted(pending()), keeps_code())"
    )
    done = _run(tmp_path, {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}, program=steps)
    counts = "[(0, 2), (1, 2), (2, 2)]"
    assert done.stdout == f"{{}} {counts} ['functions', 'other'] True\n"


def test_cached_function_of_a_class_that_is_gone_is_compiled_again(tmp_path: Path) -> None:
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert _run(tmp_path, cache, BUNDLE.format(name="Old")).stdout == "1 Old\n"
    assert _run(tmp_path, cache, BUNDLE.format(name="New")).stdout == "1 New\n"
