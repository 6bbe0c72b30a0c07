# SPDX-License-Identifier: MIT
"""The last minutes of heat: thinned summaries of the largest processes after each tick.

A summary has at most ``MAX_BINS`` bins, so that its size does not depend on the process: parts of
chunks (2 MiB) down to single pages, whole chunks, or several. Recording costs a pass over the
``node`` column (1 byte per page); large tables are recorded on fewer ticks.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hmd.base.errors import UsageError
from hmd.heat.chunks import ChunkColumns
from hmd.heat.settings import CHUNK_BYTES, CHUNK_PAGES
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Topology
from hmd.metrics.heat_map import MAX_BINS, MAX_PROCESSES, MAX_TICKS
from hmd.metrics.observer import plain_node
from hmd.metrics.tick_record import TickRecord

CHUNKS_PER_TICK: Final = 1024
"""A table with n times as many chunks is summarised every n + 1 ticks."""


@dataclass(frozen=True, slots=True)
class HeatSummary:
    """One process after one tick; columns have one row per bin.

    ``address`` is the start of a bin, ``heat`` the mean accesses per second of its pages,
    ``pages`` the resident pages by tier, shape ``(bins, tiers)``. ``bin_bytes`` is the size of a
    bin, or of its first chunk.
    """

    process: ProcessId
    target: str
    bin_bytes: int
    address: npt.NDArray[np.uint64]
    heat: npt.NDArray[np.float32]
    pages: npt.NDArray[np.int32]


@dataclass(slots=True)
class HeatSnapshot:
    """All summaries of one tick; kept as JSON only once a client has asked for them."""

    now_s: float
    summaries: tuple[HeatSummary, ...]
    texts: tuple[tuple[ProcessId, str], ...] = ()

    @property
    def rounded_s(self) -> float:
        """The time as it is in the JSON."""
        return round(self.now_s, 3)

    def as_json(self, visible: Callable[[ProcessId], bool]) -> str:
        """Return the snapshot's visible processes as JSON, which is made once for each."""
        if self.summaries:
            self.texts = tuple((summary.process, _json(summary)) for summary in self.summaries)
            self.summaries = ()
        processes = ",".join(text for process, text in self.texts if visible(process))
        return f'{{"now_s":{self.rounded_s},"processes":[{processes}]}}'


class HeatHistory:
    """The summaries of the last ``MAX_TICKS`` ticks; ``answer`` may be called by any thread."""

    def __init__(self, topology: Topology) -> None:
        self._snapshots: deque[HeatSnapshot] = deque(maxlen=MAX_TICKS)
        self._ticks = 0
        self.set_topology(topology)

    def set_topology(self, topology: Topology) -> None:
        """Use the tiers of this topology; drop snapshots made with other tiers."""
        of_node = {node: tier for tier, nodes in enumerate(topology.tiers) for node in nodes}
        codes = np.arange(256, dtype=np.uint8).view(np.int8)
        self._tier = np.array([of_node.get(n, -1) for n in plain_node(codes).tolist()], np.int8)
        self._tiers = len(topology.tiers)
        self._snapshots.clear()

    def record(self, tick: TickRecord, heat: HeatTable) -> None:
        """Summarise the largest processes; every second, third, … tick where the table is large."""
        self._ticks += 1
        used = heat.chunks.used
        if self._ticks % (1 + used // CHUNKS_PER_TICK):
            return
        owner = heat.chunks.columns.process[:used]
        sizes = np.bincount(owner, minlength=len(heat.processes))
        largest = np.argsort(-sizes, kind="stable")[:MAX_PROCESSES]
        if heat.processes == tick.processes:
            names = {heat.processes[slot]: tick.targets[slot] for slot in largest.tolist()}
        else:
            names = dict(zip(tick.processes, tick.targets, strict=True))
        rates = heat.chunk_rates()
        self._snapshots.append(
            HeatSnapshot(
                tick.now_s,
                tuple(
                    self._summary(heat, rates, slot, names.get(heat.processes[slot], ""))
                    for slot in largest.tolist()
                    if sizes[slot]
                ),
            )
        )

    def answer(
        self,
        arguments: Mapping[str, Any] | None = None,
        visible: Callable[[ProcessId], bool] = lambda _: True,
    ) -> bytes:
        """Return the snapshots as JSON, oldest first, with the processes that are ``visible``.

        The argument ``after_s`` leaves out those that are not newer, except for the last, by which
        a client notices a restarted daemon with another clock. Raises ``UsageError`` where it is
        not a number.
        """
        after_s = (arguments or {}).get("after_s", -math.inf)
        if isinstance(after_s, bool) or not isinstance(after_s, int | float):
            raise UsageError("after_s is not a number: give the now_s of a known moment")
        kept = tuple(self._snapshots)
        newer = [snapshot for snapshot in kept[:-1] if snapshot.rounded_s > after_s]
        moments = ",".join(snapshot.as_json(visible) for snapshot in (*newer, *kept[-1:]))
        return f'{{"tiers":{self._tiers},"moments":[{moments}]}}'.encode()

    def _summary(
        self, heat: HeatTable, rates: npt.NDArray[np.float64], slot: int, target: str
    ) -> HeatSummary:
        """Return one process's summary; ``rates`` are accesses per second by chunk."""
        columns, used = heat.chunks.columns, heat.chunks.used
        rows = np.flatnonzero(columns.process[:used] == slot)
        rows = rows[np.argsort(columns.address[rows])]
        parts = _parts(len(rows))
        starts = np.arange(0, len(rows) * parts, -(-len(rows) // MAX_BINS))
        bins = np.diff(np.append(starts, len(rows) * parts))
        offsets = np.arange(parts, dtype=np.uint64) * np.uint64(CHUNK_BYTES // parts)
        address = (columns.address[rows][:, None] + offsets).ravel()
        page_heat = _part_rates(columns, rates, rows, parts).ravel() / (CHUNK_PAGES // parts)
        pages = self._pages(columns, rows, parts).reshape(-1, self._tiers)
        return HeatSummary(
            process=heat.processes[slot],
            target=target,
            bin_bytes=CHUNK_BYTES // parts,
            address=address[starts],
            heat=(np.add.reduceat(page_heat, starts) / bins).astype(np.float32),
            pages=np.add.reduceat(pages, starts, axis=0).astype(np.int32),
        )

    def _pages(
        self, columns: ChunkColumns, rows: npt.NDArray[np.intp], parts: int
    ) -> npt.NDArray[np.int64]:
        """Return resident pages of parts of chunks by tier, shape ``(chunks, parts, tiers)``."""
        pages = np.zeros((len(rows), parts, self._tiers), np.int64)
        detail = columns.page_slot[rows]
        paged, whole = np.flatnonzero(detail >= 0), np.flatnonzero(detail < 0)
        tier = self._tier[columns.node[detail[paged]].view(np.uint8)].reshape(len(paged), parts, -1)
        for t in range(self._tiers):
            pages[paged, :, t] = np.count_nonzero(tier == t, axis=2)
        tier = self._tier[columns.chunk_node[rows[whole]].view(np.uint8)]
        known = whole[tier >= 0]
        # Where in a coarse chunk its pages lie is not known: each part has as many as another.
        resident = columns.resident[rows[known], None]
        pages[known, :, tier[tier >= 0]] = np.diff(resident * np.arange(parts + 1) // parts)
        return pages


def _parts(chunks: int) -> int:
    """Return into how many bins a chunk of a process is divided: a power of 2, at most 512."""
    return 1 << min(MAX_BINS // chunks, CHUNK_PAGES).bit_length() - 1 if chunks < MAX_BINS else 1


def _part_rates(
    columns: ChunkColumns,
    rates: npt.NDArray[np.float64],
    rows: npt.NDArray[np.intp],
    parts: int,
) -> npt.NDArray[np.float64]:
    """Return accesses per second of parts of chunks, shape ``(chunks, parts)``.

    The pages of a chunk have its rate in proportion to their counts.
    """
    shares = np.full((len(rows), parts), 1 / parts)
    if parts > 1:
        slots = columns.page_slot[rows]
        paged = np.flatnonzero(slots >= 0)
        counts = columns.heat[slots[paged]] + columns.recent[slots[paged]]
        sums = counts.reshape(len(paged), parts, -1).sum(axis=2, dtype=np.float64)
        total = sums.sum(axis=1, keepdims=True)
        shares[paged] = np.divide(sums, total, out=shares[paged], where=total > 0)
    return shares * rates[rows, None]


def _json(summary: HeatSummary) -> str:
    """Return a summary as JSON, column by column: no dictionary of millions of numbers."""
    columns = {
        "bin": str((summary.address // np.uint64(summary.bin_bytes)).tolist()),
        "heat": f"[{','.join(map('{:.3g}'.format, summary.heat.tolist()))}]",
        "pages": str(summary.pages.tolist()),
    }
    head = {
        "pid": summary.process.pid,
        "start_ticks": summary.process.start_ticks,
        "target": summary.target,
        "bin_bytes": summary.bin_bytes,
    }
    rows = "".join(f',"{name}":{cells}' for name, cells in columns.items()).replace(" ", "")
    return json.dumps(head, separators=(",", ":"))[:-1] + rows + "}"
