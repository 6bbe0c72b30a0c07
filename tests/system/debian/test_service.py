# SPDX-License-Identifier: MIT
"""The package's service under a real systemd: started, controlled, upgraded while it runs, purged.

A clean Debian is booted in namespaces of this machine, whose kernel, CPUs and perf events the
daemon has: it follows a real program of another user. One life of a machine, in order.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.debian import Booted, booted
from hmd import __version__
from tests.system.debian.conftest import Debian, keep_kernels, lend_kernels

pytestmark = [
    pytest.mark.timeout(900),
]

NEXT = f"{__version__}+next"
NOBODY, OWNER = 65534, 4711
PROGRAM = """\
import mmap, time
while True:
    memory = mmap.mmap(-1, 16 << 20)  # fresh, for page faults
    for at in range(0, len(memory), 4096):
        memory[at] = 1
    time.sleep(0.2)
    memory.close()
"""
CONFIG = """\
targets:
- name: program
  user: 4711
sample:
  sampler: faults
"""


def newer(package: Path, folder: Path) -> Path:
    """Return the same package with the next version's number, which its command prints too."""
    subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(folder / "raw")], check=True)
    control = folder / "raw/DEBIAN/control"
    control.write_text(control.read_text().replace(f"Version: {__version__}", f"Version: {NEXT}"))
    made = folder / "next.deb"
    subprocess.run(["dpkg-deb", "-Znone", "--build", str(folder / "raw"), str(made)], check=True)
    return made


def status(machine: Booted, true_of: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Return the first status of which something is true."""
    deadline_s = time.monotonic() + 60
    found: dict[str, Any] = {}
    while time.monotonic() < deadline_s:
        said = machine.run("hmd", "status", "--json", code=None)
        found = json.loads(said) if said.startswith("{") else {}
        if found and true_of(found):
            return found
        time.sleep(0.2)
    raise AssertionError(
        f"waited without result: {found}; {machine.run('journalctl', '-u', 'hmd')}"
    )


def follows(found: dict[str, Any]) -> bool:
    return [process["target"] for process in found["processes"]] == ["program"]


@pytest.fixture
def machine(debian: Debian, package: Path, tmp_path: Path) -> Iterator[Booted]:
    with booted(debian.folder) as running:
        # Its systemd has emptied /tmp.
        for name, made in (("hmd.deb", package), ("next.deb", newer(package, tmp_path))):
            (debian.folder / "root" / name).hardlink_to(made)
        yield running


def test_service_is_started_controlled_upgraded_and_purged(machine: Booted, debian: Debian) -> None:
    before = debian.files()
    lend_kernels(debian.folder)
    machine.run("dpkg", "--force-unsafe-io", "--install", "/root/hmd.deb")
    keep_kernels(machine.folder)
    assert machine.show("ActiveState", "UnitFileState") == {
        "ActiveState": "inactive",
        "UnitFileState": "disabled",
    }
    (machine.folder / "etc/hmd/hmd.yaml").write_text(CONFIG)
    program = machine.start(
        *("setpriv", f"--reuid={OWNER}", f"--regid={OWNER}", "--clear-groups", "python3"),
        *("-c", PROGRAM),
    )
    try:
        # A trial by root, as in the tutorial, leaves its lock.
        machine.run("hmd", "run", "--config", "/etc/hmd/hmd.yaml", "--dry-run", "--ticks", "1")
        machine.run("hmd", "enable", "--yes", "--sampler", "faults")
        check_runs_as_its_user(machine)
        check_admin_requests_by_permission(machine)
        check_runs_after_upgrade(machine)
        check_stopped_after_removal(machine)
    finally:
        program.kill()
        program.wait()
    machine.run("dpkg", "--purge", "hmd")
    assert debian.files() == before


def check_runs_as_its_user(machine: Booted) -> None:
    found = status(machine, follows)
    service = machine.show("User", "ActiveState", "NRestarts", "StatusText", "MainPID")
    assert (service["User"], service["ActiveState"], service["NRestarts"]) == ("hmd", "active", "0")
    assert service["StatusText"].startswith("1 processes of 1 targets, sampler faults")
    assert found["pid"] == int(service["MainPID"])
    # Nothing was compiled in the daemon: not in its unit, and not after the start. What root has
    # compiled is also for the daemon's user.
    assert not list((machine.folder / "var/cache/hmd").rglob("*.nbi"))
    said = machine.run("journalctl", "--unit", "hmd", "--output", "cat")
    assert "compiling" not in said
    assert status(machine, lambda now: now["sampler"]["samples"] > 0)
    assert " 2.1 OK" in machine.run("systemd-analyze", "security", "hmd")


def check_admin_requests_by_permission(machine: Booted) -> None:
    pid = str(status(machine, follows)["processes"][0]["pid"])

    def by(user: int, *words: str, code: int) -> str:
        group = "--groups=hmd" if user == OWNER else "--clear-groups"
        uid = (f"--reuid={user}", f"--regid={user}", group)
        return machine.run("setpriv", *uid, "hmd", *words, code=code)

    assert "permission denied" in by(NOBODY, "status", code=7)
    assert "root" in by(OWNER, "pause", code=7)
    by(OWNER, "pin", pid, code=0)
    assert status(machine, lambda now: now["control"]["pins"])
    by(OWNER, "unpin", pid, code=0)
    machine.run("hmd", "pause")
    after = status(machine, follows)["ticks"]
    assert status(machine, lambda now: now["ticks"] > after + 1)  # published once per tick
    assert "paused" in machine.show("StatusText")["StatusText"]
    machine.run("systemctl", "reload", "hmd")
    assert status(machine, lambda now: now["control"]["paused"])
    machine.run("hmd", "resume")
    assert not status(machine, follows)["control"]["paused"]
    drop_in = machine.folder / "etc/hmd/hmd.d/broken.yaml"
    drop_in.write_text("tick: soon\n")
    machine.run("systemctl", "reload", "hmd", code=1)
    assert status(machine, lambda now: not now["reload"]["successful"])
    assert "last reload failed" in machine.show("StatusText")["StatusText"]
    drop_in.unlink()
    machine.run("systemctl", "reload", "hmd")
    assert status(machine, lambda now: now["reload"]["successful"])
    said = machine.run("journalctl", "--unit", "hmd", "--output", "cat")
    assert f"uid {OWNER}" in said


def check_runs_after_upgrade(machine: Booted) -> None:
    pid = status(machine, follows)["pid"]
    machine.run("dpkg", "--force-unsafe-io", "--install", "/root/next.deb")
    assert machine.run("dpkg-query", "-W", "-f", "${Version}", "hmd") == NEXT
    assert status(machine, follows)["pid"] != pid
    assert machine.show("ActiveState", "NRestarts", "UnitFileState") == {
        "ActiveState": "active",
        "NRestarts": "0",
        "UnitFileState": "enabled",
    }
    assert (machine.folder / "etc/hmd/hmd.yaml").read_text() == CONFIG


def check_stopped_after_removal(machine: Booted) -> None:
    pid = status(machine, follows)["pid"]
    assert machine.run("cat", f"/proc/{pid}/comm") == "hmd\n"
    machine.run("dpkg", "--remove", "hmd")
    machine.run("cat", f"/proc/{pid}/comm", code=1)
    assert (machine.folder / "etc/hmd/hmd.yaml").read_text() == CONFIG
