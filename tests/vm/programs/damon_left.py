# SPDX-License-Identifier: MIT
"""The state of DAMON after hmd was killed, on the real kernel; prints one JSON line.

damon_left.py          kills hmd twice, and says what was there before and after each restart
damon_left.py hold     opens the sampler, tracks this process's parent, and waits to be killed
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hmd.base.errors import UnavailableError
from hmd.linux.damon import Kdamonds, damon_finding
from hmd.linux.procfs import identify
from hmd.sample.damon_sampler import PERIODS
from hmd.sample.sampler import SampleSettings
from hmd.sample.selection import list_availability, open_sampler

SYSFS = Path("/sys")
PATIENCE_S = 60


def threads() -> int:
    """How many kdamonds the kernel runs."""
    names = Path("/proc").glob("[0-9]*/comm")
    count = 0
    for name in names:
        with contextlib.suppress(OSError):
            count += name.read_text().startswith("kdamond")
    return count


def state() -> dict[str, Any]:
    finding = damon_finding(SYSFS)
    return {
        "kdamonds": Kdamonds(SYSFS).count,
        "threads": threads(),
        "level": finding.level,
        "state": finding.state,
    }


def hold() -> None:
    sampler = open_sampler(SampleSettings("damon", PERIODS[0])).sampler
    process = identify(os.getppid())
    assert process is not None
    sampler.track([process])
    print("tracking", flush=True)
    while True:
        time.sleep(0.1)
        sampler.read()


def until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def stopped_within_a_look(child: subprocess.Popen[bytes]) -> bool:
    """Stop it while its kdamond runs; where that has just ended, let it go on."""
    if threads() != 1:
        return False
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    within = threads() == 1
    if not within:
        child.send_signal(signal.SIGCONT)
    return within


def kill_one() -> dict[str, Any]:
    """What is there while an hmd runs, whether a second is refused, and after kill -9."""
    with (
        subprocess.Popen([sys.executable, __file__, "hold"], stdout=subprocess.PIPE) as child,
        contextlib.ExitStack() as undo,
    ):
        undo.callback(child.kill)
        assert child.stdout is not None
        assert child.stdout.readline() == b"tracking\n"
        found: dict[str, Any] = {"pid": child.pid, "running": state()}
        try:
            open_sampler(SampleSettings("damon"))
        except UnavailableError as error:
            found["second"] = str(error)
        samplers = list_availability(SampleSettings())
        found["available"] = {each.name: each.detail for each in samplers if each.works}
        until(lambda: stopped_within_a_look(child))
    found["killed"] = state()
    return found


def others() -> dict[str, Any]:
    """Another user's kdamond, switched on by hand."""
    kdamonds = Kdamonds(SYSFS)
    kdamonds.set_count(1)
    kdamonds.write("0/contexts/nr_contexts", 1)
    context = "0/contexts/0"
    kdamonds.write(f"{context}/operations", "vaddr")
    kdamonds.write(f"{context}/targets/nr_targets", 1)
    kdamonds.write(f"{context}/targets/0/pid_target", os.getpid())
    kdamonds.write("0/state", "on")
    found: dict[str, Any] = {}
    try:
        open_sampler(SampleSettings("damon"))
    except UnavailableError as error:
        found["refused"] = str(error)
    found["still_on"] = kdamonds.is_on(0)
    kdamonds.switch_off(0)
    kdamonds.set_count(0)
    return found


def main() -> None:
    found: dict[str, Any] = {"free": state(), "others": others()}
    found["first"] = kill_one()
    # A new start takes DAMON over.
    sampler = open_sampler(SampleSettings("damon")).sampler
    found["restarted"] = state()
    sampler.close()
    found["closed"] = state()
    # One that samples otherwise stops what was left, too.
    found["second"] = kill_one()
    open_sampler(SampleSettings("faults")).sampler.close()
    found["otherwise"] = state()
    print(json.dumps(found))


if __name__ == "__main__":
    hold() if sys.argv[1:] == ["hold"] else main()
