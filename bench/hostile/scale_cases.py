# SPDX-License-Identifier: MIT
"""What neighbours of every size cost the daemon: prints a table, writes docs/results/hostile.json.

The real service, with the sampler ``faults``, follows programs that are many or that map much
(neighbours.c). ``python -m bench.hostile.scale_cases [CASE...]`` runs each for a minute, ``--large
[CASE...]`` those that take gigabytes. Ticks, stops and CPU are CPU time of the daemon; its kernels
are compiled before, by another process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.documents.markdown import measured_with
from bench.scale.tick_cost import raised
from hmd.policy.registry import warm_apart

HERE = Path(__file__).parent
RESULTS = Path("docs/results/hostile.json")
SECONDS = 60.0
QUOTA = 0.01
START_S = 300.0
"""Longest time to the first tick: kernels are compiled once."""

ARGUMENTS = 'cmdline: "(java ?)+.*server|.*idle"'


@dataclass(frozen=True, slots=True)
class NeighbourCase:
    """Arguments of neighbours.c by the name of the case, and memory that it has resident.

    ``processes`` is how many of it the daemon must find, by ``selector`` or else by the program's
    path, ``quota`` its share of a CPU. ``limits`` are sysctls that it needs
    (:mod:`bench.scale.tick_cost`).
    """

    name: str
    arguments: tuple[str | int, ...]
    processes: int
    resident_mib: float = 0.0
    selector: str | None = None
    quota: float = QUOTA
    limits: Mapping[str, int] = field(default_factory=dict)


CASES: tuple[NeighbourCase, ...] = (
    NeighbourCase("10,000 idle forks", ("forks", 10_000), 10_000),
    NeighbourCase("300 with 65,000 mappings", ("mappings", 300, 65_000), 300),
    NeighbourCase("300 sharing 65,000 mappings", ("threads", 300, 65_000), 1),
    NeighbourCase("40 with 120 TiB reserved", ("reserve", 40, 120), 40),
    NeighbourCase("30 TiB sparse", ("sparse", 1, 30), 1),
    NeighbourCase(
        "2 MiB of arguments",
        ("arguments", 20, 1900),
        20,
        40.0,
        ARGUMENTS,
    ),
    NeighbourCase("200 on one 1 GiB memfd", ("segment", 200, 1024), 200, 1024.0, quota=0.1),
)

LARGE_CASES: tuple[NeighbourCase, ...] = (
    NeighbourCase("10,000, a hundred of 8 MiB", ("mixed", 10_000, 100), 10_000, 800.0),
    NeighbourCase(
        "100,000 threads",
        ("pool", 10, 10_000),
        10,
        limits={
            "kernel/pid_max": 200_000,
            "kernel/threads-max": 200_000,
            "vm/max_map_count": 200_000,
        },
    ),
    NeighbourCase(
        "1,000,000 mappings",
        ("mappings", 1, 1_000_000),
        1,
        limits={"vm/max_map_count": 1_010_000},
    ),
)
"""What takes gigabytes of the kernel's memory, or limits that only root raises."""


@dataclass(frozen=True, slots=True)
class NeighbourCost:
    """Seconds are CPU time of the daemon; ``cpu_over_quota`` is its share over its quota.

    ``tracked_mib`` are the movable pages of the heat table, ``reported_mib`` what metrics say is
    resident of all targets, ``log`` is what the daemon wrote.
    """

    case: str
    worst_tick_s: float
    cpu_over_quota: float
    peak_rss_mib: float
    stop_s: float
    ticks: int
    failed: int
    processes: int
    tracked_mib: float
    reported_mib: float
    log: str

    def document(self) -> dict[str, Any]:
        """Return the published fields: all but the log."""
        document = asdict(self)
        del document["log"]
        return document


def compiled(folder: Path) -> Path:
    """Return neighbours.c as a program.

    Static: how much of libc.so a process maps depends on what of it is in the page cache.
    """
    program = folder / "neighbours"
    source = str(HERE / "neighbours.c")
    subprocess.run(["cc", "-O2", "-static", "-o", str(program), source], check=True)
    return program


@contextmanager
def neighbours(program: Path, case: NeighbourCase) -> Iterator[None]:
    """Run a case's processes."""
    words = [str(program), *map(str, case.arguments)]
    with (
        raised(case.limits),
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{case.name}: the neighbours did not start")
        try:
            yield
        finally:
            process.kill()


def measure(
    cases: Sequence[NeighbourCase], folder: Path, program: Path, seconds: float
) -> list[NeighbourCost]:
    """Run a service next to each case's processes, all at once, and return what each cost.

    A service finds the processes of its case by their path, which is a copy of ``program``.
    """
    folders = [folder / f"{number}" for number in range(len(cases))]
    with ExitStack() as running:
        for case, own in zip(cases, folders, strict=True):
            own.mkdir()
            running.enter_context(neighbours(Path(shutil.copy(program, own)), case))
        daemons = [
            running.enter_context(_service(case, own, own / program.name))
            for case, own in zip(cases, folders, strict=True)
        ]
        for daemon, own in zip(daemons, folders, strict=True):
            _wait_until_ready(daemon, own / "log")
        time.sleep(seconds)
        for daemon in daemons:
            daemon.send_signal(signal.SIGTERM)
        for daemon in daemons:
            daemon.wait(60)
    return [_cost(case, own) for case, own in zip(cases, folders, strict=True)]


@contextmanager
def _service(case: NeighbourCase, folder: Path, program: Path) -> Iterator[subprocess.Popen[bytes]]:
    config, socket = folder / "hmd.yaml", folder / "hmd.sock"
    selector = case.selector or f"exe: {program}"
    config.write_text(
        f"targets:\n- {{name: neighbours, {selector}}}\n"
        f"sample: {{sampler: faults, cpu_quota: {case.quota:.0%}}}\n"
        f"observe: {{metrics: 'off', socket: {socket}}}\n"
    )
    words = [sys.executable, "-m", "bench.hostile.confined_daemon", str(config), _result(folder)]
    with (folder / "log").open("wb") as log, subprocess.Popen(words, stderr=log) as daemon:
        try:
            yield daemon
        finally:
            daemon.kill()


def _result(folder: Path) -> str:
    return str(folder / "result.json")


def _cost(case: NeighbourCase, folder: Path) -> NeighbourCost:
    found = json.loads(Path(_result(folder)).read_text())
    return NeighbourCost(
        case=case.name,
        worst_tick_s=found["worst_tick_s"],
        cpu_over_quota=found["cpu_s"] / found["elapsed_s"] / case.quota,
        peak_rss_mib=found["peak_rss_mib"],
        stop_s=found["stop_cpu_s"],
        ticks=found["ticks"],
        failed=found["failed"],
        processes=found["processes"],
        tracked_mib=found["pages"] * 4096 / 2**20,
        reported_mib=found["reported_bytes"] / 2**20,
        log=(folder / "log").read_text(),
    )


def _wait_until_ready(daemon: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while b"ready: " not in log.read_bytes():
        if daemon.poll() is not None:
            raise RuntimeError(f"the daemon has ended: {log.read_text()}")
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the daemon is not ready after {START_S:g} s")
        time.sleep(0.05)


def main() -> None:
    """Measure the cases, all unless some are named by a part of their name."""
    names, key, cases = sys.argv[1:], "scale", CASES
    if names[:1] == ["--large"]:
        names, key, cases = names[1:], "large", LARGE_CASES
    chosen = [c for c in cases if not names or any(name in c.name for name in names)]
    seconds = float(os.environ.get("SECONDS_EACH", SECONDS))
    rows = []
    warm_apart({})
    print(f"{'case':30} {'tick s':>8} {'CPU/quota':>9} {'RSS MiB':>8} {'stop s':>7} {'ticks':>6}")
    for case in chosen:
        with TemporaryDirectory() as folder:
            (cost,) = measure([case], Path(folder), compiled(Path(folder)), seconds)
        rows.append(cost)
        print(
            f"{cost.case:30} {cost.worst_tick_s:8.3f} {cost.cpu_over_quota:9.2f} "
            f"{cost.peak_rss_mib:8.0f} {cost.stop_s:7.3f} {cost.ticks:6} {cost.failed} failed, "
            f"{cost.processes} processes, {cost.tracked_mib:.0f} MiB",
            flush=True,
        )
    if len(rows) == len(cases):
        found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        found |= {key: [row.document() for row in rows], **measured_with()}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
