# SPDX-License-Identifier: MIT
"""The parameters of the timing model: those of a preset, and as its C library takes them.

``timing_params`` makes ``TimingParams`` of a preset. ``struct timing_params``
(hmd/emulate/timing/timing.h) goes to the replay, its bytes to the plugin in QEMU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntFlag
from typing import Any

from hmd.base.errors import ConfigError
from hmd.base.units import LINE_BYTES
from hmd.emulate._timing import ffi, lib
from hmd.emulate.preset import NodePreset, Preset
from hmd.emulate.vm.qemu import node_ranges

# A load within this distance of a loaded value uses the value as a pointer: fields of one object.
CHASE_SPAN_BYTES = 256


class ModelPart(IntFlag):
    """The parts of the model; without any, a miss costs the idle latency of its node."""

    CACHE = 1
    MLP = 2
    PREFETCH = 4
    BANDWIDTH = 8
    KERNEL = 16
    SAMPLING = 32
    TLB = 64
    SHOOTDOWN = 128
    ALL = 255


@dataclass(frozen=True, slots=True)
class NodeParams:
    """One node: its physical addresses, idle latency and peak bandwidth (10^9 bytes per second).

    ``granularity_bytes`` is the unit in which the media moves data: 64, or 256 for Optane.
    ``loaded`` holds (utilisation, factor over idle latency), ascending, at most 8 points.
    ``far_vcpus`` are the CPUs of other sockets, as bits, which wait ``far_ps`` longer.
    """

    phys_start: int
    phys_end: int
    read_latency_ps: int
    write_latency_ps: int
    read_bytes_per_ns: float
    write_bytes_per_ns: float
    granularity_bytes: int = LINE_BYTES
    loaded: tuple[tuple[float, float], ...] = ()
    far_vcpus: int = 0
    far_ps: int = 0


@dataclass(frozen=True, slots=True)
class TimingParams:
    """The machine: its nodes, its identical CPUs and the caches that they share.

    The fields are those of ``struct timing_params`` (timing.h), which documents each.
    """

    nodes: tuple[NodeParams, ...]
    vcpus: int
    instruction_ps: int
    llc_bytes: int
    llc_ways: int
    llc_hit_ps: int
    mshrs: int
    rob_instructions: int
    chase_span_bytes: int
    prefetch_streams: int
    sample_record_ps: int = 0
    sample_interrupt_ps: int = 0
    sample_buffer_records: int = 1
    tlb_entries: int = 0
    tlb_ways: int = 0
    tlb_huge_entries: int = 0
    tlb_huge_ways: int = 0
    stlb_entries: int = 0
    stlb_ways: int = 0
    stlb_hit_ps: int = 0
    walk_ps: int = 0
    shootdown_send_ps: int = 0
    shootdown_receive_ps: int = 0
    llcs: int = 1
    first_llc_bytes: int = 0
    parts: ModelPart = ModelPart.ALL


def packed(params: TimingParams) -> bytes:
    """Return the bytes of ``struct timing_params`` in the host's ABI, for the plugin."""
    return bytes(ffi.buffer(native_params(params)))


def native_params(params: TimingParams) -> Any:
    """Return the C structure; raises OverflowError for a parameter that does not fit."""
    native = ffi.new("struct timing_params *")
    for field in fields(params):
        if field.name != "nodes":
            setattr(native, field.name, getattr(params, field.name))
    native.nodes = len(params.nodes)
    for target, node in zip(native.node, params.nodes, strict=False):
        _fill_node(target, node)
    return native


def _fill_node(target: Any, node: NodeParams) -> None:
    target.phys_start, target.phys_end = node.phys_start, node.phys_end
    target.read_latency_ps, target.write_latency_ps = node.read_latency_ps, node.write_latency_ps
    target.read_bytes_per_ns = node.read_bytes_per_ns
    target.write_bytes_per_ns = node.write_bytes_per_ns
    target.access_granularity = node.granularity_bytes
    target.far_vcpus, target.far_ps = node.far_vcpus, node.far_ps
    target.curve_points = len(node.loaded)
    for i, (utilisation, factor) in enumerate(node.loaded[: lib.TIMING_CURVE_POINTS]):
        target.curve_utilisation[i], target.curve_factor[i] = utilisation, factor


PART_NAMES = {part.name.lower(): part for part in ModelPart if part.name}
"""Names of the model's parts, as ``--parts`` and ``--without`` take them."""


def timing_params(preset: Preset, parts: ModelPart = ModelPart.ALL) -> TimingParams:
    """Return the parameters of a preset's machine."""
    ranges = node_ranges([node.size for node in preset.nodes])
    return TimingParams(
        nodes=tuple(
            _node_params(node, *range_, preset.far_cpus(index))
            for index, (node, range_) in enumerate(zip(preset.nodes, ranges, strict=True))
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


def _node_params(node: NodePreset, start: int, end: int, far_cpus: Sequence[int]) -> NodeParams:
    return NodeParams(
        phys_start=start,
        phys_end=end,
        read_latency_ps=_picoseconds(node.read_latency_ns),
        write_latency_ps=_picoseconds(node.write_latency_ns),
        read_bytes_per_ns=node.read_bandwidth_gbps,
        write_bytes_per_ns=node.write_bandwidth_gbps,
        granularity_bytes=node.granularity_bytes,
        loaded=tuple((point.utilisation, point.factor) for point in node.loaded),
        far_vcpus=sum(1 << cpu for cpu in far_cpus),
        far_ps=_picoseconds(node.far_ns),
    )


def _picoseconds(nanoseconds: float) -> int:
    return round(nanoseconds * 1000)
