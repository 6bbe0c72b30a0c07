# SPDX-License-Identifier: MIT
"""Cost of a tick over the memory that is tracked: a table, build/scale.json, build/scale.png.

100,000 samples per tick, whatever the size of memory, of which a tenth is fast; the tick is the
daemon's, over simulated address spaces. Figures are CPU time of one core, the mean over the last
ticks, and the peak resident set of a process of its own. ``python -m bench.scale.tick_cost 4:1
1024:1000`` runs the cases of some sizes (GiB:processes) alone, ``4:1:zipf:histogram:4`` one case of
them. With ``--runs`` each case is run so often, and the row is that of the run of median cost.

The plot of the cost of a tick: CPU time and memory over the memory that is tracked.

Limits of the kernel that a bench raises while it runs, as root: sysctls below /proc/sys.

docs/results/scale.json: what several benches find about large machines, each its own keys.

The rows of ``bench.scale.tick_cost`` and their ratios, the use of the CPU quota by
``bench.scale.quota``, and the mover's figures by ``bench.moves.move_engine``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bench.documents.markdown import measured_with
from bench.scale.plan_memory import peak_mib
from bench.scale.scaled_memory import FAST, PATTERNS, ScaledMemory, ScaledSamples
from bench.synthetic.modelled_ticks import modelled_ticks
from hmd.base.units import GIB, HUGE_PAGE_BYTES, HUGE_PAGE_PAGES
from hmd.heat.table import HeatTable
from hmd.linux.own_process import keep_freed_memory
from hmd.metrics.status import Stage, Work
from hmd.migrate import MoverSettings
from hmd.policy import registry
from hmd.residency.memory_reader import ModelledMemory
from hmd.residency.sweep import ResidencySweep, SweepSettings
from hmd.tick.stage_runner import StageTimer

PAGES: Final = {4: "4 KiB", 2048: "2 MiB"}
"""Sizes of pages in KiB, and their labels."""

CASE: Final = ("tracked_gib", "processes", "page_kib", "pattern", "policy")
"""The fields of a row that name its case."""

_RATIOS: Final = {"ratio_1tib_over_4gib": (1024, 4), "ratio_4tib_over_1tib": (4096, 1024)}
SAMPLES = 100_000
WARM_TICKS, TICKS = 12, 8
BUDGET_BYTES = 256 << 20

SIZES = ("4:1", "64:1", "1024:1", "4096:1", "1024:1000")
"""GiB and processes of the cases."""

SYSCTL: Final = Path("/proc/sys")


def draw(document: Mapping[str, Any], path: Path, policy: str) -> None:
    """Write a PNG file with the rows of a policy; both scales of each panel are logarithmic.

    Lines are of one process. Other numbers of processes have a mark each.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in document["rows"] if row["policy"] == policy]
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2))
    for (page_kib, label), style in zip(PAGES.items(), ("-", ":"), strict=True):
        for pattern, colour in zip(PATTERNS, ("tab:blue", "tab:orange", "tab:green"), strict=True):
            chosen = sorted(
                (row for row in rows if (row["page_kib"], row["pattern"]) == (page_kib, pattern)),
                key=lambda row: int(row["tracked_gib"]),
            )
            for axis, value in zip(axes, (cost_ms, resident_mib), strict=True):
                one = [row for row in chosen if row["processes"] == 1]
                axis.plot(
                    [row["tracked_gib"] for row in one],
                    [value(row) for row in one],
                    style,
                    color=colour,
                    marker="o",
                    markersize=3,
                    label=f"{pattern}, {label}",
                )
                for row in chosen:
                    if row["processes"] > 1:
                        axis.plot(row["tracked_gib"], value(row), "x", color=colour)
    axes[0].set_ylabel("CPU time of heat and decisions per tick, ms")
    axes[1].set_ylabel("peak resident set, MiB")
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("tracked memory, GiB (x: in 1,000 processes)")
        axis.grid(visible=True, which="both", linewidth=0.3)
    axes[0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def cost_ms(row: Mapping[str, Any]) -> float:
    """Return the CPU time of heat and decisions."""
    return float(row["heat_ms"] + row["decide_ms"])


def resident_mib(row: Mapping[str, Any]) -> float:
    """Return the peak resident set."""
    return float(row["rss_mib"])


FOLDER: Final = Path(__file__).resolve().parents[2] / "docs/results"
RESULTS: Final = FOLDER / "scale.json"
QUOTA: Final = FOLDER / "quota.json"


def merged(
    known: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the rows of both, by case; those that were found replace those that were known."""
    rows = {_case(row): dict(row) for row in (*known, *found)}
    places = {name: rank for rank, name in enumerate((*PATTERNS, *_policies()))}
    return sorted(
        rows.values(), key=lambda row: tuple(places.get(row[name], row[name]) for name in CASE)
    )


def ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the costs of heat and decisions at one size over those at another, where both ran."""
    cost = {
        row["tracked_gib"]: cost_ms(row)
        for row in rows
        if _case(row)[1:] == (1, 4, PATTERNS[0], registry.DEFAULT)
    }
    return {
        name: round(cost[large] / cost[small], 2)
        for name, (large, small) in _RATIOS.items()
        if large in cost and small in cost
    }


def default_cost(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the cost of the default policy with 4 KiB pages and Zipf's law, by size.

    ``sum_ms`` is of heat and decisions, ``sweep_ms`` what of it is the sweep. Sizes are written as
    ``1024:1``: GiB and processes.
    """
    return {
        f"{row['tracked_gib']}:{row['processes']}": {
            "sum_ms": round(cost_ms(row), 1),
            "sweep_ms": row["sweep_ms"],
            "rss_mib": row["rss_mib"],
        }
        for row in rows
        if _case(row)[2:] == (4, PATTERNS[0], registry.DEFAULT)
    }


def quota_rows(path: Path = QUOTA) -> list[dict[str, Any]]:
    """Return what each case of the quota asked for and used, as shares of one CPU."""
    rows = json.loads(path.read_text())["quota"]
    return [{name: row[name] for name in ("case", "asked", "used")} for row in rows]


def publish(keys: Mapping[str, Any], path: Path = RESULTS) -> dict[str, Any]:
    """Write keys into the file, which keeps its others; returns all of them."""
    document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    document |= keys
    path.write_text(json.dumps(document, indent=1) + "\n")
    return document


def _case(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in CASE)


def _policies() -> list[str]:
    """Return the names of policies, the default first."""
    others = [name for name in registry.names() if name != registry.DEFAULT]
    return [registry.DEFAULT, *others]


ROOT = Path(__file__).resolve().parents[2]
OUTPUT, PICTURE = ROOT / "build/scale.json", ROOT / "build/scale.png"
PUBLISHED_PICTURE = ROOT / "docs/images/scale.png"


@dataclass(frozen=True, slots=True)
class ScaleCase:
    """Memory that is tracked, in how many processes, of pages of which size, how it is accessed."""

    tracked_gib: int
    processes: int
    page_kib: int
    pattern: str
    policy: str


@dataclass(frozen=True, slots=True)
class ScaleRow:
    """A measured case: CPU time of a tick's stages, and the peak resident set.

    ``sweep_ms`` is the part of ``heat_ms`` that asks for the nodes of pages: a step of the sweep
    takes 10 ms while there are pages to ask for, of which the simulated machine takes its part.
    """

    tracked_gib: int
    processes: int
    page_kib: int
    pattern: str
    policy: str
    heat_ms: float
    decide_ms: float
    rss_mib: float
    sweep_ms: float


class ScaledRun:
    """The daemon's tick over a simulated machine."""

    def __init__(self, case: ScaleCase, fast_chunks: int | None = None) -> None:
        """``fast_chunks`` of each process lie on the fast node, by default a tenth."""
        chunks = case.tracked_gib * GIB // HUGE_PAGE_BYTES // case.processes
        self._memory = memory = ScaledMemory(
            case.processes, chunks, huge=case.page_kib == 2048, fast=fast_chunks
        )
        pages = case.processes * chunks * HUGE_PAGE_PAGES
        self.samples = ScaledSamples(case.pattern, case.processes, pages, SAMPLES)
        self.heat = HeatTable(latency_ns=memory.topology().latency_ns)
        self.heat.track_processes(memory.processes)
        memory.place_all(self.heat)
        self._sweep = ResidencySweep(
            SweepSettings(), ModelledMemory(memory), clock=time.process_time
        )
        self.ticks = modelled_ticks(
            memory,
            self.samples,
            self.heat,
            self._sweep,
            registry.create(case.policy),
            MoverSettings(rate_bytes_per_s=BUDGET_BYTES),
            target="scaled",
        )
        self._timer = StageTimer(time.process_time)
        self._now_s = 0.0
        self.sweep_cpu_s = 0.0
        """CPU seconds of sweeps in all ticks."""

    def tick(self) -> dict[Stage, float]:
        """Run a tick; returns the CPU seconds of its stages."""
        self._now_s += 1.0
        self._memory.run(1.0)
        self._timer.begin()
        self.ticks.tick(self._now_s, timer=self._timer)
        self.sweep_cpu_s += self._timer.cpu_s[Work.SWEEP]
        return dict(self._timer.seconds)

    def fast_share(self, address: npt.NDArray[np.uint64]) -> float:
        """Return the share of accesses of the first process, by address, that the fast node has."""
        pid = self._memory.processes[0].pid
        return float((self._memory.nodes(pid, address) == FAST).mean())


def measure(case: ScaleCase) -> ScaleRow:
    """Run a case in this process, with its kernels loaded and its heap as the daemon has them."""
    keep_freed_memory()
    registry.warm(policies=(case.policy,))
    run = ScaledRun(case)
    for _ in range(WARM_TICKS):
        run.tick()
    swept_s = run.sweep_cpu_s
    ticks = [run.tick() for _ in range(TICKS)]
    mean_ms = {s: 1e3 * sum(t.get(s, 0.0) for t in ticks) / len(ticks) for s in Stage}
    return ScaleRow(
        **asdict(case),
        heat_ms=round(mean_ms[Stage.HEAT], 2),
        decide_ms=round(mean_ms[Stage.DECIDE], 2),
        rss_mib=round(peak_mib(), 1),
        sweep_ms=round(1e3 * (run.sweep_cpu_s - swept_s) / TICKS, 2),
    )


def cases(size: str) -> list[ScaleCase]:
    """Return the cases of a size: all patterns and pages under the default policy, and all others.

    A size that also names pattern, policy and KiB of a page is one case.
    """
    gib, processes, *chosen = size.split(":")
    if chosen:
        pattern, policy, page_kib = chosen
        return [ScaleCase(int(gib), int(processes), int(page_kib), pattern, policy)]
    default = registry.DEFAULT
    runs = [(page_kib, pattern, default) for page_kib in (4, 2048) for pattern in PATTERNS]
    runs += [(4, PATTERNS[0], name) for name in registry.names() if name != default]
    return [ScaleCase(int(gib), int(processes), *run) for run in runs]


def run_apart(case: ScaleCase, runs: int) -> ScaleRow:
    """Run a case in processes of its own; return the row of the run of median cost."""
    rows = sorted((_run(case) for _ in range(runs)), key=lambda row: row.heat_ms + row.decide_ms)
    return rows[(runs - 1) // 2]


def _run(case: ScaleCase) -> ScaleRow:
    command = [sys.executable, "-m", "bench.scale.tick_cost", "--case", json.dumps(asdict(case))]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return ScaleRow(**json.loads(output))


def main(arguments: list[str]) -> int:
    """Measure, print and write the rows."""
    parser = argparse.ArgumentParser(description="Cost of a tick over tracked memory.")
    parser.add_argument("sizes", nargs="*", default=list(SIZES))
    parser.add_argument("--publish", action="store_true")
    parser.add_argument("--runs", type=int, default=1, choices=range(1, 10))
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.case:
        print(json.dumps(asdict(measure(ScaleCase(**json.loads(args.case))))))
        return 0
    rows: list[ScaleRow] = []
    print("  GiB processes page KiB    pattern       policy    heat ms  decide ms  peak MiB")
    for case in [case for size in args.sizes for case in cases(size)]:
        row = run_apart(case, args.runs)
        rows.append(row)
        print(
            f"{row.tracked_gib:5} {row.processes:9} {row.page_kib:8} {row.pattern:>10}"
            f" {row.policy:>12} {row.heat_ms:10.1f} {row.decide_ms:10.1f} {row.rss_mib:9.0f}",
            flush=True,
        )
    write([asdict(row) for row in rows], arguments)
    if args.publish:
        publish_rows([asdict(row) for row in rows])
    return 0


def write(rows: list[dict[str, Any]], arguments: list[str]) -> None:
    """Write the rows into build/, and a picture of those of the default policy."""
    OUTPUT.parent.mkdir(exist_ok=True)
    command = " ".join(["python -m bench.scale.tick_cost", *arguments])
    document = {"command": command, "rows": rows, **ratios(rows)}
    OUTPUT.write_text(json.dumps(document, indent=1) + "\n")
    if any(row["policy"] == registry.DEFAULT for row in rows):
        draw(document, PICTURE, registry.DEFAULT)


def publish_rows(found: list[dict[str, Any]]) -> None:
    """Write the rows, with what others are known, and the picture of all into docs/."""
    known = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    rows = merged(known, found)
    draw(
        publish(
            measured_with()
            | {"rows": rows, **ratios(rows), "default": default_cost(rows), "quota": quota_rows()}
        ),
        PUBLISHED_PICTURE,
        registry.DEFAULT,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


@contextmanager
def raised(limits: Mapping[str, int], folder: Path = SYSCTL) -> Iterator[None]:
    """Raise limits, such as ``vm/max_map_count``, to these values at least; put them back after."""
    before = {name: (folder / name).read_text().strip() for name in limits}
    lower = {name: value for name, value in limits.items() if int(before[name]) < value}
    try:
        for name, value in lower.items():
            (folder / name).write_text(f"{value}\n")
        yield
    finally:
        for name in lower:
            (folder / name).write_text(f"{before[name]}\n")
