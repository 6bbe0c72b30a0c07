"""The few errors that hmd raises on purpose.

Every one carries one line for a person: what is wrong and what to do. The command line prints
that line and exits with the error's code; nothing else in hmd prints errors.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class Exit(IntEnum):
    """Exit codes of the ``hmd`` command."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    CONFIG = 3
    MISSING = 4
    TARGET = 5
    UNREACHABLE = 6


class HmdError(Exception):
    """An expected failure, told in one line that says what to do."""

    exit_code: ClassVar[Exit] = Exit.FAILURE


class UsageError(HmdError):
    """The options of a command do not go together."""

    exit_code = Exit.USAGE


class ConfigError(HmdError):
    """The configuration or a preset is wrong; the line names file and line."""

    exit_code = Exit.CONFIG


class MissingError(HmdError):
    """The machine lacks something: a capability, a device, a package, a kernel feature."""

    exit_code = Exit.MISSING


class TargetError(HmdError):
    """The process or node that was asked for is not there, or has gone."""

    exit_code = Exit.TARGET


class UnreachableError(HmdError):
    """The daemon's status socket does not answer."""

    exit_code = Exit.UNREACHABLE
