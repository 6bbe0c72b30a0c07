# SPDX-License-Identifier: MIT
"""Files of the emulated machine: its kernel, the host's programs, and compiled C.

A kernel is a tree with ``boot/vmlinuz-VERSION`` and ``lib/modules/VERSION``, as unpacked from a
Debian package. hmd looks in $HMD_MACHINE_DIR and its subfolder kernel, then in
build/machine/kernel of a checkout, then in /var/lib/hmd-emulate/kernel. Programs for the guest and
QEMU's plugin (plugin/ and timing/, one shared object) are compiled when they are needed, and cached
in $HMD_CACHE_DIR, or a folder of the checkout, root or the user, under the hash of their sources.
plugin/qemu_plugin_api.h declares QEMU's plugin API, so that a C compiler is all that it takes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hmd.base.errors import MissingError

CHECKOUT = Path(__file__).resolve().parents[2]
INSTALLED = Path("/var/lib/hmd-emulate/kernel")
WORKLOADS = Path(__file__).with_name("workloads")
"""C programs that hmd compiles for the guest."""

PLUGIN_SOURCES = tuple(Path(__file__).with_name(name) for name in ("plugin", "timing"))
"""Folders with the C sources of QEMU's plugin."""

OF_HOST = ("replay.c", "misses.c", "threads.c")
"""Sources of the timing model that replay recorded streams on the host; the plugin has none."""

_PLUGIN_OPTIONS = (
    *("-O3", "-flto", "-std=gnu11", "-shared", "-fPIC", "-fno-plt", "-fvisibility=hidden"),
    *("-Wall", "-Wextra"),
)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel to boot: its version, image, and folder of modules."""

    version: str
    image: Path
    modules: Path


def kernel_folders(environment: dict[str, str] | os._Environ[str] = os.environ) -> list[Path]:
    """Folders in which a kernel is looked for, in order."""
    named = environment.get("HMD_MACHINE_DIR")
    folders = [Path(named), Path(named) / "kernel"] if named else []
    return [*folders, CHECKOUT / "build/machine/kernel", INSTALLED]


def find_kernel(folders: Sequence[Path] | None = None) -> Kernel:
    """Return the newest complete kernel of the first folder that has one, or MissingError."""
    searched = kernel_folders() if folders is None else list(folders)
    for folder in searched:
        for image in sorted(folder.glob("boot/vmlinuz-*"), reverse=True):
            version = image.name.removeprefix("vmlinuz-")
            modules = folder / "lib/modules" / version
            if modules.is_dir():
                return Kernel(version, image, modules)
    places = ", ".join(str(folder) for folder in searched)
    package = "linux-image-6.12*-amd64 of Debian's bookworm-backports"
    unpack = f"unpack a kernel ({package}) with `dpkg -x PACKAGE {INSTALLED}`"
    advice = "run `make setup`" if in_checkout() else unpack
    raise MissingError(
        f"no kernel for the emulated machine in {places}: {advice}, "
        "or set HMD_MACHINE_DIR to its folder"
    )


def in_checkout() -> bool:
    """Return whether this hmd runs from its repository, which has ``make setup``."""
    return (CHECKOUT / "pyproject.toml").exists()


def find_program(name: str, package: str) -> str:
    """Return the path of a program of the host, or MissingError that names its Debian package."""
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin:/sbin:/bin")
    if path is None:
        advice = f"run `make setup` (Debian: {package})" if in_checkout() else f"install {package}"
        raise MissingError(f"{name} is not installed: {advice}")
    return path


def cache_folder() -> Path:
    """Return the folder for compiled parts: the checkout's, root's or the user's."""
    if "HMD_CACHE_DIR" in os.environ:
        folder = Path(os.environ["HMD_CACHE_DIR"])
    elif in_checkout() and os.access(CHECKOUT, os.W_OK):
        folder = CHECKOUT / "build/machine/cache"
    elif os.geteuid() == 0:
        # Not /var/cache/hmd, which belongs to the daemon's user: root runs what is there.
        folder = Path("/var/cache/hmd-emulate")
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hmd"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def compile_static(
    source: Path, options: Sequence[str] = (), more_sources: Sequence[Path] = ()
) -> Path:
    """Compile C files into a static program, or return the cached one if nothing changed.

    The program has the name of ``source``. Headers in that file's folder and in the folders of
    ``-I`` options are parts of it. Raises MissingError without a compiler, and where compilation
    fails (no static libc).
    """
    folders = [source.parent, *(Path(word[2:]) for word in options if word.startswith("-I"))]
    headers = sorted(path for folder in folders for path in folder.glob("*.h"))
    options = ["-O2", "-std=gnu11", "-static", "-s", *options]
    what = f"{source.name} for the emulated machine"
    files = [source, *more_sources, *headers]
    return _compiled(f"{source.stem}-{{}}", options, files, "-lpthread", what)


def plugin_library() -> Path:
    """Return the plugin's path; compiles it if its sources changed; raises as compile_static."""
    sources = sorted(path for folder in PLUGIN_SOURCES for path in folder.glob("*.[ch]"))
    files = [path for path in sources if path.name not in OF_HOST]
    options = [*_PLUGIN_OPTIONS, *(f"-I{folder}" for folder in PLUGIN_SOURCES)]
    return _compiled("plugin-{}.so", options, files, "-lm", "the emulated machine's plugin")


def _compiled(
    name: str, options: Sequence[str], files: Sequence[Path], library: str, what: str
) -> Path:
    """Compile the C files among ``files`` unless they, headers and options are as in the cache.

    ``name`` has a place for their digest. A compilation that is interrupted leaves no target.
    ``what`` names it in the MissingError.
    """
    digest = hashlib.sha256("\0".join(options).encode())
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    target = cache_folder() / name.format(digest.hexdigest()[:16])
    if target.exists():
        return target
    compiler = find_program("cc", "gcc and libc6-dev")
    partial = target.with_suffix(f".{os.getpid()}")
    sources = [str(path) for path in files if path.suffix == ".c"]
    words = [compiler, *options, *sources, library, "-o", str(partial)]
    outcome = subprocess.run(words, check=False, capture_output=True, text=True)
    if outcome.returncode != 0:
        partial.unlink(missing_ok=True)
        first = (outcome.stderr.strip() or "no message").splitlines()[0]
        raise MissingError(f"cannot compile {what}: {first}")
    partial.rename(target)
    return target
