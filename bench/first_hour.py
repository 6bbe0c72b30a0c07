# SPDX-License-Identifier: MIT
"""A new user's first hour on a fresh Debian 12, timed: docs/results/first_hour.json.

    python -m bench.first_hour clone               from a clone of this checkout's commit
    python -m bench.first_hour build/deb/FILE.deb  from a package

``packaging/first_hour.sh`` has the steps. They run in a Debian with what mmdebstrap takes for
important, whose systemd runs on this machine's kernel and network; build/first_hour has what they
printed. The Debian gets this machine's ways to a network: resolver, certificates, settings of pip.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.debian import Booted, booted, make_debian
from bench.documents import markdown

ROOT: Final = markdown.ROOT
RESULT: Final = ROOT / "docs/results/first_hour.json"
LOGS: Final = ROOT / "build/first_hour"
_NETWORK = ("etc/resolv.conf", "etc/pip.conf", "etc/ssl/certs/ca-certificates.crt")
_LIMIT_S = 3600
SCRIPT: Final = "packaging/first_hour.sh"


def main(source: str) -> None:
    """Run the first hour from a clone or a package; update its part of the results."""
    name = "clone" if source == "clone" else "package"
    about = markdown.measured_with()
    LOGS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=LOGS) as made:
        folder = Path(made) / "debian"
        make_debian(folder, "--variant=important", "--include=ca-certificates")
        for path in _NETWORK:
            if (Path("/") / path).exists():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(Path("/") / path, folder / path)
        with booted(folder) as machine:
            print(f"{name}: booted; {LOGS / name}.log", flush=True)
            found = _first_hour(machine, source, LOGS / f"{name}.log")
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    results[name] = about | found
    RESULT.write_text(json.dumps(results, indent=1) + "\n")
    print(f"{name}: {found['total_s']} s, {RESULT}")


def _first_hour(machine: Booted, source: str, log: Path) -> dict[str, object]:
    root = machine.folder / "root"
    checkout = machine.folder / "srv/hmd"
    clone = ["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(checkout)]
    subprocess.run(clone, check=True)
    if source != "clone":
        shutil.copy(source, root / "hmd.deb")
        source = "/root/hmd.deb"
    settings = [f"{name}={value}" for name, value in os.environ.items() if name == "PIP_CERT"]
    words = f"cd /srv/hmd && {SCRIPT} {source} /root/first_hour.json >/root/log 2>&1"
    try:
        machine.run("env", *settings, "HOME=/root", "bash", "-c", words, timeout_s=_LIMIT_S)
    finally:
        shutil.copy(root / "log", log)
    found: dict[str, object] = json.loads((root / "first_hour.json").read_text())
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("python -m bench.first_hour clone|PACKAGE")
    main(sys.argv[1])
