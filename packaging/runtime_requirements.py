# SPDX-License-Identifier: MIT
"""Print what hmd and some of its extras need of a lock file, which also covers development.

``python packaging/runtime_requirements.py LOCK [EXTRA...]``: pyproject.toml lists the dependencies
of hmd and of each extra, and the metadata of the installed packages lists theirs.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
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


def main(lock: Path, extras: Sequence[str] = ()) -> str:
    """Return the requirements in the order of the lock file; exits if one is not locked."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    optional = [name for extra in extras for name in project["optional-dependencies"][extra]]
    wanted = closure(project["dependencies"] + optional)
    locked = blocks(lock.read_text())
    if missing := sorted(wanted - locked.keys()):
        sys.exit(
            f"{lock} lacks {', '.join(missing)}: CONTRIBUTING.md has the command that makes it"
        )
    return "".join(part for name, part in locked.items() if name in wanted)


if __name__ == "__main__":
    sys.stdout.write(main(Path(sys.argv[1]), sys.argv[2:]))
