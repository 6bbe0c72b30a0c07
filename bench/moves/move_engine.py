# SPDX-License-Identifier: MIT
"""The mover compared with a bare C loop of move_pages(2), in the emulated machine.

    python -m bench.moves.move_engine       takes about two minutes

A program's 128 MiB move between two nodes, as pages of 4 KiB and as huge pages: by the mover with
its defaults, by the loop in several batch sizes, in turns. Then the mover moves them in batches of
one size, while the program accesses them on a schedule and times each access. The guest's clock
counts instructions, one per nanosecond, so that the host's load does not show. Writes the keys
engine_vs_c, call_p99_ms and engine of docs/results/scale.json, and prints them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.moves.measured_moves import MOVED_MIB
from bench.scale.tick_cost import publish
from hmd.base.errors import HmdError
from hmd.emulate.assets import compile_static
from hmd.emulate.preset import load, with_nodes
from hmd.emulate.vm.boot import Machine

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAMS: Final = ("timed_accesses.c", "move_loop.c")
NODES: Final = ("size=1GiB,cpus=0-1", "size=512MiB")
TIMEOUT_S: Final = 1800.0


def measure() -> dict[str, Any]:
    """Run measured_moves in a guest and return what it prints; raises HmdError."""
    programs = [str(compile_static(Path(__file__).with_name(name))) for name in PROGRAMS]
    words = [sys.executable, "-m", "bench.moves.measured_moves", *programs]
    with Machine(with_nodes(load("dram-pm"), NODES), parts=None, counted_clock=True) as machine:
        done = machine.run(words, cwd=ROOT, timeout=TIMEOUT_S)
    if done.returncode:
        raise HmdError(f"the guest's measurement failed: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def figures(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the published keys from what the guest printed.

    The mover's throughput is that of the median move over the median of the fastest loop: the
    lower of both kinds of pages. Its calls' p99 is the higher one.
    """
    movers, latency = [], []
    for page_kib, each in found.items():
        movers += [_mover_row(int(page_kib), name, times) for name, times in each["movers"].items()]
        latency += [{"page_kib": int(page_kib)} | row for row in each["latency"]]
    ours = {row["page_kib"]: row for row in movers if row["mover"] == "hmd"}
    ratio = {
        page_kib: row["mib_per_s"]
        / max(r["mib_per_s"] for r in movers if r["page_kib"] == page_kib and r is not row)
        for page_kib, row in ours.items()
    }
    return {
        "engine_vs_c": round(min(ratio.values()), 3),
        "call_p99_ms": max(row["call_p99_ms"] for row in ours.values()),
        "engine": {
            "command": "python -m bench.moves.move_engine",
            "vs_c": {f"{page_kib} KiB": round(value, 3) for page_kib, value in ratio.items()},
            "movers": movers,
            "latency": latency,
        },
    }


def _mover_row(page_kib: int, name: str, times: Mapping[str, list[float]]) -> dict[str, Any]:
    calls_ms = np.array(times["calls_s"]) * 1e3
    return {
        "page_kib": page_kib,
        "mover": name if name == "hmd" else f"loop of {name} pages",
        "mib_per_s": round(MOVED_MIB / float(np.median(times["seconds"])), 1),
        "call_p99_ms": round(float(np.quantile(calls_ms, 0.99)), 2),
    }


def main() -> int:
    """Measure, print and write."""
    try:
        keys = figures(measure())
    except HmdError as error:
        print(f"move_engine: {error}", file=sys.stderr)
        return int(error.exit_code)
    publish(keys)
    print(json.dumps(keys, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
