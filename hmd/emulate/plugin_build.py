"""Compiling the QEMU plugin: the sources of plugin/ and timing/ into one shared object.

Kept in the cache folder under a hash of all sources, and compiled again when one changes. Needs
a C compiler only: QEMU's plugin API is declared in plugin/qemu_plugin_api.h.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from hmd.emulate.assets import cache_folder, find_program
from hmd.errors import MissingError

FOLDERS = tuple(Path(__file__).parent / name for name in ("plugin", "timing"))
REPLAY = ("replay.c", "misses.c")  # of streams that were recorded: for the host
OPTIONS = (
    *("-O3", "-flto", "-std=gnu11", "-shared", "-fPIC", "-fno-plt", "-fvisibility=hidden"),
    *("-Wall", "-Wextra"),
)


def plugin_library() -> Path:
    """Return the plugin's path, compiled where its sources have changed.

    Raises MissingError without a compiler, and where the compiler refuses.
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
