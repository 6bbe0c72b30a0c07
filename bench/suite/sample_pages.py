# SPDX-License-Identifier: MIT
"""In the guest: sample a process by one sampler after another, and write the heat of each page.

    sample_pages.py PID SECONDS FOLDER NAME:PERIOD...

Writes FOLDER/NAME:PERIOD.npz: ``page`` (number), ``heat`` (reported accesses), ``cpu_s`` (CPU time
of this process while sampling), ``kernel_cpu_s`` (that of the kernel's thread), ``elapsed_s`` and
``rows``. Reads once per second, as the daemon does. Prints ``ready`` before and ``sampled`` after
the time of a sampler and waits for a line of input each time; prints ``written`` after the file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hmd.base.units import PAGE_BYTES
from hmd.linux.procfs import identify
from hmd.sample.sampler import Sampler, SampleSettings
from hmd.sample.selection import open_sampler

TICK_S = 1.0
WARM_UP_TICKS = 5


def main(pid: int, seconds: float, folder: Path, samplers: Sequence[str]) -> None:
    """Sample with each sampler and write the files."""
    process = identify(pid)
    if process is None:
        raise SystemExit(f"no process {pid}")
    for each in samplers:
        name, _, period = each.partition(":")
        settings = SampleSettings(name, int(period))
        sampler = open_sampler(settings).sampler
        try:
            sampler.track([process])
            # First calls are slow, and DAMON adapts its regions.
            for _ in range(WARM_UP_TICKS):
                time.sleep(TICK_S)
                sampler.read()
            ask("ready")
            found = sample(sampler, seconds)
            ask("sampled")
        finally:
            sampler.close()
        np.savez(folder / f"{each}.npz", allow_pickle=False, **found)
        say("written")


def ask(word: str) -> None:
    """Print a word, and wait for a line of input."""
    say(word)
    sys.stdin.readline()


def say(word: str) -> None:
    """Print a word."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def sample(sampler: Sampler, seconds: float) -> dict[str, Any]:
    """Return the heat reported per page in ``seconds``, and its cost."""
    sampler.read()
    begun_s, begun_cpu_s, kernel_s = time.monotonic(), time.process_time(), sampler.outside_cpu_s
    pages, heat = [], []
    while time.monotonic() - begun_s < seconds:
        time.sleep(TICK_S)
        batch = sampler.read()
        pages.append(batch.address // np.uint64(PAGE_BYTES))
        heat.append(batch.period)
    cpu_s, kernel_cpu_s = time.process_time() - begun_cpu_s, sampler.outside_cpu_s - kernel_s
    elapsed_s = time.monotonic() - begun_s
    page, row = np.unique(np.concatenate(pages), return_inverse=True)
    return {
        "page": page,
        "heat": np.bincount(row, weights=np.concatenate(heat), minlength=len(page)),
        "cpu_s": cpu_s,
        "kernel_cpu_s": kernel_cpu_s,
        "elapsed_s": elapsed_s,
        "rows": len(row),
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
