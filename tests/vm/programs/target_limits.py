# SPDX-License-Identifier: MIT
"""Run the daemon in the guest on programs with limits; print what came of each as JSON.

    target_limits.py GATHER FOLDER

The fast node is filled by a program without limits. One that is never slow comes after it, so that
the kernel puts it on the slow node, and two in cgroups of their own are on the fast node, with more
than the template of their target permits. All are stopped: their pages are never sampled. Memory is
of the programs' own, by numa_maps.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hmd.base.errors import UnreachableError
from hmd.control.client import ask
from hmd.linux.memory_policy import count_own_pages

PAGE, MIB = 4096, 1 << 20
PATIENCE_S = 240
CGROUPS = Path("/sys/fs/cgroup")
TEMPLATE_MIB, PROGRAM_MIB, LEFT_MIB = 8, 24, 6
CONFIG = """\
tick: 1s
rescan: 2s
targets:
- {name: kept, exe: kept, never_slow: true}
- {name: pods, cgroup: /pods/*, per_cgroup: true, fast_max: %dMiB}
- {name: night, exe: night, active: '%s'}
- {name: filler, cmdline: FILLER}
sample: {sampler: faults, cpu_quota: 30%%}
migrate: {rate: 100MiB/s}
observe: {metrics: 'off', socket: %s/hmd.sock}
"""
FILLER = """
import mmap, sys, time  # FILLER
memory = mmap.mmap(-1, int(sys.argv[1]) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_HUGEPAGE)  # which fills a node with few faults
for page in range(0, len(memory), 4096):
    memory[page] = 1
print("filled", flush=True)
time.sleep(10000)
"""


def free_mib(node: int) -> int:
    text = Path(f"/sys/devices/system/node/node{node}/meminfo").read_text()
    return int(text.partition("MemFree:")[2].split()[0]) >> 10


def own_mib(pid: int) -> list[float]:
    """Return a program's own memory on each node."""
    found = dict(count_own_pages(pid) or ())
    return [found.get(node, 0) * PAGE / MIB for node in (0, 1)]


class Programs:
    """Programs that have touched their memory and were stopped then."""

    def __init__(self, gather: Path, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []
        for name in ("pod", "night", "kept"):
            (folder / name).write_bytes(gather.read_bytes())
            (folder / name).chmod(0o755)

    def fill(self, mib: int) -> int:
        """Take so much memory of the fast node."""
        return self.run([sys.executable, "-S", "-c", FILLER, str(mib)], 0)

    def start(self, name: str, mib: int, node: int, group: str = "") -> int:
        """Start a program of this name with its memory on a node, in a cgroup."""
        return self.run([str(self.folder / name), str(mib)], node, group)

    def run(self, command: list[str], node: int, group: str = "") -> int:
        def enter() -> None:
            if group:
                (CGROUPS / group).mkdir(parents=True, exist_ok=True)
                (CGROUPS / group / "cgroup.procs").write_text(str(os.getpid()))

        argv = ["numactl", f"--preferred={node}", *command]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, preexec_fn=enter)  # noqa: PLW1509
        self.started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        return process.pid

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


@contextlib.contextmanager
def daemon(folder: Path) -> Iterator[None]:
    path = folder / "hmd.yaml"
    # Hours that begin in two hours and end one later.
    hours = "-".join(time.strftime("%H:00", time.localtime(time.time() + h * 3600)) for h in (2, 3))
    path.write_text(CONFIG % (TEMPLATE_MIB, hours, folder))
    process = subprocess.Popen([sys.executable, "-m", "hmd", "run", "--config", str(path)])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    gather, folder = map(Path, sys.argv[1:])
    folder.mkdir()
    programs = Programs(gather, folder)
    pods = [programs.start("pod", PROGRAM_MIB, 0, f"pods/{name}") for name in "ab"]
    night = programs.start("night", PROGRAM_MIB, 1)
    with daemon(folder):

        def status() -> dict[str, Any] | None:
            try:
                return ask(folder / "hmd.sock", "status", timeout_s=90)
            except UnreachableError:
                return None

        def wait(done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
            end_s = time.monotonic() + PATIENCE_S
            while time.monotonic() < end_s:
                found = status()
                if found is not None and done(found):
                    return found
                time.sleep(0.5)
            raise SystemExit(f"waited without result; {status()}")

        wait(lambda found: found["ticks"] > 0)
        wait(lambda _: all(own_mib(pid)[0] <= TEMPLATE_MIB for pid in pods))
        filler_mib = free_mib(0) - LEFT_MIB
        filler = programs.fill(filler_mib)
        kept = programs.start("kept", PROGRAM_MIB, 0)
        before = own_mib(kept)

        def kept_target(found: dict[str, Any]) -> dict[str, Any]:
            return next(each for each in found["targets"] if each["name"] == "kept")

        found = wait(
            lambda found: (
                kept_target(found)["off_fastest_bytes"] == 0
                and sum(kept_target(found)["resident_bytes"]) > PROGRAM_MIB * MIB
            )
        )
        result = {
            "before": before,
            "kept": own_mib(kept),
            "pods": [own_mib(pid) for pid in pods],
            "night": own_mib(night),
            "filler": [*own_mib(filler), filler_mib],
            "targets": {each["name"]: each for each in found["targets"]},
            "stage_failures": found["stage_failures"],
        }
    programs.end()
    print(json.dumps(result))


main()
