"""Compilation of the QEMU plugin: the sources of plugin/ and timing/ as one shared object.

The object is cached under a hash of all sources, so that a changed source compiles again. It needs
only a C compiler: plugin/qemu_plugin_api.h declares QEMU's plugin API.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from hmd.emulate.assets import cache_folder, find_program
from hmd.errors import MissingError

FOLDERS = tuple(Path(__file__).parent / name for name in ("plugin", "timing"))
REPLAY = ("replay.c", "misses.c", "threads.c")  # of streams that were recorded: for the host
OPTIONS = (
    *("-O3", "-flto", "-std=gnu11", "-shared", "-fPIC", "-fno-plt", "-fvisibility=hidden"),
    *("-Wall", "-Wextra"),
)


def plugin_library() -> Path:
    """Return the plugin's path; compiles it if its sources changed.

    Raises MissingError without a compiler, and where compilation fails.
    """
    sources = sorted(path for folder in FOLDERS for path in folder.glob("*.[ch]"))
    digest = hashlib.sha256(" ".join(OPTIONS).encode())
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    target = cache_folder() / f"plugin-{digest.hexdigest()[:16]}.so"
    if target.exists():
        return target
    partial = target.with_suffix(f".{os.getpid()}")
    outcome = subprocess.run(
        [
            find_program("cc", "gcc and libc6-dev"),
            *OPTIONS,
            *(f"-I{folder}" for folder in FOLDERS),
            "-o",
            str(partial),
            *(str(path) for path in sources if path.suffix == ".c" and path.name not in REPLAY),
            "-lm",
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    if outcome.returncode != 0:
        partial.unlink(missing_ok=True)
        first = (outcome.stderr.strip() or "no message").splitlines()[0]
        raise MissingError(f"cannot compile the emulated machine's plugin: {first}")
    partial.rename(target)
    return target
