"""Targets of the calibration: what each microbenchmark should measure on a preset, and its limit.

Pure arithmetic on the preset. Traffic raises a node's latency, and latency slows the traffic; such
targets are the fixed point of the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from hmd.emulate.preset import NodePreset, Preset
from hmd.units import LINE_BYTES

LOADS = (0.25, 0.50, 0.75, 0.90)
"""Shares of a node's read bandwidth at which its loaded latency is measured."""

# Pages of 4 KiB of the buffer of workloads/membench.c (32 MiB).
_BUFFER_PAGES = 8192

# read_paced of workloads/membench.c: lines between two pauses, instructions other than loads.
TURN_LINES = 64
_TURN_INSTRUCTIONS = 10
_FILLER_INSTRUCTIONS = 2

_TAIL_SLOPE, _TAIL_LIMIT = 8.0, 2.0  # as in timing/bandwidth.c


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
