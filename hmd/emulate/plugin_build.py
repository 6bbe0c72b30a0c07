"""Compilation of the QEMU plugin: the sources of plugin/ and timing/ as one shared object.

The object is cached under a hash of all sources, so that a changed source compiles again. It needs
only a C compiler: plugin/qemu_plugin_api.h declares QEMU's plugin API.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from hmd.emulate.assets import cache_folder
from hmd.emulate.c_compiler import compile_to

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
    arguments = [
        *OPTIONS,
        *(f"-I{folder}" for folder in FOLDERS),
        *(str(path) for path in sources if path.suffix == ".c" and path.name not in REPLAY),
        "-lm",
    ]
    return compile_to(target, arguments, "the emulated machine's plugin")
