"""The service near its memory limit: the coldest detail of heat goes before the kernel kills.

Takes the limit of the service's control group (``MemoryMax=``) and the heat table, before each
tick; sets how many chunks the table counts page by page. What else the daemon keeps follows the
memory that is tracked (80 bytes per 2 MiB) and is not given up. Costs 0.1 ms per tick in a group
with a limit.
"""

from __future__ import annotations

import logging
from typing import Final

from hmd.daemon.stage_settings import DETAIL_BYTES
from hmd.heat.geometry import CHUNK_PAGES
from hmd.heat.heat_table import HeatTable
from hmd.machine.memory_limit import MemoryLimit, MemoryLimitReader

TICK_BYTES: Final = 16 * CHUNK_PAGES
"""What a tick needs for a chunk's detail: rates, and the bins by which rows are selected."""

STAY_SHARE: Final = 0.9
GROW_SHARE: Final = 0.8
"""Shares of the limit: detail is given up above the first, and grows up to the second."""

LOG_EVERY_S: Final = 600.0


class MemoryWatch:
    """Keeps the daemon's memory below the limit of its control group."""

    def __init__(self, log: logging.Logger, reader: MemoryLimitReader | None = None) -> None:
        """Find the control group of this process."""
        self._log = log
        self._reader = reader or MemoryLimitReader()
        self._unlogged = 0
        self._log_s = float("-inf")

    def follow(self, heat: HeatTable, now_s: float) -> None:
        """Give up detail where the limit is near, let it grow again where it is not."""
        limit, wanted = self._reader.read(), heat.settings.detail_chunks
        if limit is None:
            heat.bound_details(wanted)
            return
        rows = heat.chunks.detail_rows
        stay, grow = detail_bounds(limit, rows)
        if rows > stay:
            self._unlogged += heat.bound_details(min(grow, rows // 2))
        else:
            heat.bound_details(max(rows, min(grow, wanted)))
        if self._unlogged and now_s - self._log_s >= LOG_EVERY_S:
            self._log_s = now_s
            self._log.warning(
                "%d of %d MiB of the service's memory limit are used: %d more chunks of 2 MiB are "
                "counted as a whole; raise MemoryMax= or lower heat.detail",
                limit.used_bytes >> 20,
                limit.most_bytes >> 20,
                self._unlogged,
            )
            self._unlogged = 0


def detail_bounds(limit: MemoryLimit, rows: int) -> tuple[int, int]:
    """Return up to how many chunks detail may stay, and up to how many it may grow.

    ``rows`` is how many have room for it now. To grow needs memory for the old and the new.
    """
    others = limit.used_bytes - rows * DETAIL_BYTES
    stay = (STAY_SHARE * limit.most_bytes - others) / (DETAIL_BYTES + TICK_BYTES)
    grow = (GROW_SHARE * limit.most_bytes - others) / (2 * DETAIL_BYTES + TICK_BYTES)
    return max(int(stay), 0), max(int(grow), 0)
