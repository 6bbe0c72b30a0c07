"""Footprints of the suite's programs, from which the sizes of fast tiers follow.

A footprint is the peak resident set (VmHWM in proc_pid_status(5)) of one run on the host, which
takes a second or two. A server runs its load. The result is stored in a file.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hmd.emulate.recordings.server_load import READY_S
from hmd.emulate.virtual_machine.guest_command import BASE_ENVIRONMENT, Command
from hmd.errors import HmdError

_LOOK_S = 0.002
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def footprint_bytes(name: str, digest: str, prepare: Callable[[], Command], folder: Path) -> int:
    """Return a program's footprint; ``digest`` identifies all that its runs depend on.

    Raises HmdError where the program fails on the host.
    """
    path = folder / "footprints" / f"{name}-{digest}.json"
    if path.exists():
        return int(json.loads(path.read_text())["peak_bytes"])
    peak = _measured(prepare())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"peak_bytes": peak}))
    return peak


def _measured(command: Command) -> int:
    with subprocess.Popen(
        ["setarch", "--addr-no-randomize", *command.argv],
        cwd="/tmp",
        env=dict(command.env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        status, peak = Path(f"/proc/{process.pid}/status"), 0
        client = _load(command)
        while process.poll() is None:
            found = _PEAK.search(status.read_text())
            peak = int(found[1]) << 10 if found else peak  # a zombie has none
            time.sleep(_LOOK_S)
            if client is not None and client.poll():
                process.kill()
                raise HmdError(f"{command.load[0]} exited with {client.returncode} on the host")
    if process.returncode != command.exit_status:
        raise HmdError(f"{command.argv[0]} exited with {process.returncode} on the host")
    return peak


def _load(command: Command) -> subprocess.Popen[bytes] | None:
    """Start the load of a server that has been started; None for other programs."""
    if not command.load:
        return None
    give_up = time.monotonic() + READY_S
    while _run(command.ready).wait():
        if time.monotonic() > give_up:
            raise HmdError(f"{command.argv[0]} did not become ready within {READY_S:.0f} s")
        time.sleep(_LOOK_S)
    return _run(command.load)


def _run(words: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words, env=BASE_ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
