"""Calibration: latencies and bandwidths measured in the guest versus those of the preset.

One boot runs microbenchmarks (workloads/membench.c) on the memory of each node: dependent loads,
on pages of 2 MiB and of 4 KiB; sequential reads, sequential writes and random reads by all CPUs;
and dependent loads while the other CPUs load the node to 25, 50, 75 and 90 % of its bandwidth. On
the first node, one more run is sampled, and one sends TLB shootdowns. The targets follow from the
preset (:mod:`hmd.emulate.calibration_targets`). Modelled time must be within 10 % of a target. By
the guest's clock, the ratio of each node to the first must be within 15 % of the ratio of their
targets. A calibration takes about a minute on an idle host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hmd.emulate import calibration_targets
from hmd.emulate.calibration_targets import LOADS, Asked
from hmd.emulate.microbenchmarks import Bench, Timing
from hmd.emulate.preset import NodePreset, Preset
from hmd.emulate.preset_overrides import with_cpus
from hmd.emulate.virtual_machine.boot import Machine
from hmd.units import LINE_BYTES

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
    walked = calibration_targets.walked_latency(preset, node)
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


def sample_figure(bench: Bench, plain: Timing) -> NodeFigure:
    """Return the cost of a sample: dependent loads sampled at a fixed period, against ``plain``."""
    node, asked = bench.preset.nodes[0], calibration_targets.sample_cost(bench.preset)
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
    asked = calibration_targets.shootdown_cost(bench.preset)
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
