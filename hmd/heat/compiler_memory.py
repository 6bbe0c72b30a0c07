"""Memory of the compiler, given back once kernels are loaded: about 50 MiB of LLVM's code.

Loading kernels from their cache touches much of LLVM, and nothing of it runs again until others are
loaded. The kernel keeps pages of a mapped file resident for as long as there is memory; here they
are unmapped with madvise(2), MADV_DONTNEED. That is only right for code: it was never written, so
that the file, mostly the page cache, has it where it is needed again.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from hmd.machine.own_memory import unmap_resident

SELF_MAPS: Final = Path("/proc/self/maps")

# llvmlite's wheels link LLVM into one library; distributions have it in its own.
_LIBRARIES: Final = ("libllvmlite", "libLLVM")


def compiler_code(maps: Path = SELF_MAPS) -> list[tuple[int, int]]:
    """Return the addresses of LLVM's code in this process, start and end (proc_pid_maps(5))."""
    found = []
    for line in maps.read_text().splitlines():
        words = line.split(maxsplit=5)
        if len(words) < 6 or words[1] != "r-xp":
            continue
        if Path(words[5]).name.startswith(_LIBRARIES):
            start, end = (int(word, 16) for word in words[0].split("-"))
            found.append((start, end))
    return found


def release_compiler() -> int:
    """Unmap the compiler's code until it runs again; return the bytes that the kernel accepted."""
    released = 0
    for start, end in compiler_code():
        with contextlib.suppress(OSError):  # code that is locked in memory stays
            unmap_resident(start, end)
            released += end - start
    return released
