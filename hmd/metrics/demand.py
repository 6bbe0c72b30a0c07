# SPDX-License-Identifier: MIT
"""How much fast memory targets need, and what more or less of it would do to their runtime.

Takes the heat of all known pages, sorted into bins an eighth of a doubling wide; gives for each
target, and for all together, the bytes that hold most accesses, and the runtime with other sizes of
the fastest tier over that of now.

A page in fast memory saves its accesses per second times the difference in latency, divided by the
overlap of misses (:mod:`hmd.policy.latency`), of the CPU time that the target's processes use.
Prefetched lines and stores wait less than that: where they are many, less is saved. About 10 ns per
page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.heat.chunks import DEMAND_BINS, DemandCounts, count_demand
from hmd.heat.table import HeatTable
from hmd.linux.topology import Topology
from hmd.metrics.counters import OTHER
from hmd.metrics.status import FAST_STEPS, MAX_TARGETS, NEEDED_SHARES, Demand
from hmd.policy.latency import min_parallelism

_MIN_RUNTIME: Final = 0.05
"""No change of memory makes a program faster than this: the model ends before."""

_MIN_RATE: Final = 1e-9

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TargetDemands:
    """The demand of each target by name, and that of all targets together."""

    by_target: Mapping[str, Demand] = field(default_factory=dict)
    of_all: Demand | None = None


def measure_demand(
    heat: HeatTable,
    topology: Topology,
    targets: Sequence[str],
    cpus: Values,
    fast_shares: Mapping[str, float | None],
) -> TargetDemands:
    """Return the demand of targets now.

    ``targets`` names the target of each process of the table, ``cpus`` how many CPUs it keeps busy,
    NaN where that is not known; both have the shape ``(processes,)``. ``fast_shares`` are the
    shares of targets' recent samples that the fastest tier served. Pages were moved there since
    they looked hot, some by chance: by their heat the tier would serve more than it does.
    """
    rows: dict[str, int] = {}
    for name in targets:
        rows.setdefault(name if name in rows or len(rows) < MAX_TARGETS else OTHER, len(rows))
    if not rows or not heat.chunks.used:
        return TargetDemands()
    names = list(rows)
    group = np.array([rows[name if name in rows else OTHER] for name in targets], np.int32)
    counts = DemandCounts._make(
        np.zeros((len(names), columns), dtype)
        for columns, dtype in (
            (DEMAND_BINS, np.int64),
            (DEMAND_BINS, np.float64),
            (len(topology.latency_ns), np.int64),
            (len(topology.latency_ns), np.float64),
        )
    )
    count_demand(heat.chunks.used, heat.chunks.columns, heat.rates(), group, counts)
    busy = np.zeros(len(names))
    np.add.at(busy, group, cpus)  # NaN where one of them is not known
    # Rates of pages have the priority of their target, the rate of a process has not.
    rate = np.bincount(group, heat.history.rate, len(names))
    weighted = counts.accesses.sum(axis=1)
    scale = np.divide(rate, weighted, out=np.zeros_like(rate), where=weighted > 0)
    waits = _waits(topology, heat.loaded_latency_ns, counts, scale, busy)
    for row, name in enumerate(names):
        if (share := fast_shares.get(name)) is not None:
            waits.fast_accesses[row] = share * rate[row]
    by_target = {
        name: _demand(counts.pages[row], counts.accesses[row] * scale[row], waits.of(row))
        for row, name in enumerate(names)
    }
    return TargetDemands(by_target, _demand_of_all(counts, scale, waits))


@dataclass(frozen=True, slots=True)
class _Waits:
    """Of each group: how long an access waits longer in slow memory, in CPU seconds; busy CPUs.

    ``fast_accesses`` per second are served by the fastest tier now, from ``fast_pages``.
    """

    longer_s: Values
    busy_cpus: Values
    fast_accesses: Values
    fast_pages: npt.NDArray[np.int64]

    def of(self, row: int) -> _Waits:
        """Return those of one group."""
        rows = slice(row, row + 1)
        return _Waits(
            self.longer_s[rows],
            self.busy_cpus[rows],
            self.fast_accesses[rows],
            self.fast_pages[rows],
        )


def _waits(
    topology: Topology,
    loaded_ns: Values,
    counts: DemandCounts,
    scale: Values,
    busy: Values,
) -> _Waits:
    """Return what accesses wait, by the latencies of nodes as they are now."""
    latency_ns = np.array(topology.latency_ns, np.float64)
    loaded = loaded_ns[: len(latency_ns)]
    latency_ns[: len(loaded)] = np.maximum(latency_ns[: len(loaded)], loaded)
    fast = np.isin(np.arange(len(latency_ns)), topology.tiers[0])
    accesses = counts.node_accesses * scale[:, None]
    slow = [node for tier in topology.tiers[1:] for node in tier]
    slow_ns = float(latency_ns[slow].mean()) if slow else np.nan
    longer_ns = slow_ns - float(latency_ns[fast].mean())
    waiting_s = (accesses * latency_ns).sum(axis=1) * 1e-9
    shared = np.where(busy > 0, min_parallelism(waiting_s, busy), 1.0)
    return _Waits(
        max(longer_ns, 0.0) * 1e-9 / shared if slow else np.full(len(busy), np.nan),
        busy,
        accesses[:, fast].sum(axis=1),
        counts.node_pages[:, fast].sum(axis=1),
    )


def _demand(pages: npt.NDArray[np.int64], accesses: Values, waits: _Waits) -> Demand:
    """Return the demand of one group, of its pages and accesses by bin."""
    held = np.append(0.0, np.cumsum(pages[::-1]))
    served = np.append(0.0, np.cumsum(accesses[::-1]))
    needed = np.interp(np.array(NEEDED_SHARES) * served[-1], served, held)
    runtime: list[float] = []
    longer_s, cpus = float(waits.longer_s[0]), float(waits.busy_cpus[0])
    if np.isfinite(longer_s) and cpus > 0:
        sizes = np.array(FAST_STEPS) * waits.fast_pages[0]
        fewer = waits.fast_accesses[0] - _served(sizes, held, served, waits)
        runtime = np.maximum(1 + fewer * longer_s / cpus, _MIN_RUNTIME).tolist()
    return Demand(tuple((np.ceil(needed).astype(np.int64) * PAGE_BYTES).tolist()), tuple(runtime))


def _served(sizes: Values, held: Values, served: Values, waits: _Waits) -> Values:
    """Return accesses per second that the fastest tier would serve with these sizes, in pages.

    ``served`` by the hottest ``held`` pages, by their heat. What the tier serves now shows how far
    heat is right, on both sides of its present size.
    """
    by_heat = np.interp(sizes, held, served)
    now, total = float(np.interp(waits.fast_pages[0], held, served)), float(served[-1])
    known = float(waits.fast_accesses[0])
    within = known * by_heat / max(now, _MIN_RATE)
    beyond = known + (total - known) * (by_heat - now) / max(total - now, _MIN_RATE)
    return np.where(sizes <= waits.fast_pages[0], within, beyond)


def _demand_of_all(counts: DemandCounts, scale: Values, waits: _Waits) -> Demand:
    """Return the demand of all groups: those pages first that save most CPU time."""
    pages, accesses = counts.pages.ravel(), (counts.accesses * scale[:, None]).ravel()
    needed = _demand(*_falling(pages, accesses), waits.of(0)).needed_bytes
    known = np.isfinite(waits.longer_s) & (waits.busy_cpus > 0)
    if not known.all():
        return Demand(needed, ())
    saved_s = (counts.accesses * (scale * waits.longer_s)[:, None]).ravel()
    together = _Waits(
        np.ones(1),
        np.array([waits.busy_cpus.sum()]),
        np.array([(waits.fast_accesses * waits.longer_s).sum()]),
        np.array([waits.fast_pages.sum()]),
    )
    return Demand(needed, _demand(*_falling(pages, saved_s), together).runtime)


def _falling(pages: npt.NDArray[np.int64], value: Values) -> tuple[npt.NDArray[np.int64], Values]:
    """Return cells of pages and their value, the cell with the most value per page last."""
    filled = np.flatnonzero(pages)
    order = filled[np.argsort(value[filled] / pages[filled], kind="stable")]
    return pages[order], value[order]
