"""Files of the emulated machine: its kernel, the host's programs, and a cache of compiled ones.

A kernel is a tree with ``boot/vmlinuz-VERSION`` and ``lib/modules/VERSION``, as unpacked from a
Debian package. hmd looks in $HMD_MACHINE_DIR and its subfolder kernel, then in
build/machine/kernel of a checkout, then in /var/lib/hmd-emulate/kernel. Programs compiled for the
machine are cached in $HMD_CACHE_DIR, or a folder of the checkout, root or the user, under the hash
of their source.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hmd.errors import MissingError

CHECKOUT = Path(__file__).resolve().parents[2]
INSTALLED = Path("/var/lib/hmd-emulate/kernel")
WORKLOADS = Path(__file__).with_name("workloads")
"""C programs that hmd compiles for the guest."""


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
    raise MissingError(
        f"no kernel for the emulated machine in {places}: {_kernel_advice()}, "
        "or set HMD_MACHINE_DIR to its folder"
    )


def _kernel_advice() -> str:
    """Return how to get the kernel: by the checkout's set-up, or unpacked manually."""
    if in_checkout():
        return "run `make setup`"
    package = "linux-image-6.12*-amd64 of Debian's bookworm-backports"
    return f"unpack a kernel ({package}) with `dpkg -x PACKAGE {INSTALLED}`"


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
