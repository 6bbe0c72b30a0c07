"""Recording of a command's last-level-cache misses in the emulated machine.

Takes a command; gives a miss stream. The command runs twice: once to fill the page cache with its
files, once recorded, alone on its CPU. It must behave alike in both runs.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from hmd.emulate.preset import load
from hmd.emulate.recordings.isolated_run import ALL_SLOW, RECORDED_ON, guest, run_in, widest_core
from hmd.emulate.recordings.miss_stream import MissStream
from hmd.emulate.virtual_machine.guest_command import BASE_ENVIRONMENT, Command
from hmd.errors import HmdError, TargetError


def record_misses(command: Sequence[str]) -> MissStream:
    """Return the misses of a command, which must exit with 0; takes a minute or more.

    Raises TargetError where there is no such command, HmdError where it fails.
    """
    program = shutil.which(command[0])
    if program is None:
        raise TargetError(f"there is no command {command[0]}: check the name, or give its path")
    ready = Command((str(Path(program).absolute()), *command[1:]), BASE_ENVIRONMENT, expect="")
    with guest(widest_core(load(RECORDED_ON)), ready) as machine:
        recording = run_in(machine, ready, ALL_SLOW).recording
    if recording is None or not len(recording.stream):
        raise HmdError(f"{command[0]} had no cache miss: give it more memory to work on")
    return recording.stream
