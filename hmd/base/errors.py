# SPDX-License-Identifier: MIT
"""The errors that hmd raises on purpose.

Each carries one line that says what is wrong and what to do. The command line prints that line and
exits with the error's code; no other part of hmd prints errors. ``Diagnostic`` is what is wrong
with the machine without being an error of the program: for ``hmd doctor`` and the start-up log.
"""

from __future__ import annotations

import errno
import shlex
import sys
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from importlib.machinery import PathFinder
from typing import Literal

_NOT_PERMITTED = frozenset({errno.EACCES, errno.EPERM})
_TRANSIENT = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.EINTR,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.ENOSPC,
    }
)


class Exit(IntEnum):
    """Exit codes of the ``hmd`` command."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    CONFIG = 3
    MISSING = 4
    TARGET = 5
    UNREACHABLE = 6
    NOT_PERMITTED = 7
    RETRY = 75
    """EX_TEMPFAIL of sysexits.h, which the service manager restarts."""


class HmdError(Exception):
    """An expected failure, in one line that says what to do."""

    exit_code: Exit = Exit.FAILURE


class PageSizeError(HmdError):
    """A file is of a machine whose base pages, of ``page_bytes``, are not this process's."""

    def __init__(self, what: str, page_bytes: int) -> None:
        super().__init__(
            f"{what} is of a machine with pages of {page_bytes >> 10} KiB: set "
            f"HMD_PAGE_BYTES={page_bytes} to read it, with no file of another size beside it"
        )
        self.page_bytes = page_bytes


class UsageError(HmdError):
    """The options of a command, or the arguments of a request, do not go together."""

    exit_code = Exit.USAGE


class ConfigError(HmdError):
    """The configuration or a preset is wrong; the line names file and line."""

    exit_code = Exit.CONFIG


class UnavailableError(HmdError):
    """Something that hmd needs cannot be used: it is missing, or its use is not permitted.

    For callers that try another way in both cases. ``exit_code`` says which it is.
    """

    exit_code = Exit.MISSING


class MissingError(UnavailableError):
    """The machine lacks something: a kernel feature, a device, a package."""


class NotPermittedError(UnavailableError):
    """The kernel or the daemon refuses: a capability is missing, or the user may not do this."""

    exit_code = Exit.NOT_PERMITTED


class TransientError(UnavailableError):
    """The kernel cannot do it now: busy, or short of memory or descriptors. Later it may."""

    exit_code = Exit.RETRY


class TargetError(HmdError):
    """The process or node that was asked for does not exist, or has exited."""

    exit_code = Exit.TARGET


class UnreachableError(HmdError):
    """The daemon's status socket, or a cluster, does not answer."""

    exit_code = Exit.UNREACHABLE


def unavailable_code(number: int | None) -> Exit:
    """Return the exit code of an ``UnavailableError`` that this errno caused."""
    if number in _TRANSIENT:
        return Exit.RETRY
    return Exit.NOT_PERMITTED if number in _NOT_PERMITTED else Exit.MISSING


def is_transient(error: Exception) -> bool:
    """Return True for an error that may be gone at the next attempt."""
    if isinstance(error, HmdError):
        return error.exit_code is Exit.RETRY
    return isinstance(error, OSError) and error.errno in _TRANSIENT


def os_error(error: Exception, line: str, otherwise: type[HmdError] = MissingError) -> HmdError:
    """Return the error with this line: ``NotPermittedError`` for EACCES and EPERM.

    ``otherwise`` is the class for every other errno, and for an error without one; instead of
    ``MissingError`` a transient errno is a ``TransientError``.
    """
    number = error.errno if isinstance(error, OSError) else None
    if otherwise is MissingError and number in _TRANSIENT:
        return TransientError(line)
    return NotPermittedError(line) if number in _NOT_PERMITTED else otherwise(line)


class Severity(StrEnum):
    """The consequence of a diagnostic: hmd works, works less well, or cannot work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A property of the machine that matters to hmd: its state, and why it matters.

    ``action`` is the command that changes it, empty where there is nothing to do.
    """

    name: str
    level: Severity
    state: str
    why: str = ""
    action: str = ""


DISTRIBUTION = "hmd-tiering"

Extra = Literal[
    "fleet", "frames", "ilp", "parquet", "plot", "symbols", "torch", "train", "tune", "zstd"
]


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
