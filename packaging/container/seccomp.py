# SPDX-License-Identifier: MIT
"""Write seccomp.json: the system calls that systemd/hmd.service allows, for container runtimes.

    python packaging/container/seccomp.py > packaging/container/seccomp.json

``systemd-analyze syscall-filter`` expands the unit's sets (``@system-service``) by the installed
systemd. The format is Docker's, which Podman and Kubernetes also use
(https://docs.docker.com/engine/security/seccomp/).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

UNIT = Path(__file__).parents[2] / "systemd/hmd.service"
EPERM = 1


def main() -> int:
    """Print the profile."""
    json.dump(profile(UNIT.read_text()), sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


def profile(unit: str) -> dict[str, object]:
    """Return the profile of a unit's SystemCallFilter= lines: other calls fail with EPERM."""
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": EPERM,
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [{"names": sorted(allowed(unit)), "action": "SCMP_ACT_ALLOW"}],
    }


def allowed(unit: str) -> set[str]:
    """Return the allowed calls: listed ones, without those of lines that begin with ``~``."""
    calls: set[str] = set()
    for line in unit.splitlines():
        name, _, value = line.partition("=")
        if name != "SystemCallFilter":
            continue
        listed = {call for word in value.lstrip("~").split() for call in members(word)}
        calls = calls - listed if value.startswith("~") else calls | listed
    return calls


def members(name: str) -> set[str]:
    """Return the calls of a systemd set, nested sets included; a call returns itself."""
    if not name.startswith("@"):
        return {name}
    words = ["systemd-analyze", "syscall-filter", "--no-pager", name]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    lines = [line.strip() for line in done.stdout.splitlines()[1:]]
    inner = [line for line in lines if line and not line.startswith("#")]
    return {call for line in inner for call in members(line)}


if __name__ == "__main__":
    sys.exit(main())
