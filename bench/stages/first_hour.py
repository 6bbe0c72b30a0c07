# SPDX-License-Identifier: MIT
"""The first minutes of a service, before and after: writes build/first_hour.json.

    python -m bench.stages.first_hour [--before TREE] [--publish]

``first_target``: a daemon whose cache of kernels is empty finds its first process. How long until
it is followed; the longest time without a tick meanwhile; CPU seconds of the daemon and of what
compiles for it; the peak resident memory of the daemon, and of all its processes together.
``placement``: a daemon finds a process with 1 GiB in base pages. How much of that its first status
and a later one show, in MiB, and when all was found page by page, under several quotas. TREE is a
checkout of another commit, with its native modules, that is measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from bench.documents.markdown import measured_with
from hmd.base.errors import HmdError
from hmd.base.units import MIB
from hmd.control.client import ask

ROOT: Final = Path(__file__).resolve().parents[2]
QUOTAS: Final = ("1%", "2%", None)
PATIENCE_S: Final = 400.0
ALLOCATE = """\
import mmap, sys, time
memory = mmap.mmap(-1, int(sys.argv[1]) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, len(memory), 4096):
    memory[at] = 1
print("up", flush=True)
while True:
    for at in range(0, min(len(memory), 64 << 20), 4096):
        memory[at] = 1
    time.sleep(0.2)
"""


@contextmanager
def program(name: Path, mib: int) -> Iterator[int]:
    """Run a program of its own name that keeps this much memory; yields its pid."""
    shutil.copy(Path(sys.executable).resolve(), name)
    words = [str(name), "-S", "-c", ALLOCATE, str(mib)]
    environment = {**os.environ, "PYTHONHOME": "/usr"}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()
        try:
            yield running.pid
        finally:
            running.kill()


@contextmanager
def daemon(tree: Path, folder: Path, exe: str, extra: str, cache: Path | None) -> Iterator[int]:
    """Run a tree's daemon with the status socket folder/s; yields its pid."""
    config = folder / "hmd.yaml"
    config.write_text(
        f"targets: [{{name: t, exe: {exe}}}]\nrescan: 1s\ntick_most: 1s\n{extra}"
        f"observe: {{metrics: off, socket: {folder}/s}}\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tree), "OPENBLAS_NUM_THREADS": "1"}
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    words = [sys.executable, "-m", "hmd", "run", "--config", str(config)]
    with (folder / "log").open("wb") as log:
        running = subprocess.Popen(words, env=environment, cwd=folder, stderr=log)
        try:
            while status(folder) is None and running.poll() is None:
                time.sleep(0.1)
            yield running.pid
        finally:
            running.terminate()
            running.wait()


def status(folder: Path) -> dict[str, Any] | None:
    """Return the daemon's status, None while it does not answer."""
    try:
        found: dict[str, Any] = ask(folder / "s", "status")
    except HmdError:
        return None
    return found


def first_target(tree: Path) -> dict[str, Any]:
    """Return what the first target of a daemon with an empty cache of kernels costs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with daemon(tree, folder, "first-target", "", folder / "cache") as pid:
            time.sleep(3)
            watched = psutil.Process(pid)
            with program(folder / "first-target", 64):
                row = _watch(watched, folder)
            row["daemon_peak_mib"] = _peak_mib(pid)
            return row


def _watch(watched: psutil.Process, folder: Path) -> dict[str, Any]:
    begun_s = ticked_s = time.monotonic()
    ticks, gap_s, peak, children_s, after_s = -1, 0.0, 0, 0.0, 0.0
    while time.monotonic() < begun_s + PATIENCE_S:
        now, now_s = status(folder), time.monotonic()
        if now is not None and now["ticks"] != ticks:
            ticks, ticked_s = now["ticks"], now_s
        gap_s = max(gap_s, now_s - ticked_s)
        family = [watched, *watched.children(recursive=True)]
        try:
            peak = max(peak, sum(each.memory_info().rss for each in family))
            times = [each.cpu_times() for each in family[1:]]
        except psutil.NoSuchProcess:
            times = []
        children_s = max(children_s, sum(sum(each[:4]) for each in times))
        if now is not None and now["targets"][0]["process_count"]:
            after_s = after_s or now_s - begun_s
            if now_s > begun_s + after_s + 5:
                break
        time.sleep(0.1)
    return {
        "followed_after_s": round(after_s, 1),
        "longest_without_tick_s": round(gap_s, 1),
        "daemon_cpu_s": round(sum(watched.cpu_times()[:2]), 1),
        "compiler_cpu_s": round(children_s, 1),
        "all_peak_mib": peak // MIB,
    }


def _peak_mib(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) >> 10


def placement(tree: Path, quota: str | None, seconds: int = 40) -> dict[str, Any]:
    """Return how much of 1 GiB the status shows, and when all was found."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        limit = f", cpu_quota: {quota}" if quota else ""
        extra = f"sample: {{sampler: faults{limit}}}\n"
        with program(folder / "placed", 1024), daemon(tree, folder, "placed", extra, None):
            rows = list(_shown(folder, seconds))
    total = rows[-1][1]
    found = next((at_s for at_s, _, known in rows if known > 0.99 * total), None)
    later = next((row for row in rows if row[0] >= 5), rows[-1])
    return {
        "quota": quota or "by gain",
        "first_shown_mib": rows[0][1],
        "shown_after_5_s_mib": later[1],
        "found_after_5_s_mib": later[2],
        "all_found_after_s": found,
    }


def _shown(folder: Path, seconds: int) -> Iterator[tuple[float, int, int]]:
    """Yield seconds since the first status with the process, MiB shown, and MiB found."""
    begun_s, started_s = None, time.monotonic()
    while time.monotonic() < (begun_s + seconds if begun_s else started_s + PATIENCE_S):
        now = status(folder)
        if now is not None and now["processes"]:
            begun_s = begun_s or time.monotonic()
            row = now["processes"][0]
            shown = sum(row["resident_bytes"]) // MIB
            known = round(shown * row.get("known", 1.0))
            yield round(time.monotonic() - begun_s, 1), shown, known
        time.sleep(0.2)


def main() -> None:
    """Measure this tree, and another one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", type=Path, metavar="TREE")
    parser.add_argument("--publish", action="store_true", help="write docs/results, too")
    parser.add_argument("--only", choices=("first_target", "placement"))
    asked = parser.parse_args()
    trees = {"after": ROOT, **({"before": asked.before.resolve()} if asked.before else {})}
    rows: dict[str, Any] = {}
    for label, tree in trees.items():
        rows[label] = {"placement": [placement(tree, quota) for quota in QUOTAS]}
        if asked.only != "placement":
            rows[label]["first_target"] = first_target(tree)
        print(label, json.dumps(rows[label]), flush=True)
    document = {**measured_with(), **rows}
    outputs = [ROOT / "build/first_hour.json"]
    outputs += [ROOT / "docs/results/first_hour.json"] if asked.publish else []
    for output in outputs:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(f"{json.dumps(document, indent=1)}\n")


if __name__ == "__main__":
    main()
