"""The parameters of the timing model, as its C library takes them (hmd/emulate/timing/timing.h).

Takes a machine as ``TimingParams``; gives ``struct timing_params`` to replay, and its bytes to the
plugin in QEMU. The parameters of a preset are in hmd/emulate/timing_params.py.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntFlag
from typing import Any

from hmd.emulate._timing import ffi, lib
from hmd.units import LINE_BYTES


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
    """

    phys_start: int
    phys_end: int
    read_latency_ps: int
    write_latency_ps: int
    read_bytes_per_ns: float
    write_bytes_per_ns: float
    granularity_bytes: int = LINE_BYTES
    loaded: tuple[tuple[float, float], ...] = ()


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
    target.curve_points = len(node.loaded)
    for i, (utilisation, factor) in enumerate(node.loaded[: lib.TIMING_CURVE_POINTS]):
        target.curve_utilisation[i], target.curve_factor[i] = utilisation, factor
