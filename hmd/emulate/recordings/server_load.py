"""The load of a server that runs in the emulated machine.

Waits until the server is ready, then runs its load to the end, which ends the server. Both run
under a command prefix that places them, usually on another CPU than the server's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from hmd.emulate.virtual_machine.boot import Machine
from hmd.emulate.virtual_machine.guest_command import BASE_ENVIRONMENT, Command
from hmd.errors import HmdError

READY_S = 60.0
_LOOK_S = 0.1


def serve(
    machine: Machine,
    command: Command,
    prefix: Sequence[str],
    timeout_s: float,
    ready_s: float = READY_S,
) -> bytes:
    """Run the load of a started server, at most ``timeout_s``; returns the load's output.

    Raises HmdError where the server is not ready within ``ready_s``, or its load fails.
    """
    deadline = time.monotonic() + ready_s
    while machine.run([*prefix, *command.ready], env=BASE_ENVIRONMENT).returncode:
        if time.monotonic() > deadline:
            raise HmdError(f"{command.argv[0]} did not become ready within {ready_s:.0f} s")
        time.sleep(_LOOK_S)
    done = machine.run([*prefix, *command.load], env=BASE_ENVIRONMENT, timeout=timeout_s)
    if done.returncode:
        raise HmdError(f"{command.load[0]} exited with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.encode()
