# SPDX-License-Identifier: MIT
"""How much fast memory targets need, and what more or less of it would do to their runtime.

Takes the heat of all known pages, sorted into bins an eighth of a doubling wide; gives for each
target, and for all together, the bytes that hold most accesses, and the runtime with other sizes of
the fastest tier over that of now. About 10 ns per page.

Of the size, what is kept free for allocations stays as large as now. How much nearer to the hottest
pages the tier is now than to a random choice, it is with another size too. Waits for memory grow
with the share of loads that the fastest tier does not serve: the fewer of them are slow, the more,
as misses that overlap wait for the slowest of them, and in proportion where several slow ones are
under way at once. Moves cost as much as there are pages to exchange.

How long the CPUs wait is counted where it can be (:mod:`hmd.daemon.memory_waits`). Elsewhere, loads
are taken to wait for a part of their latency, and neither stores nor streams to wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.units import MOVE_NS, PAGE_BYTES, PAGE_MOVE_COST
from hmd.heat.chunks import DEMAND_BINS, DemandCounts, count_demand
from hmd.heat.table import HeatTable
from hmd.linux.topology import Topology
from hmd.metrics.counters import OTHER, TargetUse
from hmd.metrics.status import FAST_STEPS, MAX_TARGETS, NEEDED_SHARES, Demand

_MIN_RUNTIME: Final = 0.05
"""No change of memory makes a program faster than this: the model ends before."""
_HIDDEN_NS: Final = 40.0
"""Part of a miss that a core hides: it goes on until its reorder window is full."""
_MAX_GROUPED: Final = 4.0
"""Largest exponent on the share of loads that the fastest tier serves, where loads overlap."""
_IN_PROPORTION: Final = 0.65
"""Share of the waits that are in proportion to slow loads, where one or more are under way."""
_WAITED, _MAX_WAITS = 0.7, 0.6
"""Where waits are not counted: share of their latency that loads wait; most of the CPU time."""
_MAX_MOVES: Final = 0.5
"""Share of the CPU time that moves take, at most."""
_MAX_KEPT_SHARE, _MIN_KEPT_PAGES = 1 / 8, 1024
"""Free pages of the fastest tier beyond both are not kept for allocations, but left over."""
_MIN_GAIN: Final = 0.02
"""Where heat serves a lesser share more than a random choice does, it tells nothing of a policy."""

_MIN_RATE: Final = 1e-12

Values = npt.NDArray[np.float64]


class Waited(NamedTuple):
    """CPU seconds per second that a target uses, and the share of them that it waits for memory."""

    cpus: float
    share: float


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
    uses: Mapping[str, TargetUse],
    free_pages: int = 0,
    waited: Mapping[str, Waited] | None = None,
) -> TargetDemands:
    """Return the demand of targets now.

    ``targets`` names the target of each process of the table, ``cpus`` how many CPUs it keeps busy,
    NaN where that is not known; both have the shape ``(processes,)``. ``uses`` say what targets do,
    ``waited`` how long those wait whose waits are counted; ``free_pages`` of the fastest tier.
    """
    rows: dict[str, int] = {}
    for name in targets:
        rows.setdefault(name if name in rows or len(rows) < MAX_TARGETS else OTHER, len(rows))
    if not rows or not heat.chunks.used:
        return TargetDemands()
    group = np.array([rows[name if name in rows else OTHER] for name in targets], np.int32)
    counts = DemandCounts._make(
        np.zeros((len(rows), columns), dtype)
        for columns, dtype in (
            (DEMAND_BINS, np.int64),
            (DEMAND_BINS, np.float64),
            (len(topology.latency_ns), np.int64),
            (len(topology.latency_ns), np.float64),
        )
    )
    count_demand(heat.chunks.used, heat.chunks.columns, heat.rates(), group, counts)
    busy = np.zeros(len(rows))
    np.add.at(busy, group, cpus)  # NaN where one of them is not known
    # Rates of pages have the priority of their target, the rate of a process has not.
    rate = np.bincount(group, heat.history.rate, len(rows))
    weighted = counts.accesses.sum(axis=1)
    scale = np.divide(rate, weighted, out=np.zeros_like(rate), where=weighted > 0)
    fast = counts.node_pages[:, list(topology.tiers[0])].sum(axis=1)
    free = free_pages * fast / max(int(fast.sum()), 1)
    latency_s = _latencies_s(topology)
    groups = {
        name: _Group._make(
            (
                counts.pages[row],
                counts.accesses[row] * scale[row],
                *_fast(int(fast[row]), float(free[row]), int(counts.pages[row].sum())),
                *_waits(uses.get(name), float(busy[row]), (waited or {}).get(name), latency_s),
            )
        )
        for name, row in rows.items()
    }
    by_target = {name: _demand(each, latency_s) for name, each in groups.items()}
    return TargetDemands(by_target, _demand_of_all(list(groups.values()), latency_s))


def _latencies_s(topology: Topology) -> Values:
    """Return what a load waits in the fastest tier and in slower ones, NaN where there are none."""
    latency_ns, fast = np.array(topology.latency_ns, np.float64), list(topology.tiers[0])
    slow = [node for tier in topology.tiers[1:] for node in tier]
    fast_ns = float(latency_ns[fast].mean())
    slow_ns = max(float(latency_ns[slow].mean()), fast_ns) if slow else np.nan
    return (np.array([fast_ns, slow_ns]) - min(_HIDDEN_NS, fast_ns / 2)) * 1e-9


class _Group(NamedTuple):
    """A target, or all: pages and accesses by heat, the hottest last, and what it does per second.

    ``fast_pages`` are in the fastest tier; it has ``size`` with what is free for the group, of
    which ``kept`` stays free at any size. Of the CPU seconds ``cpus``, the group waits for
    ``loads``, one after the other ``in_a_row_s``, and for ``others``, by its moves and in queues of
    memory; these are by tier, the fastest and all others, shape ``(2,)``.
    """

    pages: npt.NDArray[np.int64]
    accesses: Values
    fast_pages: float
    size: float
    kept: float
    cpus: float
    in_a_row_s: float
    waits_s: float
    queues_s: float
    moves_s: float
    loads: Values
    others: Values


def _fast(fast: int, free: float, resident: int) -> tuple[float, float, float]:
    """Return ``fast_pages``, ``size`` and ``kept`` of a group."""
    if fast >= resident:
        return fast, fast + free, 0.0
    kept = min(free, max(_MAX_KEPT_SHARE * (fast + free), _MIN_KEPT_PAGES))
    return fast, fast + kept, kept


def _waits(
    use: TargetUse | None, cpus: float, waited: Waited | None, latency_s: Values
) -> tuple[float, float, float, float, float, Values, Values]:
    """Return the fields of a group from ``cpus`` on."""
    use = use or TargetUse(np.zeros(2), np.zeros(2), 0.0)
    loads, accesses = (np.array([n[0], n[1:-1].sum()]) for n in (use.loads, use.accesses))
    in_a_row_s = float(np.nan_to_num(loads @ latency_s))
    if waited is None:
        waits_s, queues_s = min(_WAITED * in_a_row_s, _MAX_WAITS * cpus), 0.0
    else:
        cpus = waited.cpus  # by the clock that waits have
        waits_s = min(waited.share * cpus, in_a_row_s)
        queues_s = waited.share * cpus - waits_s
    moves_s = min(use.moved_pages * MOVE_NS * PAGE_MOVE_COST * 1e-9, _MAX_MOVES * cpus)
    others = np.maximum(accesses - loads, 0.0)
    return cpus, in_a_row_s, waits_s, queues_s, moves_s, loads, others


def _demand(group: _Group, latency_s: Values) -> Demand:
    """Return the demand of one group."""
    held = np.append(0.0, np.cumsum(group.pages[::-1]))
    served = np.append(0.0, np.cumsum(group.accesses[::-1]))
    served /= max(float(served[-1]), _MIN_RATE)
    needed = np.ceil(np.interp(np.array(NEEDED_SHARES), served, held)).astype(np.int64)
    needed_bytes = tuple((needed * PAGE_BYTES).tolist())
    if not (np.isfinite(latency_s[1]) and group.cpus > 0):
        return Demand(needed_bytes, ())
    steps = np.array(FAST_STEPS)
    pages = np.where(steps == 1, group.fast_pages, steps * group.size - group.kept)
    part = np.clip(np.append(pages, group.fast_pages) / max(held[-1], 1.0), 0.0, 1.0)
    gain = np.interp(part * held[-1], held, served) - part
    less = 1 - latency_s[0] / latency_s[1]
    more_s = np.zeros(len(steps))
    for now_s, counted, in_a_row_s in (
        (group.waits_s, group.loads, group.in_a_row_s),
        (group.queues_s, group.others, group.queues_s),
    ):
        if now_s > 0 and (total := float(counted.sum())) > 0:
            fast = _served(part, gain, float(counted[0]) / total)
            waits = 1 - less * _not_slow(fast, in_a_row_s / now_s, less)
            more_s += now_s * (waits[:-1] / waits[-1] - 1)
    exchanged = part * (1 - part)
    more_s += group.moves_s * (np.minimum(exchanged[:-1] / max(exchanged[-1], 1e-9), 1.0) - 1)
    return Demand(needed_bytes, tuple(np.maximum(1 + more_s / group.cpus, _MIN_RUNTIME).tolist()))


def _not_slow(fast: Values, overlap: float, less: float) -> Values:
    """Return the share of waits that are not for slow loads, by the share of loads that are fast.

    ``fast`` ends with the share of now, at which ``overlap`` loads wait at once: so many that, with
    one wait for the slowest of each group, groups have ``count``. A load is in a larger group than
    the mean one: of ``2 * count - 1``, if sizes vary as those of a geometric distribution.
    ``less`` is by how much a fast load waits less, as a share.
    """
    now, count = float(fast[-1]), overlap
    for _ in range(8):
        count = overlap * (1 - less * now**count) / (1 - less * now)
    alone = _IN_PROPORTION * min((1 - now) * overlap, 1.0)
    grouped: Values = fast ** min(2 * count - 1, _MAX_GROUPED)
    return alone * fast + (1 - alone) * grouped


def _served(part: Values, gain: Values, known: float) -> Values:
    """Return the share of accesses that the fastest tier serves with a ``part`` of all pages.

    As large a part of accesses if pages are chosen at random, and ``gain`` more if they are the
    hottest. The policy gets as much of that gain as now, where it serves ``known`` with the last
    part; what neither explains fades towards no fast memory, and towards nothing else.
    """
    now = part[-1]
    reached = float(np.clip((known - now) / gain[-1], 0, 1)) if gain[-1] > _MIN_GAIN else 1.0
    rest = known - now - reached * gain[-1]
    fading = np.where(part <= now, part / max(now, 1e-9), (1 - part) / max(1 - now, 1e-9))
    return np.asarray(np.clip(part + reached * gain + rest * fading, 0.0, 1.0))


def _demand_of_all(groups: Sequence[_Group], latency_s: Values) -> Demand:
    """Return the demand of all groups: those pages first that save most CPU time."""
    waited = [each.waits_s / max(each.in_a_row_s, _MIN_RATE) for each in groups]
    by_wait = [
        each.accesses * (part * each.loads.sum() / max(each.accesses.sum(), _MIN_RATE))
        for part, each in zip(waited, groups, strict=True)
    ]
    sums = [sum(getattr(each, name) for each in groups) for name in _Group._fields[2:10]]
    loads = np.sum([n * each.loads for n, each in zip(waited, groups, strict=True)], axis=0)
    sums += [loads, np.sum([each.others for each in groups], axis=0)]
    pages = np.concatenate([each.pages for each in groups])
    needed, runtime = (
        _demand(_Group(*_falling(pages, np.concatenate(value)), *sums), latency_s)
        for value in ([each.accesses for each in groups], by_wait)
    )
    return Demand(needed.needed_bytes, runtime.runtime)


def _falling(pages: npt.NDArray[np.int64], value: Values) -> tuple[npt.NDArray[np.int64], Values]:
    """Return cells of pages and their value, the cell with the most value per page last."""
    filled = np.flatnonzero(pages)
    order = filled[np.argsort(value[filled] / pages[filled], kind="stable")]
    return pages[order], value[order]
