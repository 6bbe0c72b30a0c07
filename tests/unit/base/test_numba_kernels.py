# SPDX-License-Identifier: MIT
"""Kernels: signatures follow from annotations, and compiled code is cached."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hmd.base.numba_kernels import kernel

MODULE = """
from __future__ import annotations
from typing import NamedTuple
import numpy as np
from hmd.base.numba_kernels import Float64s, Int64Plane, Uint32View, Uint64, inline, kernel

class Sums(NamedTuple):
    values: Float64s
    counts: Int64Plane

@inline
def _add(sums: Sums, row: int) -> None:
    sums.counts[row, 0] += 1

@kernel
def total(sums: Sums, periods: tuple[Uint32View, Uint32View], begin: Uint64, scale: float) -> float:
    first, second = periods
    for row in range(begin, len(first)):
        sums.values[row] += scale * first[row] + second[row]
        _add(sums, row)
    return sums.values.sum()

@kernel
def clear(sums: Sums, really: bool) -> None:
    if really:
        sums.values[:] = 0.0
"""

SHARED = """
from __future__ import annotations
from hmd.base.numba_kernels import inline, kernel

@inline
def doubled(value: int) -> int:
    return 2 * value

@kernel
def own(value: int) -> int:
    return doubled(value)
"""

USER = """
from __future__ import annotations
from hmd.base.numba_kernels import kernel
from shared import doubled

@kernel
def increased(value: int) -> int:
    return doubled(value) + 1
"""

USE = """
import numpy as np
from bundles import Sums, clear, total
sums = Sums(np.zeros(3), np.zeros((3, 2), np.int64))
period = np.arange(6, dtype=np.uint32)[::2]
period.flags.writeable = False
print(total(sums, (period, period), 1, 0.5), sums.counts[:, 0].tolist(), end=" ")
clear(sums, True)
print(sums.values.sum(), len(total.signatures), sum(total.stats.cache_hits.values()))
"""


def run(folder: Path, code: str) -> str:
    """Return what a fresh interpreter prints, with a kernel cache in ``folder``."""
    path = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    )
    return done.stdout


def test_kernel_with_bundles_and_tuples_compiled_once_and_cached(tmp_path: Path) -> None:
    (tmp_path / "bundles.py").write_text(MODULE)
    assert run(tmp_path, USE) == "9.0 [0, 1, 1] 0.0 1 0\n"
    assert run(tmp_path, USE) == "9.0 [0, 1, 1] 0.0 1 1\n"


CALLED = """
from __future__ import annotations
from typing import NamedTuple
from hmd.base.numba_kernels import Int64s, inline

STEP = 3

class Columns(NamedTuple):
    first: Int64s
    second: Int64s

@inline
def stepped(value: int) -> int:
    return value + 1
"""

CALLER = """
from __future__ import annotations
from called import STEP, Columns, stepped
from hmd.base.numba_kernels import generic_kernel, kernel

@kernel
def total(columns: Columns) -> int:
    return stepped(columns.first[0]) * STEP

@generic_kernel
def shifted(columns: Columns, value):
    return (columns.first[0] + STEP) * value
"""

TOTAL = """
import numpy as np
from called import Columns
from caller import shifted, total
columns = Columns(np.array([5]), np.array([7]))
print(total(columns), shifted(columns, 2), end=" ")
print(*(sum(each.stats.cache_hits.values()) for each in (total, shifted)))
"""


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (("value + 1", "value + 2"), "21 16 0 1"),
        (("STEP = 3", "STEP = 4"), "24 18 0 0"),
        (("first: Int64s\n    second: Int64s", "second: Int64s\n    first: Int64s"), "24 20 0 0"),
        (("def stepped", "# A comment, and a docstring.\ndef stepped"), "18 16 1 1"),
    ],
    ids=["inline function", "constant", "fields of a bundle", "comment"],
)
def test_kernel_compiled_again_after_what_it_uses_of_another_file_has_changed(
    change: tuple[str, str], found: str, tmp_path: Path
) -> None:
    called = tmp_path / "called.py"
    called.write_text(CALLED)
    (tmp_path / "caller.py").write_text(CALLER)
    assert run(tmp_path, TOTAL) == "18 16 0 0\n"
    assert run(tmp_path, TOTAL) == "18 16 1 1\n"
    called.write_text(CALLED.replace(*change))
    assert run(tmp_path, TOTAL) == f"{found}\n"


def test_kernel_annotation_without_numba_type_raises() -> None:
    def greet(name: str) -> None:
        del name

    with pytest.raises(TypeError, match="cannot take or return"):
        kernel(greet)


def test_kernel_imported_only_loads_no_numba(tmp_path: Path) -> None:
    (tmp_path / "bundles.py").write_text(MODULE)
    code = "import sys, bundles; print('numba' in sys.modules, hasattr(bundles.total, 'stats'))"
    assert run(tmp_path, code) == "False False\n"


def test_kernels_warmed_are_compiled_before_any_call(tmp_path: Path) -> None:
    (tmp_path / "bundles.py").write_text(MODULE)
    code = (
        "from hmd.base.numba_kernels import warm; calls = []\n"
        "print(warm(('bundles',), lambda: calls.append(1)), calls)\n"
        "from bundles import clear, total; print(len(total.signatures), len(clear.signatures))"
    )
    assert run(tmp_path, code) == "1 [1]\n1 1\n"


@pytest.mark.parametrize("first", ["import user", "import user, shared; shared.own(1)"])
def test_inline_function_of_another_module_compiled_whatever_is_loaded_first(
    first: str, tmp_path: Path
) -> None:
    (tmp_path / "shared.py").write_text(SHARED)
    (tmp_path / "user.py").write_text(USER)
    code = f"{first}\nprint(user.increased(20), __import__('shared').own(4))"
    assert run(tmp_path, code) == run(tmp_path, code) == "41 8\n"


def test_kernels_without_compiler_run_as_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/how-to/debugging.md says: a debugger stops in them, and indices are checked."""
    (tmp_path / "sums.py").write_text(MODULE)
    program = (
        "import numpy as np, sums\n"
        "bundle = sums.Sums(np.zeros(2), np.zeros((2, 1), np.int64))\n"
        "periods = (np.ones(2, np.uint32), np.ones(2, np.uint32))\n"
        "print(sums.total(bundle, periods, 0, 2.0), bundle.counts.tolist())\n"
        "try: sums.total(sums.Sums(np.zeros(1), bundle.counts), periods, 0, 2.0)\n"
        "except IndexError: print('IndexError')\n"
    )
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert run(tmp_path, program) == "6.0 [[1], [1]]\nIndexError\n"
