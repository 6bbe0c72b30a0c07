# SPDX-License-Identifier: MIT
"""A compiled C program of two functions, tests/fixtures/two_functions.c."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "fixtures/two_functions.c"
MISSES, STAYS = "miss_each_page", "stay_in_page"


def compiled(folder: Path, *options: str) -> Path:
    """Return the program, compiled with its symbols."""
    program = folder / SOURCE.stem
    subprocess.run(["cc", "-O1", "-Wall", *options, "-o", program, SOURCE], check=True)
    return program


def address_of(program: Path, function: str) -> int:
    """Return where nm(1) says that a function begins."""
    printed = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in printed.splitlines()]
    return next(int(row[0], 16) for row in rows if row[-1] == function)
