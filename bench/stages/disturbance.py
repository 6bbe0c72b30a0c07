# SPDX-License-Identifier: MIT
"""What the service costs programs that no move helps, on this host: writes build/disturbance.json.

    python -m bench.stages.disturbance [--pairs 6] [--seconds 2] [--publish]

Programs that map and unmap all the time, copy a stream, fork children, or mostly sleep
(bench/workloads/fault_times.c) run by turns without ``hmd run`` and next to it. They are its target
under its default settings, and it has found by then that nothing changes and nothing pays. They run
by SCHED_FIFO on the last CPU, so that other programs of the host show less; what they do not wait
for either is the CPU time of the daemon, ``daemon_cpu``, a share of one CPU. ``slowdown`` is the
median of pairs of rounds by the clock, without over with, less 1; ``cpu_slowdown`` of rounds by CPU
time; ``fault_p99`` that of the 99th percentile of first touches, with over without. ``noise`` is
the largest deviation of a slowdown from its median: smaller differences show nothing. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.documents.markdown import measured_with
from bench.stages.service import until
from hmd.control.client import ask
from hmd.emulate.assets import compile_static

ROOT: Final = Path(__file__).resolve().parents[2]
OUTPUT: Final = ROOT / "build/disturbance.json"
PUBLISHED: Final = ROOT / "docs/results/disturbance.json"
SOURCE: Final = ROOT / "bench/workloads/fault_times.c"
KINDS: Final = ("maps", "stream", "spawn", "sleep")


@contextmanager
def daemon(folder: Path, program: Path) -> Iterator[Path]:
    """Run a daemon with default settings whose target is a program; yields its socket."""
    config, log, socket = folder / "hmd.yaml", folder / "log", folder / "hmd.sock"
    observe = {"metrics": "off", "socket": str(socket)}
    document = {"targets": [{"name": "bench", "exe": str(program)}], "observe": observe}
    config.write_text(json.dumps(document))  # JSON is YAML
    words = [sys.executable, "-m", "hmd", "run", "--config", str(config)]
    with log.open("wb") as stream, subprocess.Popen(words, stderr=stream) as running:
        try:
            until(lambda: "ready: " in log.read_text(), time.monotonic())
            yield socket
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait()


def measured(program: Path, kind: str, seconds: float) -> list[float]:
    """Return rounds per second of CPU time and of the clock, and percentiles of faults in ns."""
    cpu = max(os.sched_getaffinity(0))
    words = ["chrt", "--fifo", "10", "taskset", "--cpu-list", str(cpu), str(program), kind]
    output = subprocess.run([*words, str(seconds)], check=True, capture_output=True, text=True)
    return [float(word) for word in output.stdout.split()]


def pairs(count: int, seconds: float) -> dict[str, Any]:
    """Run the programs by turns; return the figures."""
    program = compile_static(SOURCE)
    runs: dict[str, list[tuple[list[float], list[float]]]] = {kind: [] for kind in KINDS}
    shares = []
    for _ in range(count):
        alone = {kind: measured(program, kind, seconds) for kind in KINDS}
        with (
            tempfile.TemporaryDirectory() as name,
            daemon(Path(name), program) as socket,
            subprocess.Popen([program, "sleep", str(1000)], stdout=subprocess.DEVNULL) as first,
        ):
            while not ask(socket, "status", timeout_s=30)["budget"]["calm"]:
                time.sleep(1)
            before, begun_s = ask(socket, "status", timeout_s=30), time.monotonic()
            for kind in KINDS:
                runs[kind].append((alone[kind], measured(program, kind, seconds)))
            spent_s = ask(socket, "status", timeout_s=30)["cpu_s"] - before["cpu_s"]
            shares.append(spent_s / (time.monotonic() - begun_s))
            first.kill()
    programs = {
        kind: {
            "slowdown": round(statistics.median(a[1] / b[1] - 1 for a, b in runs[kind]), 4),
            "cpu_slowdown": round(statistics.median(a[0] / b[0] - 1 for a, b in runs[kind]), 4),
            "noise": round(_noise([a[1] / b[1] - 1 for a, b in runs[kind]]), 4),
            "fault_p50": round(statistics.median(b[2] / a[2] for a, b in runs[kind]), 3),
            "fault_p99": round(statistics.median(b[3] / a[3] for a, b in runs[kind]), 3),
            "fault_p999": round(statistics.median(b[4] / a[4] for a, b in runs[kind]), 3),
            "runs": runs[kind],
        }
        for kind in KINDS
    }
    return {"daemon_cpu": round(statistics.median(shares), 4), "programs": programs}


def _noise(values: list[float]) -> float:
    middle = statistics.median(values)
    return max(abs(value - middle) for value in values)


def main() -> int:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description="What the service costs programs.")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--publish", action="store_true")
    args = parser.parse_args()
    found = pairs(args.pairs, args.seconds)
    for kind, row in found["programs"].items():
        figures = "  ".join(f"{name} {value}" for name, value in row.items() if name != "runs")
        print(f"{kind:8} {figures}")
    print(f"daemon: {found['daemon_cpu']:.2%} of a CPU")
    document = {**measured_with(), **found}
    for path in (OUTPUT, *([PUBLISHED] if args.publish else ())):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
