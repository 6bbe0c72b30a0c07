"""Calibration: latencies and bandwidths measured in the guest versus those of the preset.

One boot runs microbenchmarks (workloads/membench.c) on the memory of each node: dependent loads;
sequential reads, sequential writes and random reads by all CPUs; and dependent loads while the
other CPUs load the node to 25, 50, 75 and 90 % of its bandwidth. The targets follow from the
preset (:mod:`hmd.emulate.calibration_targets`). Modelled time must be within 10 % of a target. By
the guest's clock, the ratio of each node to the first must be within 15 % of the ratio of their
targets. A calibration takes about a minute on an idle host.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hmd.emulate import calibration_targets
from hmd.emulate.assets import WORKLOADS, compile_static
from hmd.emulate.boot import Machine
from hmd.emulate.calibration_targets import LOADS, Asked
from hmd.emulate.preset import NodePreset, Preset
from hmd.emulate.preset_overrides import with_cpus
from hmd.errors import HmdError
from hmd.units import LINE_BYTES

MODELLED_BOUND = 0.10
RATIO_BOUND = 0.15

EMULATED_LINE_NS = 300.0
"""Host time per emulated line of a stream at most, on a host with fewer CPUs than the guest."""

ATTEMPTS = 5
SLIP = 1.05
"""Largest accepted ratio of guest time to modelled time, or of modelled to guest time, in one run.

A run beyond it is repeated; the run with the least slip counts. The guest's clock slips where the
host is too busy to emulate in time, modelled time where one CPU waits for another to catch up."""

_MODELLED_NS = 5_000_000  # of each run
_LATENCY, _BANDWIDTH = "ns", "GB/s"
_SOURCE = WORKLOADS / "membench.c"
_INCLUDES = tuple(f"-I{Path(__file__).with_name(name)}" for name in ("plugin", "timing"))


@dataclass(frozen=True, slots=True)
class NodeFigure:
    """One figure of one node; ``guest`` is by the guest's clock, divided by the dilation."""

    node: str
    name: str
    unit: str
    asked: float
    measured: float
    guest: float
    limit: str

    @property
    def error(self) -> float:
        """Measured over asked, less 1."""
        return self.measured / self.asked - 1

    @property
    def within_bounds(self) -> bool:
        """Whether the figure by modelled time is within 10 % of its target."""
        return abs(self.error) <= MODELLED_BOUND


@dataclass(frozen=True, slots=True)
class Ratio:
    """Time of the same work on one node over another, by the guest's clock."""

    slow: str
    fast: str
    name: str
    asked: float
    measured: float

    @property
    def error(self) -> float:
        """Measured over asked, less 1."""
        return self.measured / self.asked - 1

    @property
    def within_bounds(self) -> bool:
        """Whether the ratio by the guest's clock is within 15 % of the preset's."""
        return abs(self.error) <= RATIO_BOUND


@dataclass(frozen=True, slots=True)
class Calibration:
    """All figures of a preset."""

    preset: str
    dilation: float
    figures: tuple[NodeFigure, ...]
    ratios: tuple[Ratio, ...]

    @property
    def within_bounds(self) -> bool:
        """Whether every figure and every ratio is within its bounds."""
        return all(figure.within_bounds for figure in self.figures) and all(
            ratio.within_bounds for ratio in self.ratios
        )

    def document(self) -> dict[str, Any]:
        """Return the calibration as a JSON document."""
        return {
            "preset": self.preset,
            "dilation": self.dilation,
            "within_bounds": self.within_bounds,
            "modelled_bound": MODELLED_BOUND,
            "ratio_bound": RATIO_BOUND,
            "figures": [_with_error(figure) for figure in self.figures],
            "ratios": [_with_error(ratio) for ratio in self.ratios],
        }


@dataclass(frozen=True, slots=True)
class Timing:
    """Nanoseconds per line on each CPU: modelled, and by the guest's clock over the dilation.

    ``written_bytes`` are the bytes that the node's media wrote per line moved.
    """

    modelled_ns: tuple[float, ...]
    guest_ns: tuple[float, ...]
    written_bytes: float

    @property
    def slip(self) -> float:
        """Largest ratio between the two clocks over the CPUs.

        Infinite where a CPU made no progress while the first CPU finished its work.
        """
        pairs = zip(self.guest_ns, self.modelled_ns, strict=True)
        return max(max(a / b, b / a) if a and b else math.inf for a, b in pairs)


def dilation_for(preset: Preset) -> float:
    """Return the least dilation at which this host can emulate the preset's streams in time.

    At a lower dilation the guest's clock shows the speed of emulation, not that of the model.
    """
    fastest = max(node.read_bandwidth_gbps for node in preset.nodes)
    return EMULATED_LINE_NS * fastest / (preset.cpus * LINE_BYTES)


def calibrate(
    preset: Preset,
    *,
    dilation: float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Boot the preset and measure it; ``say`` receives a line for each figure.

    ``dilation`` defaults to ``dilation_for(preset)``. Raises GuestError or MissingError as a
    boot does, HmdError where a benchmark fails.
    """
    if dilation is None:
        dilation = dilation_for(preset)
    # The timer interrupt follows the guest's clock, so per modelled time it comes `dilation` times
    # too often. An extra CPU does housekeeping; the others run without a tick (NO_HZ_FULL).
    others = f"1-{preset.cpus}"
    quiet = [f"nohz_full={others}", f"isolcpus=managed_irq,domain,{others}"]
    larger = with_cpus(preset, preset.cpus + 1)
    with Machine(larger, dilation=dilation, append=quiet) as machine:
        machine.start_model()
        bench = Bench(machine, preset, others)
        figures = []
        for number, node in enumerate(preset.nodes):
            for figure in _figures(bench, number, node):
                say(f"{figure.node}: {figure.name} {figure.measured:.2f} {figure.unit}")
                figures.append(figure)
    return Calibration(preset.name, dilation, tuple(figures), tuple(_ratios(preset, figures)))


def _figures(bench: Bench, number: int, node: NodePreset) -> Iterator[NodeFigure]:
    preset = bench.preset
    idle = calibration_targets.idle_latency(node)
    chased = bench.run("chase", number, idle.value)
    yield NodeFigure(
        node.name,
        "dependent loads",
        _LATENCY,
        idle.value,
        chased.modelled_ns[0],
        chased.guest_ns[0],
        idle.limit,
    )
    for mode, name, asked in (
        ("read", "sequential read", calibration_targets.read_bandwidth(node)),
        ("write", "sequential write", calibration_targets.write_bandwidth(node)),
        ("random", "random read", calibration_targets.random_bandwidth(preset, node)),
    ):
        yield _bandwidth(bench, mode, name, number, asked)
    if preset.cpus < 2:
        return  # no other CPU can load the node
    for load in LOADS:
        asked = calibration_targets.loaded_latency(node, load)
        filler = calibration_targets.filler_turns(
            preset, calibration_targets.stream_turn_ns(preset, node, load)
        )
        timing = bench.run("loaded", number, asked.value, filler)
        yield NodeFigure(
            node.name,
            f"loaded at {load * 100:.0f} %",
            _LATENCY,
            asked.value,
            timing.modelled_ns[0],
            timing.guest_ns[0],
            asked.limit,
        )


def _bandwidth(bench: Bench, mode: str, name: str, number: int, asked: Asked) -> NodeFigure:
    timing = bench.run(mode, number, bench.preset.cpus * LINE_BYTES / asked.value)
    # Caches evict lines in no order of addresses: media of large granules write more than stored.
    moved = timing.written_bytes if mode == "write" else LINE_BYTES
    return NodeFigure(
        bench.preset.nodes[number].name,
        name,
        _BANDWIDTH,
        asked.value,
        sum(moved / ns for ns in timing.modelled_ns),
        sum(moved / ns for ns in timing.guest_ns),
        asked.limit,
    )


def _ratios(preset: Preset, figures: list[NodeFigure]) -> Iterator[Ratio]:
    """Yield the ratio of each node to the first, for the figures that all nodes have."""
    fast = {figure.name: figure for figure in figures if figure.node == preset.nodes[0].name}
    for figure in figures:
        first = fast[figure.name]
        if figure.node == first.node or figure.name.startswith("loaded"):
            continue
        asked, measured = figure.asked / first.asked, figure.guest / first.guest
        if figure.unit == _BANDWIDTH:
            asked, measured = 1 / asked, 1 / measured
        yield Ratio(figure.node, first.node, figure.name, asked, measured)


def _with_error(one: NodeFigure | Ratio) -> dict[str, Any]:
    return asdict(one) | {"error": one.error, "within_bounds": one.within_bounds}


class Bench:
    """The microbenchmarks in a running machine, on these CPUs of it (``0-1``)."""

    def __init__(self, machine: Machine, preset: Preset, cpus: str):
        self.preset = preset
        self._cpus = cpus
        self._machine = machine
        self._dilation = machine.shared.dilation
        self._program = str(compile_static(_SOURCE, _INCLUDES))
        find = "for d in /sys/bus/pci/devices/*; do grep -q 0x1110 $d/device && echo $d; done"
        self._device = machine.run(["sh", "-c", find], timeout=60).stdout.split()[0]

    def run(self, mode: str, node: int, line_ns: float, filler: int = 0) -> Timing:
        """Run one mode for some milliseconds of modelled time, at about ``line_ns`` per line."""
        lines = max(4096, int(_MODELLED_NS / line_ns))
        arguments = [mode, str(node), str(lines), str(filler)]
        best = self._once(node, arguments)
        for _ in range(ATTEMPTS - 1):
            if best.slip <= SLIP:
                break
            best = min(best, self._once(node, arguments), key=lambda timing: timing.slip)
        if best.slip == math.inf:
            raise HmdError("the host is too busy to calibrate: a CPU of the guest made no progress")
        return best

    def _traffic(self, node: int) -> tuple[int, int]:
        """Return lines read from a node, and bytes that its media wrote, since the start."""
        shared = self._machine.shared
        counters = [shared.counters(cpu).nodes[node] for cpu in range(shared.vcpus)]
        lines = sum(c.load_misses + c.store_misses + c.prefetched_lines for c in counters)
        return lines, sum(c.write_bytes for c in counters)

    def _once(self, node: int, arguments: list[str]) -> Timing:
        argv = [self._program, f"{self._device}/resource2", self._cpus, *arguments]
        lines, written = self._traffic(node)
        done = self._machine.run(argv, timeout=300)
        if done.returncode != 0:
            raise HmdError(f"membench {' '.join(arguments)}: {done.stderr.strip() or 'failed'}")
        cpus = json.loads(done.stdout)["cpus"]
        lines_after, written_after = self._traffic(node)
        return Timing(
            tuple(cpu["modelled_ns"] for cpu in cpus),
            tuple(cpu["guest_ns"] / self._dilation for cpu in cpus),
            (written_after - written) / (lines_after - lines),
        )
