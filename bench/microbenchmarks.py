# SPDX-License-Identifier: MIT
"""Latencies and bandwidths measured in the emulated machine, compared with those of its preset.

One boot runs microbenchmarks (workloads/membench.c) on the memory of each node: dependent loads,
on pages of 2 MiB and of 4 KiB; sequential reads, sequential writes and random reads by all CPUs;
and dependent loads while the other CPUs load the node to 25, 50, 75 and 90 % of its bandwidth. On
the first node, one more run is sampled, and one sends TLB shootdowns. The targets follow from the
preset; traffic raises a node's latency and latency slows the traffic, so that some are the fixed
point of the two. Modelled time must be within 10 % of a target. By the guest's clock, the ratio of
each node to the first must be within 15 % of the ratio of their targets. A calibration takes about
a minute on an idle host.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hmd.base.errors import HmdError
from hmd.base.units import LINE_BYTES
from hmd.emulate.assets import PLUGIN_SOURCES, compile_static
from hmd.emulate.preset import NodePreset, Preset, with_cpus
from hmd.emulate.vm.boot import Machine

LOADS = (0.25, 0.50, 0.75, 0.90)
"""Shares of a node's read bandwidth at which its loaded latency is measured."""

# Pages of 4 KiB of the buffer of workloads/membench.c (32 MiB).
_BUFFER_PAGES = 8192

# read_paced of workloads/membench.c: lines between two pauses, instructions other than loads.
TURN_LINES = 64
_TURN_INSTRUCTIONS = 10
_FILLER_INSTRUCTIONS = 2

_TAIL_SLOPE, _TAIL_LIMIT = 8.0, 2.0  # as in timing/bandwidth.c

ATTEMPTS = 5

SLIP = 1.05
"""Largest accepted ratio of guest time to modelled time, or of modelled to guest time, in one run.

A run beyond it is repeated; the run with the least slip counts. The guest's clock slips where the
host is too busy to emulate in time, modelled time where one CPU waits for another to catch up."""

_CHASE_NS, _OTHERS_NS = 20_000_000, 5_000_000
"""Modelled time of a run. A chase is timed in windows of 0.4 ms, of which each is off by up to the
40 us that the reorder window holds: 12 windows scatter by 3 %, 50 by 0.3 %."""

_CHASES = ("chase", "walk", "loaded")
_INCLUDES = tuple(f"-I{folder}" for folder in PLUGIN_SOURCES)
MODELLED_BOUND = 0.10
RATIO_BOUND = 0.15

EMULATED_LINE_NS = 300.0
"""Host time per emulated line of a stream at most, on a host with fewer CPUs than the guest."""

SAMPLE_PERIOD = 7
"""Load misses per sample in the run that measures a sample's cost."""

SHOOTDOWNS = 512
"""Turns of the run that measures the cost of TLB shootdowns, each of one or two of them."""

_LATENCY, _BANDWIDTH = "ns", "GB/s"


@dataclass(frozen=True, slots=True)
class Asked:
    """The target of one figure (ns, or GB/s), and what limits it."""

    value: float
    limit: str


def loaded_factor(node: NodePreset, utilisation: float) -> float:
    """Return loaded over idle latency, as in the timing model (bandwidth_curve)."""
    start, factor = 0.0, 1.0
    for point in node.loaded:
        if utilisation < point.utilisation:
            share = (utilisation - start) / (point.utilisation - start)
            return factor + (point.factor - factor) * share
        start, factor = point.utilisation, point.factor
    if not node.loaded:
        return 1.0
    return factor * min(1 + _TAIL_SLOPE * (utilisation - start), _TAIL_LIMIT)


def idle_latency(node: NodePreset) -> Asked:
    """Return the latency of a dependent load by one CPU from an idle node, in ns."""
    return Asked(node.read_latency_ns, "latency")


def walked_latency(preset: Preset, node: NodePreset) -> Asked:
    """Return the latency in ns of a dependent load of a random 4 KiB page of the buffer.

    The second-level TLB has one in so many; the others' pages are walked, with a leaf entry that
    is cached, since entries of eight pages share a line.
    """
    tlb = preset.tlb
    hits = min(1.0, tlb.second_entries / _BUFFER_PAGES)
    delay_ns = hits * tlb.second_ns + (1 - hits) * tlb.walk_ns
    return Asked(node.read_latency_ns + delay_ns, "latency and page walks")


def sample_cost(preset: Preset) -> Asked:
    """Return the time in ns that a sample takes of the sampled CPU, without a timestamp."""
    sampling = preset.sampling
    return Asked(sampling.record_ns + sampling.interrupt_ns / sampling.buffer_records, "assist")


def shootdown_cost(preset: Preset) -> Asked:
    """Return the time in ns that a TLB shootdown of all other CPUs takes of all CPUs together."""
    shootdown = preset.shootdown
    return Asked(shootdown.send_ns + (preset.cpus - 1) * shootdown.receive_ns, "interrupts")


def loaded_latency(node: NodePreset, utilisation: float) -> Asked:
    """Return the latency in ns of a dependent load while others use this share of the bandwidth."""
    value = node.read_latency_ns * loaded_factor(node, utilisation)
    return Asked(value, f"{utilisation * 100:.0f} % load")


def read_bandwidth(node: NodePreset) -> Asked:
    """Return GB/s of sequential loads by all CPUs."""
    return Asked(node.read_bandwidth_gbps, "read bandwidth")


def write_bandwidth(node: NodePreset) -> Asked:
    """Return GB/s of sequential stores by all CPUs; each line is read before it is written back."""
    if node.read_bandwidth_gbps < node.write_bandwidth_gbps:
        return Asked(node.read_bandwidth_gbps, "read bandwidth")
    return Asked(node.write_bandwidth_gbps, "write bandwidth")


def random_bandwidth(preset: Preset, node: NodePreset) -> Asked:
    """Return GB/s of lines of independent random loads by all CPUs.

    The limit is the media or the cores. The media moves ``granularity_bytes`` per line; a core has
    at most one line in flight per line fill buffer, at the latency that this traffic causes.
    """
    amplification = node.granularity_bytes / LINE_BYTES
    media = node.read_bandwidth_gbps / amplification
    in_flight = preset.cpus * preset.core.line_fill_buffers * LINE_BYTES
    low, high = 0.0, media
    for _ in range(60):  # traffic raises latency, latency lowers traffic: bisect
        middle = (low + high) / 2
        latency = node.read_latency_ns * loaded_factor(node, middle / media)
        if in_flight / latency > middle:
            low = middle
        else:
            high = middle
    if low > 0.999 * media:
        return Asked(media, f"{node.granularity_bytes}-byte media")
    return Asked(low, "line fill buffers")


def stream_turn_ns(preset: Preset, node: NodePreset, utilisation: float) -> float:
    """Return the time of 64 lines per stream, in ns, at which streams and chase make this load."""
    chase_gbps = node.granularity_bytes / loaded_latency(node, utilisation).value
    stream_gbps = (utilisation * node.read_bandwidth_gbps - chase_gbps) / max(1, preset.cpus - 1)
    return TURN_LINES * LINE_BYTES / stream_gbps


def filler_turns(preset: Preset, turn_ns: float) -> int:
    """Return the iterations of the empty loop that stretch 64 lines of a stream to ``turn_ns``."""
    busy_ns = (TURN_LINES + _TURN_INSTRUCTIONS) * preset.core.instruction_ns
    return max(0, round((turn_ns - busy_ns) / (_FILLER_INSTRUCTIONS * preset.core.instruction_ns)))


_SOURCE = Path(__file__).with_name("workloads") / "membench.c"


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
        modelled_ns = _CHASE_NS if mode in _CHASES else _OTHERS_NS
        lines = max(4096, int(modelled_ns / line_ns))
        arguments = [mode, str(node), str(lines), str(filler)]
        best = self._once(node, arguments)
        for _ in range(ATTEMPTS - 1):
            if best.slip <= SLIP:
                break
            best = min(best, self._once(node, arguments), key=lambda timing: timing.slip)
        if best.slip == math.inf:
            raise HmdError("the host is too busy to calibrate: a CPU of the guest made no progress")
        return best

    def once(self, mode: str, node: int, lines: int) -> None:
        """Run one mode for so many lines, once."""
        self._once(node, [mode, str(node), str(lines), "0"])

    @contextmanager
    def sampled(self, period: int) -> Iterator[None]:
        """Sample one in ``period`` load misses meanwhile."""
        self._machine.shared.sample(period, 0, 0)
        try:
            yield
        finally:
            self._machine.shared.stop_sampling()

    def shootdowns(self) -> tuple[float, float]:
        """Return how many TLB shootdowns there were so far, and what CPUs were charged in all, ns.

        The number is the guest kernel's own, of shootdowns received, over the other CPUs of the
        benchmark.
        """
        shared = self._machine.shared
        lines = self._machine.run(["cat", "/proc/interrupts"], check=True).stdout.splitlines()
        (row,) = (line.split() for line in lines if line.strip().startswith("TLB:"))
        received = sum(int(word) for word in row[1:] if word.isdigit())
        charged_ps = sum(shared.counters(cpu).shootdown_ps for cpu in range(shared.vcpus))
        return received / max(1, self.preset.cpus - 1), charged_ps / 1000

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
    idle = idle_latency(node)
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
    walked = walked_latency(preset, node)
    timing = bench.run("walk", number, walked.value)
    yield NodeFigure(
        node.name,
        "4 KiB pages",
        _LATENCY,
        walked.value,
        timing.modelled_ns[0],
        timing.guest_ns[0],
        walked.limit,
    )
    if number == 0:
        yield sample_figure(bench, chased)
        if preset.cpus > 1:
            yield shootdown_figure(bench)
    for mode, name, asked in (
        ("read", "sequential read", read_bandwidth(node)),
        ("write", "sequential write", write_bandwidth(node)),
        ("random", "random read", random_bandwidth(preset, node)),
    ):
        yield _bandwidth(bench, mode, name, number, asked)
    if preset.cpus < 2:
        return  # no other CPU can load the node
    for load in LOADS:
        asked = loaded_latency(node, load)
        filler = filler_turns(preset, stream_turn_ns(preset, node, load))
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


def sample_figure(bench: Bench, plain: Timing) -> NodeFigure:
    """Return the cost of a sample: dependent loads sampled at a fixed period, against ``plain``."""
    node, asked = bench.preset.nodes[0], sample_cost(bench.preset)
    with bench.sampled(SAMPLE_PERIOD):
        timing = bench.run("chase", 0, node.read_latency_ns + asked.value / SAMPLE_PERIOD)
    return NodeFigure(
        node.name,
        "sample",
        _LATENCY,
        asked.value,
        (timing.modelled_ns[0] - plain.modelled_ns[0]) * SAMPLE_PERIOD,
        (timing.guest_ns[0] - plain.guest_ns[0]) * SAMPLE_PERIOD,
        asked.limit,
    )


def shootdown_figure(bench: Bench) -> NodeFigure:
    """Return the cost of a shootdown: what CPUs were charged, per one that the guest counted."""
    asked = shootdown_cost(bench.preset)
    rounds, charged_ns = bench.shootdowns()
    bench.once("shootdown", 0, SHOOTDOWNS)
    rounds_after, charged_after_ns = bench.shootdowns()
    measured = (charged_after_ns - charged_ns) / (rounds_after - rounds)
    name = bench.preset.nodes[0].name
    return NodeFigure(name, "TLB shootdown", _LATENCY, asked.value, measured, measured, asked.limit)


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
