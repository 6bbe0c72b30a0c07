"""What the guest need not compile: hmd's numba kernels, for its CPU, and hmd's bytecode.

Compiling kernels in emulation takes minutes; with compiling its modules the daemon's imports take
86 s in place of 60. numba keys its cache by CPU name and features, which NUMBA_CPU_NAME and
NUMBA_CPU_FEATURES override: code for ``generic`` runs on host and guest.
"""

from __future__ import annotations

import compileall
from pathlib import Path

import hmd
from hmd.decide import registry
from hmd.emulate.assets import cache_folder


def guest_environment() -> dict[str, str]:
    """Return the variables by which numba finds the kernels; HMD_EMULATED marks the guest."""
    return {
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CACHE_DIR": str(_folder()),
        "HMD_EMULATED": "1",
    }


def warm_kernels() -> None:
    """Compile the kernels that the guest's cache lacks; the first time takes a minute.

    And the bytecode that the package lacks, where it may be written (PYTHONDONTWRITEBYTECODE keeps
    the interpreter from it). Raises MissingError where compilation of kernels fails.
    """
    compileall.compile_dir(Path(hmd.__file__).parent, quiet=2)
    _folder().mkdir(parents=True, exist_ok=True)
    registry.warm_apart(guest_environment())


def _folder() -> Path:
    return cache_folder() / "numba"
