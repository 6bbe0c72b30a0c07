"""The timing model's parameters of a preset, for the plugin and for replay."""

from __future__ import annotations

from collections.abc import Sequence

from hmd.emulate.memory_layout import node_ranges
from hmd.emulate.model_params import ModelPart, NodeParams, TimingParams
from hmd.emulate.preset import NodePreset, Preset
from hmd.errors import ConfigError

# A load within this distance of a loaded value uses the value as a pointer: fields of one object.
CHASE_SPAN_BYTES = 256

PART_NAMES = {part.name.lower(): part for part in ModelPart if part.name}
"""Names of the model's parts, as ``--parts`` and ``--without`` take them."""


def timing_params(preset: Preset, parts: ModelPart = ModelPart.ALL) -> TimingParams:
    """Return the parameters of a preset's machine."""
    ranges = node_ranges([node.size for node in preset.nodes])
    return TimingParams(
        nodes=tuple(
            _node_params(node, *range_) for node, range_ in zip(preset.nodes, ranges, strict=True)
        ),
        vcpus=preset.cpus,
        instruction_ps=_picoseconds(preset.core.instruction_ns),
        llcs=min(preset.cache.count, preset.cpus),
        llc_bytes=preset.cache.size,
        first_llc_bytes=preset.cache.first_size or 0,
        llc_ways=preset.cache.ways,
        llc_hit_ps=_picoseconds(preset.cache.hit_ns),
        mshrs=preset.core.line_fill_buffers,
        rob_instructions=preset.core.reorder_window,
        chase_span_bytes=CHASE_SPAN_BYTES,
        prefetch_streams=preset.core.prefetch_streams,
        sample_record_ps=_picoseconds(preset.sampling.record_ns),
        sample_interrupt_ps=_picoseconds(preset.sampling.interrupt_ns),
        sample_buffer_records=preset.sampling.buffer_records,
        tlb_entries=preset.tlb.entries,
        tlb_ways=preset.tlb.ways,
        tlb_huge_entries=preset.tlb.huge_entries,
        tlb_huge_ways=preset.tlb.huge_ways,
        stlb_entries=preset.tlb.second_entries,
        stlb_ways=preset.tlb.second_ways,
        stlb_hit_ps=_picoseconds(preset.tlb.second_ns),
        walk_ps=_picoseconds(preset.tlb.walk_ns),
        shootdown_send_ps=_picoseconds(preset.shootdown.send_ns),
        shootdown_receive_ps=_picoseconds(preset.shootdown.receive_ns),
        parts=parts,
    )


def parts_named(names: Sequence[str]) -> ModelPart:
    """Return the parts of these names; raises ConfigError for an unknown name."""
    parts = ModelPart(0)
    for name in names:
        if name not in PART_NAMES:
            known = ", ".join(PART_NAMES)
            raise ConfigError(f"unknown part of the timing model {name!r}: {known}")
        parts |= PART_NAMES[name]
    return parts


def _node_params(node: NodePreset, start: int, end: int) -> NodeParams:
    return NodeParams(
        phys_start=start,
        phys_end=end,
        read_latency_ps=_picoseconds(node.read_latency_ns),
        write_latency_ps=_picoseconds(node.write_latency_ns),
        read_bytes_per_ns=node.read_bandwidth_gbps,
        write_bytes_per_ns=node.write_bandwidth_gbps,
        granularity_bytes=node.granularity_bytes,
        loaded=tuple((point.utilisation, point.factor) for point in node.loaded),
    )


def _picoseconds(nanoseconds: float) -> int:
    return round(nanoseconds * 1000)
