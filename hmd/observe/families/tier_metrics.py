"""Memory tiers, and the heat of the pages on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hmd.observe.metric_family import Values, counter, gauge, of
from hmd.observe.snapshot import HEAT_LOG2, NodeNumbers, Snapshot


def _by_node(value: Callable[[NodeNumbers], float]) -> Callable[[Snapshot], Values]:
    return lambda now: {(str(node.id), str(node.tier)): value(node) for node in now.nodes}


def _heat(now: Snapshot) -> Values:
    return {
        (str(tier), str(log2)): pages
        for tier, row in enumerate(now.heat_pages)
        for log2, pages in zip(HEAT_LOG2, row or [0] * len(HEAT_LOG2), strict=True)
    }


FAMILIES: Final = (
    gauge(
        "hmd_tiers",
        "tiers",
        "Memory tiers; with one tier hmd moves no pages.",
        of(lambda now: len(now.tiers)),
    ),
    gauge(
        "hmd_node_tier",
        "",
        "Tier of a memory node; 0 is the fastest.",
        lambda now: {(str(node.id),): node.tier for node in now.nodes},
        "numa_node",
    ),
    gauge(
        "hmd_node_memory_bytes",
        "bytes",
        "Memory of a node; node_exporter reports the free part.",
        _by_node(lambda node: node.total_bytes),
        "numa_node",
        "tier",
    ),
    gauge(
        "hmd_node_page_cache_room_bytes",
        "bytes",
        "Page cache of a node that moves to the node may replace (migrate.page_cache).",
        _by_node(lambda node: node.cache_bytes),
        "numa_node",
        "tier",
    ),
    gauge(
        "hmd_node_page_cache_demoting",
        "",
        "1 while unused page cache of a node moves to a slower one (migrate.cache_headroom).",
        _by_node(lambda node: node.demoting),
        "numa_node",
        "tier",
    ),
    gauge(
        "hmd_node_load_latency_seconds",
        "seconds",
        "Load latency of an unloaded node: from the firmware (HMAT), or 90 ns without it.",
        _by_node(lambda node: node.latency_ns / 1e9),
        "numa_node",
        "tier",
    ),
    gauge(
        "hmd_heat_pages",
        "pages",
        "Pages of 4 KiB by tier and by log2 of their accesses per second.",
        _heat,
        "tier",
        "heat_log2",
    ),
    gauge(
        "hmd_heat_table_bytes",
        "bytes",
        "Memory of the heat table.",
        of(lambda now: now.heat_table_bytes),
    ),
    gauge(
        "hmd_heat_detail_chunks",
        "chunks",
        "Chunks of 2 MiB whose pages are counted one by one; the others are counted as a whole.",
        of(lambda now: now.detail_chunks),
    ),
    counter(
        "hmd_heat_changed_processes",
        "processes",
        "Processes whose known heat a tick's samples refuted: their hot set had moved.",
        of(lambda now: now.heat_changes),
    ),
    counter(
        "hmd_heat_detail_lost_chunks",
        "chunks",
        "Chunks that are counted as a whole again, since the pages of others differ more.",
        of(lambda now: now.details_lost),
    ),
    counter(
        "hmd_heat_detail_dropped_chunks",
        "chunks",
        "Chunks that are counted as a whole again, since the memory limit of the service is near.",
        of(lambda now: now.details_dropped),
    ),
)
