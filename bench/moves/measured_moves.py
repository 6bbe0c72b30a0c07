# SPDX-License-Identifier: MIT
"""Moves of a program's pages, timed: by the mover, by a bare C loop, and as the program sees them.

    python -m bench.moves.measured_moves TIMED_ACCESSES MOVE_LOOP

Runs in the guest, as root, on a machine of two nodes and two CPUs; the arguments are the compiled
programs of this folder. Prints one line of JSON: by kind of page, the seconds and calls of each
mover, and the program's latency by batch size.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from hmd.base.units import HUGE_PAGE_PAGES, PAGE_BYTES
from hmd.linux import page_calls
from hmd.linux.procfs import ProcessId, identify
from hmd.migrate import Mover, MoverSettings
from hmd.policy.plan import Plan

MOVED_MIB: Final = 128
ROUNDS: Final = 2
"""Moves of all pages there and back by each mover, in turns: what disturbs one disturbs all."""

LOOP_PAGES: Final = (512, 1024, 2048, 5120, 16384)
BATCH_PAGES: Final = (64, 256, 512, 1024, 2048, 5120)
INTERVAL_NS: Final = 100_000
LATENCY_S: Final = 0.5
"""Seconds of moves during which the program's accesses are timed, per batch size."""

MOVER_CPU, PROGRAM_CPU = 0, 1
LONGEST_S: Final = 3600.0


@dataclass(slots=True)
class MoveTimes:
    """Seconds of each move of all pages, and of each call."""

    seconds: list[float] = field(default_factory=list)
    calls_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TimedProgram:
    """The running timed_accesses."""

    process: ProcessId
    start: int
    page_bytes: int
    running: subprocess.Popen[str]

    def plan(self, node: int) -> Plan:
        """Return the plan that moves all its pages to a node."""
        address = np.arange(
            self.start, self.start + (MOVED_MIB << 20), self.page_bytes, dtype=np.uint64
        )
        count = len(address)
        return Plan(
            processes=(self.process,),
            process=np.zeros(count, np.int32),
            address=address,
            pages=np.full(count, self.page_bytes // PAGE_BYTES, np.uint32),
            from_node=np.full(count, 1 - node, np.int16),
            to_node=np.full(count, node, np.int16),
            heat=np.zeros(count, np.float32),
            phase=np.zeros(count, np.int32),
        )

    def say(self) -> None:
        """Begin or end a measurement."""
        assert self.running.stdin is not None
        self.running.stdin.write("\n")
        self.running.stdin.flush()

    def answer(self) -> dict[str, int]:
        """Return what it prints next."""
        assert self.running.stdout is not None
        found: dict[str, int] = json.loads(self.running.stdout.readline())
        return found


class TimedCalls:
    """The calls of ``hmd.linux.page_calls``; keeps how long each move takes."""

    query_nodes = staticmethod(page_calls.query_nodes)

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def move_pages(self, *arguments: Any) -> Any:
        """Move pages, timed."""
        begun_s = time.perf_counter()
        answer = page_calls.move_pages(*arguments)
        self.seconds.append(time.perf_counter() - begun_s)
        return answer


@contextmanager
def timed_program(path: str, page_bytes: int) -> Iterator[TimedProgram]:
    """Run timed_accesses on its CPU."""
    words = [
        path,
        str(MOVED_MIB),
        "small" if page_bytes == PAGE_BYTES else "huge",
        str(INTERVAL_NS),
    ]
    with subprocess.Popen(
        ["taskset", "-c", str(PROGRAM_CPU), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        ready = json.loads(running.stdout.readline())
        process = identify(ready["pid"])
        assert process is not None
        yield TimedProgram(process, ready["start"], page_bytes, running)
        running.kill()


def throughputs(program: TimedProgram, loop: str) -> dict[str, MoveTimes]:
    """Move all pages with the mover, and with loops of several batch sizes, in turns."""
    calls = TimedCalls()
    mover = Mover(MoverSettings(rate_bytes_per_s=None), calls=calls)
    found = {name: MoveTimes() for name in ("hmd", *map(str, LOOP_PAGES))}
    for _ in range(ROUNDS):
        for name, times in found.items():
            for node in (1, 0):
                if name == "hmd":
                    plan = program.plan(node)
                    begun_s = time.perf_counter()
                    outcome = mover.apply(plan)
                    times.seconds.append(time.perf_counter() - begun_s)
                    assert outcome.moved_bytes == MOVED_MIB << 20, outcome.pages
                else:
                    _run_loop(program, loop, int(name), node, times)
    found["hmd"].calls_s = calls.seconds
    return found


def _run_loop(program: TimedProgram, loop: str, pages: int, node: int, times: MoveTimes) -> None:
    entries = max(pages * PAGE_BYTES // program.page_bytes, 1)
    numbers = (
        program.process.pid,
        program.start,
        MOVED_MIB << 20,
        program.page_bytes,
        entries,
        node,
    )
    done = subprocess.run([loop, *map(str, numbers)], check=True, stdout=subprocess.PIPE, text=True)
    result = json.loads(done.stdout)
    assert not result["failed"]
    times.seconds.append(result["seconds"])
    times.calls_s += [ns / 1e9 for ns in result["calls_ns"]]


def latency(program: TimedProgram, batch_pages: int) -> dict[str, float]:
    """Move pages to and fro in batches of one size while the program times its accesses.

    A size of 0 moves nothing.
    """
    size = max(batch_pages, program.page_bytes // PAGE_BYTES)
    settings = MoverSettings(
        rate_bytes_per_s=None,
        min_batch_pages=size,
        max_batch_pages=size,
        call_target_s=LONGEST_S,
    )
    mover, node, moved = Mover(settings), 1, 0
    program.say()
    begun_s = time.perf_counter()
    while time.perf_counter() - begun_s < LATENCY_S:
        if batch_pages:
            moved += mover.apply(program.plan(node)).moved_bytes
            node = 1 - node
        else:
            time.sleep(0.1)
    seconds = time.perf_counter() - begun_s
    program.say()
    found = program.answer()
    if not node:
        mover.apply(program.plan(0))
    return {
        "batch_pages": batch_pages,
        "mib_per_s": round(moved / seconds / 2**20, 1),
        **{f"{name}_ms": round(found[f"{name}_ns"] / 1e6, 3) for name in ("p50", "p99", "most")},
    }


def main(timed: str, loop: str) -> int:
    """Measure both kinds of pages; print the result."""
    os.sched_setaffinity(0, {MOVER_CPU})
    result = {}
    for page_bytes in (PAGE_BYTES, HUGE_PAGE_PAGES * PAGE_BYTES):
        with timed_program(timed, page_bytes) as program:
            times = throughputs(program, loop)
            sizes = [size for size in BATCH_PAGES if size * PAGE_BYTES >= page_bytes]
            result[str(page_bytes >> 10)] = {
                "movers": {
                    name: {"seconds": each.seconds, "calls_s": each.calls_s}
                    for name, each in times.items()
                },
                "latency": [latency(program, size) for size in (0, *sizes)],
            }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
