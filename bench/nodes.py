# SPDX-License-Identifier: MIT
"""Programs with threads on two sockets: hmd next to what numactl and NUMA balancing do.

    python -m bench.nodes [PROGRAM,...] [--systems NAME,...] [--runs 1] [--times 8]
                          [--publish]

In the emulated machine two-socket, four threads on two CPUs of each socket, after an initialisation
by one thread, so that first touch puts all pages on its node; threads of ``local`` initialise what
they use, so that first touch is right. Systems: ``numactl --localalloc``;
``--interleave`` over the nodes of DRAM (over all, a half would be on Optane); NUMA balancing in
mode 1, with the scan periods of bench/compare/systems.py; hmd as installed, with the tick of that
comparison. All in one boot a program; the first run with hmd, a short one which sets its sampling
period, is not counted. ``seconds`` are modelled, initialisation included. ``--times`` lengthens
programs: systems need some ticks, or scans, before they know which CPUs use a page.

``--publish`` writes docs/results/nodes.json; rows of programs that are not run stay.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, Final

from bench.compare.filled_node import FilledNode
from bench.compare.guest_services import running_daemon
from bench.compare.systems import BALANCING_SCALED
from bench.compare.testbed import DILATION, GROUP, Start, Testbed
from bench.documents.markdown import measured_with, table
from hmd.base.errors import HmdError
from hmd.emulate.assets import compile_static
from hmd.emulate.demo.measure import FAST_NODE, open_fast_node
from hmd.emulate.preset import load, with_cpus
from hmd.emulate.vm.boot import Machine
from hmd.emulate.vm.guest import BASE_ENVIRONMENT, Command
from hmd.emulate.vm.images import warm_kernels
from hmd.policy import registry

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs/results/nodes.json"
PRESET: Final = "two-socket"
CPUS: Final = range(1, 5)
"""CPUs 0 to 2 are on one socket, 3 to 5 on the other; services run on CPU 0."""

OPTANE: Final = 2
"""Node of the daemon's memory, so that it takes no bandwidth of the program's DRAM."""
STEP_NS: Final = 20_000.0
"""As in the comparison, for longer runs: by so much the CPUs' clocks may differ."""

PROGRAMS: Final[Mapping[str, tuple[str | int, ...]]] = {
    "partitions": ("parts", "partitions", "4", 1_200_000, "4"),
    "local": ("parts", "local", "4", 1_200_000, "4"),
    "chase": ("parts", "partitions", "4", 1_500_000, "1"),
    "handover": ("parts", "handover", "4", 1_200_000, "4"),
    "table": ("parts", "table", "4", 800_000, "4"),
    "mixed": ("parts", "mixed", "4", 500_000, "4"),
    "stencil": ("stencil", "1024", 30),
}
"""Programs of bench/workloads, and their arguments; the numbers are steps of a short run."""

FOLDER: Final = Path(__file__).with_name("workloads")
OPTIONS: Final = ("-fopenmp", f"-I{FOLDER.with_name('suite') / 'programs'}")
"""Of the compiler."""

HMD: Final = "hmd"
BALANCING: Final = "numa_balancing=1"
SYSTEMS: Final[Mapping[str, Start]] = {
    "localalloc": Start(),
    "interleave": Start("interleave", (0, 1)),
    BALANCING: Start(),
    HMD: Start(),
}


def main() -> int:
    """Run programs under systems; print a table, and publish rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("programs", nargs="?", default=",".join(PROGRAMS))
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--times", type=int, default=8)
    parser.add_argument("--publish", action="store_true")
    args = parser.parse_args()
    warm_kernels()
    rows: list[dict[str, Any]] = []
    try:
        for program in args.programs.split(","):
            rows += measure(program, args.systems.split(","), args.runs, args.times)
            if args.publish:
                publish(rows, f"python -m bench.nodes --times {args.times} --publish")
    except HmdError as error:
        print(f"nodes: {error}", file=sys.stderr)
        return int(error.exit_code)
    print(_table(rows))
    return 0


def measure(program: str, systems: list[str], runs: int, times: int) -> list[dict[str, Any]]:
    """Return the rows of a program: the median run of each system, and all runs."""
    seconds: dict[str, list[float]] = {system: [] for system in systems}
    with booted() as stage:
        for _ in range(runs):
            for system in systems:
                if system != HMD:
                    seconds[system].append(_seconds(stage, program, system, times))
        if HMD in systems:
            with running_daemon(stage, registry.DEFAULT, node=OPTANE) as daemon:
                for run in range(runs + 1):
                    with daemon.moving():
                        took = _seconds(stage, program, HMD, times if run else 1)
                        print(f"hmd: {daemon.progress()}", flush=True)
                    seconds[HMD] += [took] if run else []  # the first sets its sampling period
    return [
        {"program": program, "system": system, "seconds": median(each), "runs": each}
        for system, each in seconds.items()
    ]


@contextmanager
def booted() -> Iterator[Testbed]:
    """Boot the machine; CPUs of programs run nothing else, and each has a cache of its own."""
    preset = with_cpus(load(PRESET), 6)
    cache = preset.cache.model_copy(update={"count": preset.cpus})
    preset = preset.model_copy(update={"cache": cache})
    folder = ROOT / "build/nodes/share"
    folder.mkdir(parents=True, exist_ok=True)
    listed = ",".join(map(str, CPUS))
    with (
        Machine(
            preset,
            share=[folder],
            dilation=DILATION,
            append=(f"isolcpus={listed}", f"rcu_nocbs={listed}"),
            step_ns=STEP_NS,
        ) as machine,
        open_fast_node(machine, FAST_NODE, FilledNode) as node,
    ):
        stage = Testbed(machine, preset, node, folder, CPUS)
        stage.sh(f"mkdir -p /sys/fs/cgroup{GROUP}")
        stage.set({"/sys/kernel/mm/transparent_hugepage/enabled": "never"})
        stage.move_kernel_threads()
        yield stage


def _seconds(stage: Testbed, program: str, system: str, times: int) -> float:
    """Return the modelled seconds of a run, as those of the comparison's trials."""
    source, *words = (
        str(word * times) if isinstance(word, int) else word for word in PROGRAMS[program]
    )
    places = ",".join(f"{{{cpu}}}" for cpu in CPUS)
    command = Command(
        argv=(str(compile_static(FOLDER / f"{source}.c", OPTIONS)), *words),
        env={
            **BASE_ENVIRONMENT,
            "OMP_NUM_THREADS": str(len(CPUS)),
            "OMP_PLACES": places,
            "OMP_PROC_BIND": "close",
            "GOMP_SPINCOUNT": "0",
        },
        expect=f"{source} verified",
        threads=len(CPUS),
    )
    knobs = {**BALANCING_SCALED, "/proc/sys/kernel/numa_balancing": 1}
    with stage.having(knobs) if system == BALANCING else nullcontext(), stage.modelled():
        moved, before = stage.vmstat(), stage.meter.read()
        stage.execute(command, SYSTEMS[system])
        took = stage.meter.read().since(before)
    moves = stage.vmstat()["pgmigrate_success"] - moved["pgmigrate_success"]
    seconds = took.busy_s + took.asleep_s
    print(
        f"{program} {system}: {seconds:.4f} s, {took.misses} misses by node, {moves} moves",
        flush=True,
    )
    return seconds


def publish(rows: list[dict[str, Any]], command: str, part: str = "") -> None:
    """Write rows to docs/results/nodes.json, or to a part of it; those of other programs stay."""
    document = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    place = document.setdefault(part, {}) if part else document
    new = {row["program"] for row in rows}
    kept = [row for row in place.get("rows", []) if row["program"] not in new]
    every = sorted(kept + rows, key=lambda row: list(PROGRAMS).index(row["program"]))
    place |= {**measured_with(), "command": command, "preset": PRESET}
    place |= {**summary(every), "rows": every}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


def _over_best(rows: list[dict[str, Any]], column: str = "seconds") -> dict[str, float]:
    """Return by program the time of the best other system over that of hmd."""
    found = {}
    for program in dict.fromkeys(row["program"] for row in rows):
        own = {row["system"]: row[column] for row in rows if row["program"] == program}
        mine = own.pop(HMD, None)
        if mine and own:
            found[program] = round(min(own.values()) / mine, 3)
    return found


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return by program the best other system's time over hmd's, their mean and the least."""
    over = _over_best(rows)
    mean = round(geometric_mean(over.values()), 3) if over else None
    found = {"over_best": over, "mean": mean, "least": min(over.values(), default=None)}
    if all("last_tick_s" in row for row in rows):
        found["last_tick"] = _over_best(rows, "last_tick_s")
    return found


def _table(rows: list[dict[str, Any]]) -> str:
    over, lines = _over_best(rows), []
    systems = list(dict.fromkeys(row["system"] for row in rows))
    for program in dict.fromkeys(row["program"] for row in rows):
        own = {row["system"]: row["seconds"] for row in rows if row["program"] == program}
        lines.append([program, *(f"{own[each]:.4f}" for each in systems), str(over.get(program))])
    return table(["program", *systems, "hmd over best"], lines, text=1)


if __name__ == "__main__":
    sys.exit(main())
