"""hmd's numba kernels, compiled on the host for the guest's CPU.

Compiling in emulation takes minutes. numba keys its cache by CPU name and features, which
NUMBA_CPU_NAME and NUMBA_CPU_FEATURES override: code for ``generic`` runs on host and guest.
"""

from __future__ import annotations

from pathlib import Path

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

    Raises MissingError where compilation fails.
    """
    _folder().mkdir(parents=True, exist_ok=True)
    registry.warm_apart(guest_environment())


def _folder() -> Path:
    return cache_folder() / "numba"
