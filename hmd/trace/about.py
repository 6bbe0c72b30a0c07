"""What holds for a whole recording: the program, the machine, the sampling."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from hmd import __version__
from hmd.machine.process import PAGE_BYTES
from hmd.machine.topology import Topology
from hmd.sample.choose import Chosen


def describe(
    command: Sequence[str], topology: Topology, source: Chosen, tier: str | None
) -> dict[str, Any]:
    """Return the words of a trace's first block; ``begin_ns`` is now."""
    sampler = source.sampler
    return {
        "hmd": __version__,
        "command": list(command),
        "tier": tier,
        "begin_ns": time.monotonic_ns(),
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
        "sampler": sampler.name,
        "detail": sampler.detail,
        "period": sampler.period,
    }
