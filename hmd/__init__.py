# SPDX-License-Identifier: MIT
"""hmd, the heterogeneous memory daemon.

One tick is one sentence: sample memory accesses, keep page heat, decide, migrate, observe.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_NOTEBOOK = ("open_trace", "simulate_policies", "policies")


def __getattr__(name: str) -> Any:
    """Return a name of :mod:`hmd.notebook`, which ``import hmd`` alone does not load."""
    if name in _NOTEBOOK:
        return getattr(import_module("hmd.notebook"), name)
    raise AttributeError(f"module 'hmd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_NOTEBOOK]


def revision() -> str:
    """Return the commit that a package was built from, "" in a checkout."""
    file = Path(__file__).with_name("REVISION")
    return file.read_text().strip() if file.exists() else ""
