"""The plot of the Grafana dashboard from a real Prometheus: docs/images/dashboard.png.

    python -m bench.monitoring.dashboard TRACE [SECONDS]   a recorded program's misses (300 s)

TRACE is a miss recording, by `hmd simulate --record` or of the suite (build/suite/streams). The
daemon's heat, policy and mover run on it in modelled time, with a quarter of its memory fast. Each
tick of 10 modelled ms is passed to an observer, one per second, and Prometheus scrapes the metrics.
Needs the extra plot.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from bench.monitoring.dashboard_plot import draw
from bench.monitoring.prometheus import Prometheus
from hmd.decide.policies.histogram import Histogram
from hmd.emulate.preset import load
from hmd.emulate.recordings.miss_stream import MissStream
from hmd.observe.health import TickWatch
from hmd.observe.metrics import MetricsServer
from hmd.observe.observer import ObservedConfig, Observer, Places
from hmd.observe.residency_counts import heat_pages, resident_pages
from hmd.observe.tick_record import Stage
from hmd.sample.access_batch import AccessBatch
from hmd.sample.capabilities import CAPABILITIES
from hmd.sample.record_cost import RecordTime
from hmd.sample.sampler import SamplerStats
from hmd.simulate.simulated_machine import SimulatedMachine
from hmd.simulate.simulated_pmu import PmuSettings, SimulatedPmu
from hmd.simulate.simulation import SimulatedDaemon, SimulationSettings

PICTURE = Path(__file__).resolve().parents[2] / "docs/images/dashboard.png"
ADDRESS = "127.0.0.1:9744"
TICK_S = 1.0
FAST_SHARE = 0.25
RATE_INTERVAL = "8s"


class SampledProgram:
    """The PMU of a simulated machine, with the interface of the daemon's samplers."""

    name, detail = "simulated", "misses"
    capabilities = CAPABILITIES["emulated"]
    pair_period, outside_cpu_s, record_time = None, 0.0, RecordTime()

    def __init__(self, machine: SimulatedMachine, sampling: PmuSettings) -> None:
        self._pmu = SimulatedPmu(machine, sampling)
        self.period = sampling.period
        self.ladder: tuple[int, ...] = (self.period,)
        self.stats = SamplerStats()

    def read(self) -> AccessBatch:
        """Return the samples since the last read."""
        batch = self._pmu.read()
        self.stats.samples += len(batch)
        self.stats.wakeups += bool(len(batch))
        return batch

    def set_period(self, period: int) -> int:
        """Ignore the request: the period is fixed."""
        return self.period

    def track(self, processes: object) -> None:
        """Ignore the request: there is one program."""

    def close(self) -> None:
        """Free nothing."""


class ObservedSimulation:
    """The daemon over a simulated machine, and an observer that publishes its ticks."""

    def __init__(self, machine: SimulatedMachine, name: str) -> None:
        self.machine = machine
        self.daemon = SimulatedDaemon(machine, Histogram(), SimulationSettings())
        stages = self.daemon.stages
        stages.targets = (name,)
        stages.sampler = sampler = SampledProgram(machine, self.daemon.settings.sampling)
        setting = ObservedConfig(
            "dashboard", False, TICK_S, 0.01, 0.01, stages.policy.name, (name,)
        )
        self.observer = Observer(setting, machine.topology, sampler)

    def tick(self) -> None:
        """Run the program for a tick, then the daemon's stages."""
        timer, tick = self.daemon.timer, self.daemon.tick()
        timer.run(Stage.OBSERVE, lambda: self.observer.observe(tick, self._places()), None)
        self.observer.observed(timer.seconds[Stage.OBSERVE], Stage.OBSERVE in timer.failed)

    def _places(self) -> Places:
        heat, topology = self.daemon.stages.heat, self.machine.topology
        return Places(resident_pages(heat, topology), heat_pages(heat, topology), heat.stats)


def main(trace: Path, seconds: float) -> None:
    """Run the simulation, scrape its metrics, draw the panels."""
    stream, preset = MissStream.read(trace), load("dram-pm")
    name = trace.stem.split("-")[0]
    fast_pages = int(stream.user_pages * FAST_SHARE)
    with (
        SimulatedMachine(stream, preset, fast_pages) as machine,
        tempfile.TemporaryDirectory() as folder,
    ):
        daemon = ObservedSimulation(machine, name)
        server = MetricsServer(ADDRESS, lambda: daemon.observer.latest, TickWatch().health)
        with Prometheus(Path(folder), {"hmd": ADDRESS}) as prometheus:
            begun_s = time.time()
            ticks = run(daemon, begun_s + seconds)
            # The last tick is shorter: the program ended in it.
            draw(prometheus, begun_s + 3, time.time() - 2 * TICK_S, RATE_INTERVAL, PICTURE)
        server.close()
        state = "its end" if machine.done else f"{100 * machine.row / len(stream):.0f} % of it"
        print(f"{name}: {ticks} ticks to {state}, {machine.program_s:.3f} s of it; {PICTURE}")


def run(daemon: ObservedSimulation, end_s: float) -> int:
    """Run a tick per ``TICK_S`` until a time or the program's end; returns the number of ticks."""
    ticks, due_s = 0, time.time()
    while not daemon.machine.done and due_s < end_s:
        daemon.tick()
        ticks += 1
        due_s = max(due_s + TICK_S, time.time())
        time.sleep(max(0.0, due_s - time.time()))
    return ticks


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("name a TRACE: python -m bench.monitoring.dashboard TRACE [SECONDS]")
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 300.0)
