"""A kdamond that demotes a node's page cache without accesses, by the DAMOS action migrate_cold.

Takes physical addresses and a slower node; the kernel does the rest: it checks accessed bits and
reads of one page in each of up to a thousand regions, and moves, of regions without any, the pages
of files that were not accessed between two visits (the filters ``anon`` and ``young``;
Documentation/admin-guide/mm/damon/usage.rst, mm/damon/paddr.c; Linux 6.11, CONFIG_DAMON_PADDR).
Memory of programs that no file backs stays. Set-up takes some 30 writes, about 1 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hmd.machine.damon.damon_sysfs import Kdamonds
from hmd.machine.damon.kdamond_thread import KdamondThread
from hmd.machine.process_id import PROC

REGIONS_LEAST, REGIONS_MOST = 10, 1000
CHECKS_PER_WINDOW: Final = 20
"""Checks of a region per aggregation."""
WINDOWS: Final = 2
"""Aggregations without an access after which a region counts as unused."""
_UPDATE_WINDOWS: Final = 10
_QUOTA_MS: Final = 1000
_MOST = 2**32 - 1
_MOST_BYTES = 2**64 - 1


@dataclass(frozen=True, slots=True)
class CacheWatch:
    """Page cache without access for ``age_s`` is demoted.

    At most ``bytes_per_s`` are visited per second, in ``cpu_share`` of a CPU's time.
    """

    age_s: float
    bytes_per_s: int
    cpu_share: float


class CacheKdamond:
    """The kdamond ``index`` of those that hmd has claimed."""

    def __init__(self, kdamonds: Kdamonds, index: int, proc: Path = PROC) -> None:
        self._all, self._folder = kdamonds, f"{index}/contexts"
        self._thread = KdamondThread(kdamonds, index, proc)

    @property
    def running(self) -> bool:
        """True while it demotes."""
        return self._thread.running

    @property
    def cpu_s(self) -> float:
        """CPU time of the kernel's thread so far, in seconds."""
        return self._thread.cpu_s

    def start(self, ranges: Sequence[tuple[int, int]], to_node: int, watch: CacheWatch) -> None:
        """Demote page cache in these physical addresses to a node; raises DamonError."""
        self._thread.stop()
        self._thread.check()
        self._all.write(f"{self._folder}/nr_contexts", 1)
        self._set_monitoring(watch.age_s)
        self._set_ranges(ranges)
        self._set_scheme(to_node, watch)
        self._thread.start()

    def stop(self) -> None:
        """Stop it; raises DamonError."""
        self._thread.stop()

    def _set_monitoring(self, age_s: float) -> None:
        window_us = max(1, round(age_s * 1e6 / WINDOWS))
        self._write(
            {
                "operations": "paddr",
                "monitoring_attrs/intervals/sample_us": max(1, window_us // CHECKS_PER_WINDOW),
                "monitoring_attrs/intervals/aggr_us": window_us,
                "monitoring_attrs/intervals/update_us": _UPDATE_WINDOWS * window_us,
                "monitoring_attrs/nr_regions/max": REGIONS_MOST,
                "monitoring_attrs/nr_regions/min": REGIONS_LEAST,
            }
        )

    def _set_ranges(self, ranges: Sequence[tuple[int, int]]) -> None:
        regions = "targets/0/regions"
        self._write({"targets/nr_targets": 1, f"{regions}/nr_regions": len(ranges)})
        for index, (start, end) in enumerate(ranges):
            self._write({f"{regions}/{index}/start": start, f"{regions}/{index}/end": end})

    def _set_scheme(self, to_node: int, watch: CacheWatch) -> None:
        scheme = "schemes/0"
        self._write(
            {
                "schemes/nr_schemes": 1,
                f"{scheme}/action": "migrate_cold",
                f"{scheme}/target_nid": to_node,
                f"{scheme}/access_pattern/sz/max": _MOST_BYTES,
                f"{scheme}/access_pattern/nr_accesses/max": 0,
                f"{scheme}/access_pattern/age/min": WINDOWS,
                f"{scheme}/access_pattern/age/max": _MOST,
                f"{scheme}/quotas/bytes": watch.bytes_per_s * _QUOTA_MS // 1000,
                f"{scheme}/quotas/ms": max(1, round(watch.cpu_share * _QUOTA_MS)),
                f"{scheme}/quotas/reset_interval_ms": _QUOTA_MS,
                f"{scheme}/filters/nr_filters": 2,
            }
        )
        for index, kind in enumerate(("anon", "young")):  # pages that match are left alone
            kept = f"{scheme}/filters/{index}"
            self._write({f"{kept}/type": kind, f"{kept}/matching": "Y"})

    def _write(self, values: dict[str, object]) -> None:
        for name, value in values.items():
            self._all.write(f"{self._folder}/0/{name}", value)
