"""Modelled time and the plugin's counters of an emulated machine, as one document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hmd.machine.plugin_memory import PluginNodeCounters, SharedMemory


def counters_document(shared: SharedMemory, node_names: list[str] | None = None) -> dict[str, Any]:
    """Return modelled seconds and the counters by node and by CPU since the model started.

    Times are seconds. Misses are those of user mode, 64 bytes each. ``behind_s`` is the guest time
    by which emulation was slower than ``dilation`` allows.
    """
    cpus = [shared.counters(cpu) for cpu in range(shared.vcpus)]
    names = node_names or [str(node) for node in range(shared.nodes)]
    return {
        "modelled_s": shared.clock_ps * 1e-12,
        "dilation": shared.dilation,
        "nodes": [
            {"node": node, "name": names[node]} | _of_node([cpu.nodes[node] for cpu in cpus])
            for node in range(shared.nodes)
        ],
        "cpus": [
            {
                "cpu": number,
                "instructions": cpu.instructions,
                "loads": cpu.loads,
                "stores": cpu.stores,
                "llc_hits": cpu.llc_hits,
                "busy_s": cpu.busy_ps * 1e-12,
                "sampling_s": cpu.sampling_ps * 1e-12,
                "shootdown_s": cpu.shootdown_ps * 1e-12,
                "page_walks": cpu.page_walks,
                "paced_s": cpu.paced_ns * 1e-9,
                "behind_s": cpu.behind_ns * 1e-9,
                "load_samples": cpu.load_samples,
                "store_samples": cpu.store_samples,
                "lost_samples": cpu.lost_samples,
                "nodes": [_of_node([node]) for node in cpu.nodes],
            }
            for number, cpu in enumerate(cpus)
        ],
    }


def _of_node(counters: list[PluginNodeCounters]) -> dict[str, Any]:
    """Return the sum of a node's counters over CPUs."""
    sums: dict[str, Any] = {
        name: sum(getattr(one, name) for one in counters) for name in asdict(counters[0])
    }
    sums["stall_s"] = sums.pop("stall_ps") * 1e-12
    return sums
