"""A command to run in the emulated machine: its arguments, environment, sign of success.

A recorded run and its replay must execute the same instructions, so nothing of the caller's
environment reaches the command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

BASE_ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C",
    "TZ": "UTC",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
}
"""The whole environment of a recorded program: one thread, one arena, no random hashes.

It is not added to the caller's, because the environment lies on the program's stack and moves it.
"""


@dataclass(frozen=True, slots=True)
class Command:
    """A program ready to run; ``env`` is its whole environment.

    A run succeeded when ``expect`` is in the output and the exit status is ``exit_status``.
    ``threads`` is how many CPUs it runs on, one thread each: they must wait for each other in the
    kernel, because one that polls executes as much in any replay. A server has two commands more,
    which run on the other CPU: ``ready`` is repeated until it succeeds, then ``load`` runs once,
    and ends the server. Both are empty for other programs.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    expect: str
    exit_status: int = 0
    threads: int = 1
    ready: tuple[str, ...] = ()
    load: tuple[str, ...] = ()
