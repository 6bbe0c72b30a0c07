# SPDX-License-Identifier: MIT
"""Optional packages: the error for one that is missing, with the way to install it.

hmd is distributed as ``hmd-tiering``; the import name and the command are ``hmd``. What installs an
extra depends on the installation: pip, where the environment that hmd runs in has it (a wheel or a
checkout); the Debian package has neither pip nor the extras.
"""

from __future__ import annotations

import shlex
import sys
from importlib.machinery import PathFinder
from typing import Literal

from hmd.base.errors import MissingError

DISTRIBUTION = "hmd-tiering"

Extra = Literal["fleet", "ilp", "parquet", "plot", "torch", "train", "tune", "zstd"]


def missing_extra(use: str, package: str, extra: Extra, instead: str = "") -> MissingError:
    """Return the error that ``use`` needs ``package``, how to install it, and what does without."""
    return MissingError(
        f"{use} needs {package}: {install_command(extra)}{instead and '; '}{instead}"
    )


def install_command(extra: Extra) -> str:
    """Return what a person does to install an extra next to this hmd."""
    requirement = f"'{DISTRIBUTION}[{extra}]'"
    # Not importlib.util.find_spec: setuptools hooks the look-up of pip and warns of distutils.
    if PathFinder.find_spec("pip") is None:
        return (
            f"this installation has no pip; install the wheel {requirement} into a virtual"
            " environment (documentation: Installing hmd)"
        )
    return f"{shlex.quote(sys.executable)} -m pip install {requirement}"
