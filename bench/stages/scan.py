# SPDX-License-Identifier: MIT
"""Cost of finding the targets' processes: prints a table, writes build/scan.json.

Starts real processes (10,000 ``sleep``, fewer where memory is short) and scans them with selectors
of each kind, as the daemon does every 5 seconds. The first scan evaluates every selector on every
process. Young processes are read at each scan; of settled ones only those of a target, and the
others in turn. Figures are ms of CPU time per scan, for young and settled processes the mean over
one reading period. The last line is psutil.process_iter for name, user ids and start time of the
same processes, in its second pass.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from hmd.linux.processes import ProcessWatcher
from hmd.linux.targets import TargetSpec

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "scan.json"
SLEEP = "/usr/bin/sleep"
BYTES_PER_PROCESS = 256 << 10
RESCAN_S = 5.0
REREAD_S = 30.0
SCANS = int(REREAD_S / RESCAN_S)

TARGETS = {
    "pid": TargetSpec("t", pids=(1,)),
    "exe": TargetSpec("t", exe="redis-server"),
    "cmdline": TargetSpec("t", cmdline="--config .*prod"),
    "user": TargetSpec("t", user=12345),
    "cgroup": TargetSpec("t", cgroup="/system.slice"),
    "all match": TargetSpec("t", exe="sleep"),
}


@contextmanager
def processes(count: int) -> Iterator[int]:
    """Keep ``count`` sleeping processes; yields the number that could be started."""
    pids: list[int] = []
    try:
        for _ in range(count):
            try:
                pids.append(os.posix_spawn(SLEEP, [SLEEP, "600"], {}))
            except BlockingIOError:  # EAGAIN: the limit of processes
                break
        yield len(pids)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def seconds(action: Callable[[], object]) -> float:
    """Return the CPU time of one call, which does not depend on other programs."""
    start = time.process_time()
    action()
    return time.process_time() - start


def measure(spec: TargetSpec) -> dict[str, float]:
    """Return ms per scan at each age of the processes, and the number of selected processes."""
    now_s = 0.0
    watcher = ProcessWatcher([spec], clock=lambda: now_s, reread_s=REREAD_S)
    costs_s: list[float] = []
    for _ in range(1 + 2 * SCANS):
        costs_s.append(seconds(watcher.scan))
        now_s += RESCAN_S
    return {
        "first_ms": costs_s[0] * 1e3,
        "young_ms": sum(costs_s[1 : SCANS + 1]) / SCANS * 1e3,
        "settled_ms": sum(costs_s[SCANS + 1 :]) / SCANS * 1e3,
        "selected": float(len(watcher.scan()["t"])),
    }


def psutil_ms() -> float:
    """Return ms of psutil's second pass over all processes."""
    wanted = ["name", "uids", "create_time"]
    for _ in psutil.process_iter(wanted):
        pass
    return seconds(lambda: [process.info for process in psutil.process_iter(wanted)]) * 1e3


def main() -> int:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=10_000, help="default: 10000")
    wanted = parser.parse_args().processes
    room = psutil.virtual_memory().available // 2 // BYTES_PER_PROCESS
    with processes(min(wanted, room)):
        total = len(psutil.pids())
        rows = {name: measure(spec) for name, spec in TARGETS.items()}
        by_psutil_ms = psutil_ms()
    print(f"{total} processes, scanned every {RESCAN_S:g} s")
    print(
        f"{'selector':<10} {'first ms':>9} {'young ms':>9} {'settled':>9} {'us each':>8} {'CPU':>7}"
    )
    for name, row in rows.items():
        each = row["settled_ms"] * 1e3 / total
        share = row["settled_ms"] / 1e3 / RESCAN_S
        times = f"{row['first_ms']:9.1f} {row['young_ms']:9.1f} {row['settled_ms']:9.1f}"
        print(f"{name:<10} {times} {each:8.2f} {share:7.2%}")
    print(f"psutil     {by_psutil_ms:9.1f} ms per pass, {by_psutil_ms * 1e3 / total:.1f} us each")
    OUTPUT.parent.mkdir(exist_ok=True)
    document = {
        "machine": f"{platform.machine()} {platform.release()}",
        "python": platform.python_version(),
        "processes": total,
        "rescan_s": RESCAN_S,
        "reread_s": REREAD_S,
        "selectors": rows,
        "psutil_ms": by_psutil_ms,
    }
    OUTPUT.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
