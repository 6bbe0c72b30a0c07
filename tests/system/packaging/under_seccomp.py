# SPDX-License-Identifier: MIT
"""Run a command under a seccomp profile of Docker's format, as a container runtime does.

    python3 under_seccomp.py PROFILE COMMAND...

By libseccomp's own binding (Debian's python3-seccomp), so that this is the system's Python.
"""

import json
import os
import sys
from pathlib import Path

import seccomp  # type: ignore[import-not-found]

profile = json.loads(Path(sys.argv[1]).read_text())
assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
loaded = seccomp.SyscallFilter(seccomp.ERRNO(profile["defaultErrnoRet"]))
for rule in profile["syscalls"]:
    assert rule["action"] == "SCMP_ACT_ALLOW"
    for name in rule["names"]:
        try:
            loaded.add_rule(seccomp.ALLOW, name)
        except RuntimeError:
            continue  # of another architecture
loaded.load()
os.execvp(sys.argv[2], sys.argv[2:])
