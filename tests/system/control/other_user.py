# SPDX-License-Identifier: MIT
"""Processes of another user, in the states that the kernel's permission check distinguishes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

ALICE, ALICE_GROUP, OTHER_GROUP, BOB = 4711, 4711, 4712, 4713

SLEEPER = """
import ctypes, os, sys, time
exec(sys.argv[1])
print("up", flush=True)
time.sleep(1000)
"""

BECOME = f"os.setgroups([]); os.setgid({ALICE_GROUP}); os.setuid({ALICE}); "
RESET = "ctypes.CDLL(None).prctl(4, 1)"
"""PR_SET_DUMPABLE: a process that has changed its user is not dumpable until then."""

STATES = {
    "its own": BECOME + RESET,
    "not dumpable": BECOME + "ctypes.CDLL(None).prctl(4, 0)",
    "changed user without exec": BECOME,
    "another user": f"os.setgroups([]); os.setgid({BOB}); os.setuid({BOB}); " + RESET,
    "root": "pass",
    "another saved uid": f"os.setgid({ALICE_GROUP}); os.setresuid({ALICE}, {ALICE}, 0); " + RESET,
    "another effective uid": f"os.setgid({ALICE_GROUP}); os.setresuid({ALICE}, 0, {ALICE}); "
    + RESET,
    "another gid": f"os.setgroups([]); os.setgid({OTHER_GROUP}); os.setuid({ALICE}); " + RESET,
    "another saved gid": f"os.setgroups([]); os.setresgid({ALICE_GROUP}, {ALICE_GROUP}, 0); "
    f"os.setuid({ALICE}); " + RESET,
    "with capabilities": "ctypes.CDLL(None).prctl(8, 1); " + BECOME + RESET,
}
"""By name: what a process does to itself as root. 8 is PR_SET_KEEPCAPS."""

QUERY = """
import ctypes, os, sys
os.setgroups([]); os.setgid({gid}); os.setuid({uid})
libc = ctypes.CDLL(None, use_errno=True)
page, status = ctypes.c_void_p(4096), ctypes.c_int(0)
failed = libc.syscall(279, {pid}, 1, ctypes.byref(page), None, ctypes.byref(status), 0)
sys.exit(ctypes.get_errno() if failed else 0)
"""
"""Asks the kernel for the node of a page: move_pages(2), which checks as a move does."""


@contextmanager
def process_in(state: str) -> Iterator[int]:
    """Run a process in one of ``STATES``; gives its pid."""
    words = [sys.executable, "-S", "-c", SLEEPER, STATES[state]]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process.pid
        process.kill()


def kernel_refuses(pid: int, uid: int = ALICE, gid: int = ALICE_GROUP) -> bool:
    """Return whether the kernel refuses a user's move_pages(2) of a process with EPERM."""
    text = QUERY.format(uid=uid, gid=gid, pid=pid)
    done = subprocess.run([sys.executable, "-S", "-c", text], check=False)
    assert done.returncode in (0, 1), os.strerror(done.returncode)
    return done.returncode == 1
