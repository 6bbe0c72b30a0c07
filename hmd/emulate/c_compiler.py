"""Compilation of the emulated machine's C parts, each kept under the hash of its sources."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from hmd.emulate.assets import cache_folder, find_program
from hmd.errors import MissingError


def compile_static(
    source: Path, options: Sequence[str] = (), more_sources: Sequence[Path] = ()
) -> Path:
    """Compile C files into a static program, or return the cached one if nothing changed.

    The program has the name of ``source``. Headers in that file's folder and in the folders of
    ``-I`` options are parts of it. Raises MissingError without a compiler, and where compilation
    fails (no static libc).
    """
    arguments = ["-O2", "-std=gnu11", "-static", "-s", *options]
    folders = [source.parent, *(Path(word[2:]) for word in options if word.startswith("-I"))]
    headers = sorted(path for folder in folders for path in folder.glob("*.h"))
    sources = (source, *more_sources)
    digest = hashlib.sha256("\0".join(arguments).encode())
    for path in (*sources, *headers):
        digest.update(path.read_bytes())
    target = cache_folder() / f"{source.stem}-{digest.hexdigest()[:16]}"
    words = [*arguments, *map(str, sources), "-lpthread"]
    return compile_to(target, words, f"{source.name} for the emulated machine")


def compile_to(target: Path, arguments: Sequence[str], what: str) -> Path:
    """Compile with these arguments of cc unless ``target`` exists; returns it.

    A compilation that is interrupted leaves no target. ``what`` names it in the MissingError that
    is raised without a compiler, and where compilation fails.
    """
    if target.exists():
        return target
    compiler = find_program("cc", "gcc and libc6-dev")
    partial = target.with_suffix(f".{os.getpid()}")
    words = [compiler, *arguments, "-o", str(partial)]
    outcome = subprocess.run(words, check=False, capture_output=True, text=True)
    if outcome.returncode != 0:
        partial.unlink(missing_ok=True)
        first = (outcome.stderr.strip() or "no message").splitlines()[0]
        raise MissingError(f"cannot compile {what}: {first}")
    partial.rename(target)
    return target
