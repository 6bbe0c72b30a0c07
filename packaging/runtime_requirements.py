# SPDX-License-Identifier: MIT
"""Print the part of a lock file that hmd needs to run: ``python runtime_requirements.py LOCK``.

The lock file also covers development. pyproject.toml lists hmd's dependencies, and the metadata
of the installed packages lists theirs.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def closure(wanted: list[str]) -> set[str]:
    """Return the names of the packages that these requirements need, without extras."""
    found: set[str] = set()
    queue = [Requirement(each) for each in wanted]
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        queue += [Requirement(each) for each in requires(name) or ()]
    return found


def blocks(lock: str) -> dict[str, str]:
    """Return the entry of each package in a lock file, by name."""
    parts = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)
    return {canonicalize_name(re.split(r"[=\[ ]", part)[0]): part for part in parts[1:]}


def main(lock: Path) -> str:
    """Return the requirements in the order of the lock file; exits if one is not locked."""
    wanted = closure(tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"])
    locked = blocks(lock.read_text())
    if missing := sorted(wanted - locked.keys()):
        sys.exit(
            f"{lock} lacks {', '.join(missing)}: CONTRIBUTING.md has the command that makes it"
        )
    return "".join(part for name, part in locked.items() if name in wanted)


if __name__ == "__main__":
    sys.stdout.write(main(Path(sys.argv[1])))
