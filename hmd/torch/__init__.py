# SPDX-License-Identifier: MIT
"""Training in PyTorch with a memory plan: carried out by PyTorch's own hooks, streams and events.

Needs the extra torch; nothing else of hmd imports this package. Public names are imported when they
are used: without PyTorch, those that need it raise MissingError.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

_PUBLIC: Final = {
    "advise": "hmd.torch.advice",
    "fit": "hmd.torch.fitting",
    "offloaded": "hmd.torch.optimizer",
    "tiered": "hmd.torch.tiering",
}
"""Modules of the public names that need PyTorch."""


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("torch") is None:
        from hmd.base.errors import missing_extra

        raise missing_extra(f"hmd.torch.{name}", "PyTorch", "torch")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(_PUBLIC)
