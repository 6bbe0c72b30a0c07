"""Cost of a tick over the memory that is tracked: a table, build/scale.json, build/scale.png.

100,000 samples per tick, whatever the size of memory, of which a tenth is fast; the tick is the
daemon's, over simulated address spaces. Figures are CPU time of one core, the mean over the last
ticks, and the peak resident set of a process of its own. ``python -m bench.scale.tick_cost 4:1
1024:1000`` runs the cases of some sizes (GiB:processes) alone, ``4:1:zipf:histogram:4`` one case of
them. With ``--runs`` each case is run so often, and the row is that of the run of median cost.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.documents.measured_commit import commit, host
from bench.scale.peak_memory import peak_mib
from bench.scale.plot import draw
from bench.scale.results import RESULTS, default_cost, merged, publish, quota_rows, ratios
from bench.scale.scaled_memory import FAST, ScaledMemory
from bench.scale.scaled_samples import PATTERNS, ScaledSamples
from bench.synthetic.modelled_stages import modelled_stages
from hmd.decide import registry
from hmd.heat.heat_table import HeatTable
from hmd.machine.own_memory import keep_freed_memory
from hmd.migrate import MoverSettings
from hmd.observe.tick_record import Stage
from hmd.pipeline.stage_guard import StageTimer
from hmd.pipeline.tick import run_tick
from hmd.residency.residency_sweep import ResidencySweep, SweepSettings
from hmd.residency.swept_memory import ModelledMemory
from hmd.units import GIB, HUGE_PAGE_BYTES, HUGE_PAGE_PAGES

ROOT = Path(__file__).resolve().parents[2]
OUTPUT, PICTURE = ROOT / "build/scale.json", ROOT / "build/scale.png"
PUBLISHED_PICTURE = ROOT / "docs/images/scale.png"
SAMPLES = 100_000
WARM_TICKS, TICKS = 12, 8
BUDGET_BYTES = 256 << 20
SIZES = ("4:1", "64:1", "1024:1", "4096:1", "1024:1000")
"""GiB and processes of the cases."""


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
    """The stages of a tick over a simulated machine."""

    def __init__(self, case: ScaleCase, fast_chunks: int | None = None) -> None:
        """``fast_chunks`` of each process lie on the fast node, by default a tenth."""
        chunks = case.tracked_gib * GIB // HUGE_PAGE_BYTES // case.processes
        self._memory = memory = ScaledMemory(
            case.processes, chunks, huge=case.page_kib == 2048, fast=fast_chunks
        )
        pages = case.processes * chunks * HUGE_PAGE_PAGES
        self.samples = ScaledSamples(case.pattern, case.processes, pages, SAMPLES)
        self.heat = HeatTable(latency_ns=memory.topology().latency_ns)
        self.heat.track(memory.processes)
        memory.place_all(self.heat)
        self._sweep = ResidencySweep(
            SweepSettings(), ModelledMemory(memory), clock=time.process_time
        )
        self._stages = modelled_stages(
            memory,
            self.samples,
            self.heat,
            self._sweep,
            registry.make(case.policy),
            MoverSettings(rate_bytes_per_s=BUDGET_BYTES),
            target="scaled",
        )
        self._timer = StageTimer(time.process_time)
        self._now_s = 0.0

    def tick(self) -> dict[Stage, float]:
        """Run a tick; returns the CPU seconds of its stages."""
        self._now_s += 1.0
        self._memory.run(1.0)
        self._timer.begin()
        run_tick(self._stages, self._timer, self._now_s)
        return dict(self._timer.seconds)

    @property
    def sweep_cpu_s(self) -> float:
        """CPU seconds of sweeps in all ticks."""
        return self._stages.sweep_cpu_s

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
        publish_rows([asdict(row) for row in rows], args.runs)
    return 0


def write(rows: list[dict[str, Any]], arguments: list[str]) -> None:
    """Write the rows into build/, and a picture of those of the default policy."""
    OUTPUT.parent.mkdir(exist_ok=True)
    command = " ".join(["python -m bench.scale.tick_cost", *arguments])
    document = {"command": command, "rows": rows, **ratios(rows)}
    OUTPUT.write_text(json.dumps(document, indent=1) + "\n")
    if any(row["policy"] == registry.DEFAULT for row in rows):
        draw(document, PICTURE, registry.DEFAULT)


def publish_rows(found: list[dict[str, Any]], runs: int) -> None:
    """Write the rows, with what others are known, and the picture of all into docs/."""
    known = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    rows = merged(known, found)
    about = {
        "command": f"python -m bench.scale.tick_cost --publish --runs {runs}",
        "commit": commit(),
        "machine": host(),
    }
    draw(
        publish(
            about
            | {"rows": rows, **ratios(rows), "default": default_cost(rows), "quota": quota_rows()}
        ),
        PUBLISHED_PICTURE,
        registry.DEFAULT,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
