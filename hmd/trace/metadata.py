"""Metadata of a recording: the program, the machine, the sampling, the clock."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hmd import __version__
from hmd.machine.nodes.topology import Topology
from hmd.machine.process_id import PROC
from hmd.sample.cpu_model import core_of, read_cpu_model
from hmd.trace.record_inputs import Sources
from hmd.units import PAGE_BYTES


def describe(
    command: Sequence[str],
    topology: Topology,
    sources: Sources,
    tier: str | None,
    proc: Path = PROC,
) -> dict[str, Any]:
    """Return the metadata, the words of a trace's first block; ``begin_ns`` is now."""
    sampler, clock, counter = sources.sampler, sources.clock, sources.counter
    # The emulated machine's guest sees QEMU's CPU, not the core that is modelled.
    core = None if sampler.capabilities.modelled_clock else core_of(read_cpu_model(proc))
    return {
        "hmd": __version__,
        "command": list(command),
        "tier": tier,
        "clock": clock.kind,
        "begin_ns": clock.now_ns(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "page_bytes": PAGE_BYTES,
        "nodes": [
            {
                "id": node.id,
                "tier": node.tier,
                "total_bytes": node.total_bytes,
                "cpus": list(node.cpus),
                "read_latency_ns": node.read_latency_ns,
                "write_latency_ns": node.write_latency_ns,
                "read_bandwidth_mbps": node.read_bandwidth_mbps,
                "write_bandwidth_mbps": node.write_bandwidth_mbps,
            }
            for node in topology.nodes
        ],
        "tiers": [_tier(topology, rank) for rank in range(len(topology.tiers))],
        "tier_source": topology.tier_source,
        "instructions": counter.source,
        "instructions_detail": counter.detail,
        "sampler": sampler.name,
        "detail": sampler.detail,
        "period": sampler.period,
        "pairs": sampler.pair_period is not None,
        "pair_period": sampler.pair_period,
        "reorder_window": core.reorder_window if core else None,
        "fill_buffers": core.fill_buffers if core else None,
    }


def _tier(topology: Topology, rank: int) -> dict[str, Any]:
    """Return a tier's speed by firmware (HMAT: idle latency, peak bandwidth), None if not given.

    Latencies are the mean of its nodes' for the CPUs nearest to each, bandwidths their sum.
    """
    members = topology.tiers[rank]
    nodes = [node for node in topology.nodes if node.id in members]

    def figures(name: str) -> list[int] | None:
        values = [getattr(node, name) for node in nodes]
        return None if None in values or 0 in values else values

    latency = {name: figures(name) for name in ("read_latency_ns", "write_latency_ns")}
    bandwidth = {name: figures(name) for name in ("read_bandwidth_mbps", "write_bandwidth_mbps")}
    return {
        "nodes": list(members),
        "total_bytes": sum(node.total_bytes for node in nodes),
        **{name: values and sum(values) / len(values) for name, values in latency.items()},
        **{name: values and sum(values) for name, values in bandwidth.items()},
    }
