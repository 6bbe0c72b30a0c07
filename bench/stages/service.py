# SPDX-License-Identifier: MIT
"""Start, reload, stop and idle cost of the service: prints a table, writes build/service.json.

A daemon on this host (``hmd run`` with page faults as its sampler) follows a process of 256 MiB.
Start is from the daemon's fork to "ready", with its kernels loaded, and the CPU time that it takes;
reload from SIGHUP to "reloaded", stop from SIGTERM to its exit; in seconds, best and median of
several daemons. Idle cost is CPU time over elapsed time.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "service.json"
RUNS = 5
IDLE_S = 10.0
TIMEOUT_S = 60.0
TARGET = "import sys; kept = bytearray(256 << 20); print(flush=True); sys.stdin.read()"


def main() -> int:
    """Measure, print and write the figures."""
    with target() as pid:
        runs = [measure(pid) for _ in range(RUNS)]
    units = {
        "start": "s",
        "start_cpu": "s",
        "reload": "s",
        "stop": "s",
        "idle": "share",
        "resident": "MiB",
    }
    print(f"{'':10}{'best':>10}{'middle':>10}  unit")
    table = {}
    for name, unit in units.items():
        values = [run[name] for run in runs]
        table[name] = {"best": min(values), "middle": statistics.median(values), "unit": unit}
        print(f"{name:10}{min(values):10.3f}{statistics.median(values):10.3f}  {unit}")
    OUTPUT.parent.mkdir(exist_ok=True)
    machine = f"{platform.machine()} {platform.release()}"
    OUTPUT.write_text(json.dumps({"machine": machine, "figures": table}, indent=2) + "\n")
    return 0


@contextmanager
def target() -> Iterator[int]:
    """Run a process with resident memory; yields its pid."""
    words = [sys.executable, "-c", TARGET]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.stdin.close()


def measure(pid: int) -> dict[str, float]:
    """Return the figures of one daemon."""
    with tempfile.TemporaryDirectory() as folder:
        config, log = Path(folder, "hmd.yaml"), Path(folder, "log")
        document = {
            "targets": [{"name": "bench", "pid": pid}],
            "sample": {"sampler": "faults"},
            "observe": {"metrics": "off", "socket": f"{folder}/hmd.sock"},
        }
        config.write_text(json.dumps(document))  # JSON is YAML
        begun_s = time.monotonic()
        words = [sys.executable, "-m", "hmd", "run", "--config", str(config)]
        with log.open("wb") as stream, subprocess.Popen(words, stderr=stream) as daemon:
            start_s = until(lambda: "ready: " in log.read_text(), begun_s)
            own, before_s, idle_s = psutil.Process(daemon.pid), _cpu_s(daemon.pid), time.monotonic()
            time.sleep(IDLE_S)
            idle = (_cpu_s(daemon.pid) - before_s) / (time.monotonic() - idle_s)
            resident = own.memory_info().rss / 2**20
            begun_s = time.monotonic()
            os.kill(daemon.pid, signal.SIGHUP)
            reload_s = until(lambda: "reloaded " in log.read_text(), begun_s)
            begun_s = time.monotonic()
            os.kill(daemon.pid, signal.SIGTERM)
            daemon.wait(TIMEOUT_S)
            stop_s = time.monotonic() - begun_s
    found = {"start": start_s, "start_cpu": before_s, "reload": reload_s, "stop": stop_s}
    return found | {"idle": idle, "resident": resident}


def until(true: Callable[[], bool], begun_s: float) -> float:
    """Return the seconds from ``begun_s`` until ``true`` returned true."""
    while not true():
        if time.monotonic() - begun_s > TIMEOUT_S:
            raise SystemExit("bench/stages/service.py: the daemon did not respond in time")
        time.sleep(0.002)
    return time.monotonic() - begun_s


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    sys.exit(main())
