# SPDX-License-Identifier: MIT
"""The last-level cache under several threads: ThreadSanitizer, and no line is lost or made.

A C program (cache_stress.c) is compiled with the model's own cache.c.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hmd.emulate.assets import find_program

HERE = Path(__file__).parent
TIMING = HERE.parents[2] / "hmd/emulate/timing"
TSAN = ("-fsanitize=thread", "-O1", "-g")


def compile_stress(folder: Path, *options: str) -> Path:
    program = folder / "cache_stress"
    sources = [str(HERE / "cache_stress.c"), str(TIMING / "cache.c")]
    compiler = find_program("cc", "gcc and libc6-dev")
    words = [compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", *options, f"-I{TIMING}"]
    subprocess.run([*words, "-o", program, *sources, "-lpthread"], check=True)
    return program


def stress(program: Path, threads: int, accesses: int, stores: int) -> None:
    # Without address randomisation: gcc 12's runtime does not know layouts of newer kernels.
    words = ["setarch", "-R", str(program), str(threads), str(accesses), str(stores)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 mistakes" in done.stdout
    assert "WARNING: ThreadSanitizer" not in done.stderr


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_stress(tmp_path_factory.mktemp("watched"), *TSAN)


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the plugin is compiled."""
    return compile_stress(tmp_path_factory.mktemp("fast"), "-O3")


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("stores", [30, 100])
def test_cache_of_several_threads_has_no_race(watched: Path, threads: int, stores: int) -> None:
    stress(watched, threads, 100_000, stores)


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("stores", [0, 30, 100])
def test_cache_of_several_threads_loses_and_makes_no_line(
    fast: Path, threads: int, stores: int
) -> None:
    stress(fast, threads, 2_000_000 // threads, stores)
