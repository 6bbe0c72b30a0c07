# SPDX-License-Identifier: MIT
"""The compiler's code is not resident after kernels are loaded, and is read again when needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hmd.linux.own_process import compiler_code

MAPS = """\
7f00-7f10 r--p 00000000 fe:00 56 /opt/llvmlite/binding/libllvmlite.so
7f10-7f30 r-xp 00010000 fe:00 56 /opt/llvmlite/binding/libllvmlite.so
7f30-7f40 rw-p 00030000 fe:00 56 /opt/llvmlite/binding/libllvmlite.so
8000-9000 r-xp 00010000 fe:00 57 /usr/lib/x86_64-linux-gnu/libLLVM-14.so.1
9000-a000 r-xp 00010000 fe:00 58 /usr/lib/x86_64-linux-gnu/libc.so.6
a000-b000 r-xp 00000000 00:00 0
"""

SCRIPT = """\
import numpy as np
from hmd.policy import registry
from hmd.linux.own_process import release_compiler
from hmd.base.numba_kernels import pending, warm

def file_kib():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssFile")))

registry.warm(policies=("none",))
left = file_kib()
import hmd.estimate.overlap
rest = pending()
warm()
print(left, file_kib(), len(rest), len(pending()), release_compiler())
"""


def test_compiler_code_is_that_of_llvm_alone(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(MAPS)
    assert compiler_code(maps) == [(0x7F10, 0x7F30), (0x8000, 0x9000)]


def test_kernels_load_again_after_the_compiler_was_released() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    released, loaded, rest, left, accepted = map(int, done.stdout.split())
    assert rest > 0
    assert left == 0
    assert accepted > 0
    # What the load of one more kernel brought back was not resident before.
    assert loaded - released > 4096
