# SPDX-License-Identifier: MIT
"""Admin commands in the guest: drain, pin and pause of a real program, and memory hot-plug.

The daemon runs as its service does, another user with the unit's capabilities; memory has one
speed, as nothing here depends on heat.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hmd.base.errors import Exit
from hmd.emulate.preset import load, with_nodes
from hmd.emulate.vm.boot import Machine
from hmd.emulate.vm.guest import Job
from hmd.emulate.vm.images import warm_kernels
from tests.fakes.qemu_monitor import Monitor
from tests.vm.conftest import CHECKOUT, PROGRAMS, environment

pytestmark = pytest.mark.timeout(1800)

MIB = 1 << 20
PROGRAM_MIB, BYSTANDER_MIB = 24, 8
NOBODY = 65534
ON_NODE_1 = "numactl --physcpubind=1 --preferred=1"
PATIENCE_S = 300
CONFIG = """\
tick: 500ms
rescan: 1s
targets: [{name: gather, exe: gather}]
sample: {sampler: faults, cpu_quota: 100%}
decide: {policy: none}
migrate: {rate: 100MiB/s}
observe: {metrics: 'off'}
"""
HUGETLB = """
import mmap, os, time
memory = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)
memory[0] = memory[2 << 20] = 1
print("holds", os.getpid(), flush=True)
time.sleep(10000)
"""
"""A program with two huge pages (MAP_HUGETLB)."""


class Guest:
    """The machine with a daemon, and two programs whose memory is on node 1."""

    def __init__(self, machine: Machine, monitor: Monitor, share: Path) -> None:
        self.machine, self.monitor = machine, monitor
        self.log = bytearray()
        self.jobs: list[Job] = []
        gather = share / "gather"
        subprocess.run(
            ["gcc", "-O2", "-Wall", "-Wextra", "-o", gather, PROGRAMS / "gather.c"], check=True
        )
        shutil.copy(gather, share / "bystander")
        (share / "hmd.yaml").write_text(CONFIG)
        for name in ("gather", "bystander"):
            self.sh(f"install -m 755 {share}/{name} /usr/local/bin/{name}")
        as_nobody = f"setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups"
        self.program = self.begin(f"{as_nobody} {ON_NODE_1} gather {PROGRAM_MIB}")
        self.bystander = self.begin(f"{ON_NODE_1} bystander {BYSTANDER_MIB}")
        # One running program is enough in a slow guest.
        self.sh(f"kill -STOP {self.bystander}")
        unit = (CHECKOUT / "systemd/hmd.service").read_text()
        found = re.search(r"^AmbientCapabilities=(.*)$", unit, re.MULTILINE)
        assert found is not None
        capabilities = ",".join(
            f"+{name.removeprefix('CAP_').lower()}" for name in found[1].split()
        )
        self.start(
            [
                *("/bin/sh", str(PROGRAMS / "control.sh"), capabilities, sys.executable),
                *("-m", "hmd", "run", "--config", str(share / "hmd.yaml")),
            ]
        )
        # Cheaper than hmd status, which takes the CPU that the daemon's start wants.
        while self.machine.run(["test", "-S", "/run/hmd/hmd.sock"]).returncode:
            assert b"\nhmd: " not in self.log, self.log.decode()
            time.sleep(0.5)
        self.wait_status(lambda status: status["processes"])
        self.sh("chmod 666 /run/hmd/hmd.sock")

    def start(self, argv: list[str]) -> None:
        def append_log(data: bytes) -> None:
            self.log.extend(data)

        env = environment()
        self.jobs.append(
            self.machine.start(argv, cwd=CHECKOUT, env=env, stdout=append_log, stderr=append_log)
        )

    def sh(self, command: str) -> str:
        done = self.machine.run(["/bin/sh", "-c", command], timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def begin(self, command: str) -> int:
        """Start a program that goes on; returns its pid once it has touched its memory."""
        name = command.split()[-2]
        self.start(["/bin/sh", "-c", f"exec {command}"])
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            done = self.machine.run(["pgrep", "-n", "-x", name])
            if done.returncode == 0:
                pid = int(done.stdout.split()[0])
                if sum(self.pages(pid).values()) * 4096 > BYSTANDER_MIB * MIB:
                    return pid
            time.sleep(0.5)
        raise AssertionError(f"{name} did not start: {self.log.decode()}")

    def pages(self, pid: int) -> dict[int, int]:
        """Return a process's private pages by node, as the kernel counts them."""
        found: dict[int, int] = {}
        for line in self.sh(f"grep anon= /proc/{pid}/numa_maps").splitlines():
            for node, pages in re.findall(r" N(\d+)=(\d+)", line):
                found[int(node)] = found.get(int(node), 0) + int(pages)
        return found

    def hmd(self, *words: str, uid: int = 0) -> subprocess.CompletedProcess[str]:
        ids = [f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid else []
        argv = ["setpriv", *ids, sys.executable, "-m", "hmd", *words]
        return self.machine.run(argv, cwd=CHECKOUT, env=environment(), timeout=PATIENCE_S)

    def do(self, *words: str, uid: int = 0) -> str:
        done = self.hmd(*words, uid=uid)
        assert done.returncode == 0, done.stdout + done.stderr + self.log.decode()
        return done.stdout

    def status(self) -> dict[str, Any] | None:
        done = self.hmd("status", "--json")
        if done.returncode == Exit.UNREACHABLE:
            return None
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def wait_status(self, true_of: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        deadline_s = time.monotonic() + PATIENCE_S
        status = None
        while time.monotonic() < deadline_s and b"\nhmd: " not in self.log:
            status = self.status()
            if status is not None and true_of(status):
                return status
            time.sleep(0.5)
        raise AssertionError(f"waited without result: {status}; {self.log.decode()}")

    def wait_pages(self, pid: int, true_of: Callable[[dict[int, int]], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not true_of(found := self.pages(pid)):
            assert time.monotonic() < deadline_s, f"{found}; {self.log.decode()}"
            time.sleep(0.5)


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A guest with three nodes, of which the third is hot-plugged by a test."""
    share = tmp_path_factory.mktemp("control")
    preset = with_nodes(load("three-tier"), ["size=640MiB,cpus=0-1", "size=256MiB", "size=256MiB"])
    warm_kernels()
    # Plugged memory can be taken out again only where nothing of the kernel's is in it.
    append = ["memhp_default_state=online_movable"]
    ours, theirs = socket.socketpair()
    with (
        contextlib.closing(Monitor(ours)) as monitor,
        theirs,
        Machine(
            preset,
            share=[share],
            parts=None,
            absent={2},
            monitor=theirs.fileno(),
            append=append,
        ) as machine,
    ):
        made = Guest(machine, monitor, share)
        yield made
        for job in made.jobs:
            job.kill()


def test_admin_commands_ordinary_user_refused(guest: Guest) -> None:
    for words in (["drain", "1"], ["pause"], ["policy", "use", "age"]):
        refused = guest.hmd(*words, uid=NOBODY)
        assert refused.returncode == Exit.NOT_PERMITTED
        assert refused.stderr.startswith("hmd: only root and the daemon's user may")
        assert refused.stderr.count("\n") == 1
    assert b"drain by uid 65534, pid" in guest.log


def test_drain_while_paused_moves_nothing(guest: Guest) -> None:
    guest.do("pause")
    guest.do("drain", "1", "--no-wait")
    waits = guest.hmd("drain", "1")
    assert waits.returncode == Exit.FAILURE
    assert "but hmd is paused" in waits.stderr
    ticks = guest.wait_status(lambda s: s["control"]["paused"])["ticks"]
    guest.wait_status(lambda s: s["ticks"] > ticks + 4)
    assert guest.pages(guest.program)[1] * 4096 > PROGRAM_MIB * MIB * 0.9
    guest.do("undrain", "1")
    guest.do("resume")


def test_drain_node_leaves_no_program_pages(guest: Guest) -> None:
    assert guest.pages(guest.bystander)[1] * 4096 > BYSTANDER_MIB * MIB * 0.9
    printed = guest.do("drain", "1", "--timeout", "4min")
    assert printed.startswith("node 1: no pages of programs are left")
    for pid in (guest.program, guest.bystander):
        assert guest.pages(pid).keys() == {0}
    status = guest.wait_status(lambda s: s["control"]["drains"][0]["settled"])
    assert status["control"]["drains"][0]["left"] == {}
    assert not any(status["stage_failures"].values()), guest.log.decode()
    # What is allocated there from now on does not stay either.
    late = guest.begin(f"{ON_NODE_1} gather {PROGRAM_MIB}")
    guest.wait_pages(late, lambda pages: 1 not in pages)
    guest.sh(f"kill {late}")
    guest.do("undrain", "1")


def test_drain_hugetlbfs_pages_moved_to_node_with_pool(guest: Guest) -> None:
    pool = "/sys/devices/system/node/node{}/hugepages/hugepages-2048kB/nr_hugepages"
    for node in (0, 1):
        guest.sh(f"echo 2 > {pool.format(node)}")
    guest.start(["/bin/sh", "-c", f"exec {ON_NODE_1} python3 -c '{HUGETLB}'"])
    deadline_s = time.monotonic() + PATIENCE_S
    while b"holds " not in guest.log:
        assert time.monotonic() < deadline_s, guest.log.decode()
        time.sleep(0.5)
    pid = int(guest.log.decode().partition("holds ")[2].split()[0])
    mapping = guest.sh(f"grep 'huge.*anon=2' /proc/{pid}/numa_maps")
    assert " N1=2 " in mapping
    guest.do("drain", "1", "--timeout", "4min")
    assert " N0=2 " in guest.sh(f"grep 'huge.*anon=2' /proc/{pid}/numa_maps")
    guest.sh(f"kill {pid}")
    guest.do("undrain", "1")
    for node in (0, 1):
        guest.sh(f"echo 0 > {pool.format(node)}")


def test_pin_ordinary_user_moves_own_process_only(guest: Guest) -> None:
    guest.do("pin", str(guest.program), "--to", "1", uid=NOBODY)
    guest.wait_pages(guest.program, lambda pages: pages.get(1, 0) * 4096 > PROGRAM_MIB * MIB * 0.9)
    refused = guest.hmd("pin", str(guest.bystander), "--to", "1", uid=NOBODY)
    assert refused.returncode == Exit.NOT_PERMITTED
    assert "belongs to uid 0, you are uid 65534, gid 65534: only its owner" in refused.stderr
    busy = guest.hmd("drain", "1")
    assert (busy.returncode, "is pinned to node 1" in busy.stderr) == (Exit.FAILURE, True)
    guest.do("unpin", str(guest.program), uid=NOBODY)


def test_hotplug_node_used_and_unplugged_after_drain(guest: Guest) -> None:
    before = guest.wait_status(lambda s: s["tiers"] == [[0], [1]])
    guest.monitor.plug(2)
    status = guest.wait_status(lambda s: s["tiers"] == [[0], [1], [2]])
    assert status["pid"] == before["pid"]
    assert status["tier_bytes"][2] == 256 * MIB
    guest.do("pin", str(guest.program), "--to", "2", "--once")
    guest.wait_pages(guest.program, lambda pages: pages.get(2, 0) * 4096 > PROGRAM_MIB * MIB * 0.9)
    guest.do("drain", "2", "--timeout", "4min")
    assert 2 not in guest.pages(guest.program)
    guest.monitor.unplug(2)
    status = guest.wait_status(lambda s: s["tiers"] == [[0], [1]])
    assert (status["control"]["drains"][0]["there"], status["pid"]) == (False, before["pid"])
    assert not any(status["stage_failures"].values()), guest.log.decode()
    guest.do("undrain", "2")
    assert guest.sh(f"kill -0 {guest.program} && echo runs") == "runs\n"


def test_log_names_user_of_admin_requests(guest: Guest) -> None:
    log = guest.log.decode()
    assert "Traceback" not in log
    assert re.search(r"admin request: drain by uid 0, pid \d+: draining node 1", log)
    assert "memory nodes have changed: tiers are now 0 | 1 | 2" in log
