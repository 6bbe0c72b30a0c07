# SPDX-License-Identifier: MIT
"""What an emulated machine reports of itself: modelled time, counters, and its nodes' addresses.

QEMU's pc machine places the nodes one after another from address 0, with a hole below 4 GiB: of
more than 3.5 GiB, the part above 3 GiB continues at 4 GiB (hw/i386/pc_piix.c, pc_init1; the
guest's ACPI SRAT agrees). A node that spans the hole has one range that includes the hole, where
no memory is; ranges never overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hmd.base.units import GIB
from hmd.linux.emulator_memory import PluginNodeCounters, SharedMemory

_ALL_BELOW = 0xE0000000
_LOW_BYTES = 0xC0000000
_HIGH_START = 4 * GIB


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


def node_ranges(sizes_bytes: Sequence[int]) -> list[tuple[int, int]]:
    """Return [start, end) guest-physical of each node, in the pc machine's default layout."""
    low_bytes = _LOW_BYTES if sum(sizes_bytes) > _ALL_BELOW else _ALL_BELOW

    def address(offset: int) -> int:
        return offset if offset < low_bytes else offset - low_bytes + _HIGH_START

    ranges = []
    offset = 0
    for size in sizes_bytes:
        ranges.append((address(offset), address(offset + size - 1) + 1))
        offset += size
    return ranges
