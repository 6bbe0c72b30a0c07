# SPDX-License-Identifier: MIT
"""On which of a tier's nodes pages lie: near the CPUs that use them, spread where all CPUs do.

Policies choose tiers. Where a tier has several nodes, this chooses among them. An account has, for
each chunk of 2 MiB that was sampled, how many samples the CPUs of each node had. A page belongs on
the node of its tier with the lowest latency from those CPUs; of nodes that are equally near, to
within a tenth, on one by a hash of its address, in the ratio of the nodes' read bandwidths.

Moves of a policy go to these nodes as far as there is room. Pages that lie elsewhere move as all
pages do, if it saves more time than it costs (:mod:`hmd.policy.saving`): farther ones by the
difference in latency, those of equally near nodes by how much longer loads wait for the one than
for the other. So the skew between nodes costs no moves until requests queue, and each page moves
once. A node that is nearly full gives its coldest pages to one of its tier that is not.

The firmware's distances are relative latencies (ACPI, System Locality Information Table); measured
latencies of loads from near and far CPUs in the same tick correct them. Without a tier of several
nodes this costs less than a microsecond per tick; else 0.2 to 0.5 us per sample and per row of a
view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.units import HUGE_PAGE_BYTES, MOVE_NS, PAGE_BYTES, PAGE_MOVE_COST
from hmd.heat.counting import LOAD
from hmd.heat.rates import ANSCOMBE
from hmd.linux.process_table import ProcessTable
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Topology
from hmd.policy.latency import parallelism
from hmd.policy.nodes import Nodes, hashed, nodes_of
from hmd.policy.plan import MachineView, Plan, moves_of
from hmd.policy.saving import WEAR_COST, paying_pairs

if TYPE_CHECKING:
    from hmd.heat.table import HeatTable
    from hmd.heat.view import PageView

EQUAL: Final = 0.1
"""Latencies that differ by a smaller share count as equal."""
MIN_SAMPLES: Final = 4.0
"""Samples of a chunk from which it is known which CPUs use it."""
MAX_CHUNKS: Final = 1 << 17
"""Chunks with an account at most: those with most samples, 256 GiB in 3 MiB with two sockets."""

_NUMBER_BITS: Final = 44  # of a page: user addresses have at most 56 bits
_RETENTION: Final = 0.97
"""Share of an account that is left of it after a tick with samples."""
_MAX_SAMPLES: Final = 128.0
_FORGET: Final = 0.25
_QUEUE_RETENTION: Final = 0.5
"""So short that a node which is left no longer counts as busy after some ticks."""
_LINK_RETENTION: Final = 0.9
_MIN_LOADS: Final = 50.0
_WAITED: Final = 0.9
"""A load that took this share of its node's idle latency waited for it."""
_HOP_RANGE: Final = (0.1, 3.0)
"""Measured over stated latency of links between sockets, at least and at most."""
_CONFIDENCE: Final = 0.6
_SHARE_ERRORS: Final = 2.0
"""Standard errors of a chunk's shares by which a gain has to be certain."""
_MAX_HORIZON_TICKS: Final = 120.0
_SHARED: Final = -1
_UNKNOWN: Final = -2
_FULL: Final = 1 / 128
"""A node with a smaller share of its memory free is nearly full."""

Values = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Initiators(NamedTuple):
    """The nodes with CPUs: initiators, in order of id.

    ``of_cpu`` has the initiator of each CPU, -1 for none. ``idle_ns`` is the latency of each node
    by id, ``hop_ns``, shape ``(initiators, nodes)``, by how much longer its CPUs wait for a node
    than the nearest do. ``bandwidth`` is that of reads, or their sizes where one is not known.
    """

    of_cpu: Numbers
    idle_ns: Values
    hop_ns: Values
    bandwidth: Values


def initiators_of(topology: Topology) -> Initiators:
    """Return the initiators of a machine."""
    holders = [node for node in topology.nodes if node.cpus]
    cpus = [cpu for node in holders for cpu in node.cpus]
    of_cpu = np.full(max(cpus, default=-1) + 2, -1, np.int64)  # the last is for unknown CPUs
    idle_ns = np.array(topology.latency_ns, np.float64)
    distance = np.full((max(len(holders), 1), len(idle_ns)), 10.0)
    for row, holder in enumerate(holders):
        of_cpu[list(holder.cpus)] = row
        for node, hops in zip(topology.nodes, holder.distances, strict=False):
            distance[row, node.id] = hops
    bandwidth = np.zeros(len(idle_ns))
    known = all(node.read_bandwidth_mbps for node in topology.nodes)
    for node in topology.nodes:
        bandwidth[node.id] = (node.read_bandwidth_mbps or 0) if known else node.total_bytes
    hop_ns = idle_ns * (distance / distance.min(axis=0) - 1.0)
    return Initiators(of_cpu, idle_ns, hop_ns, bandwidth)


@dataclass(frozen=True, slots=True)
class _Targets:
    """Where chunks belong: rows of the account, and one for those without.

    ``wait_ns``, shape ``(rows, nodes)``, is what an access waits for each node without its queue,
    ``nearest``, ``(tiers, rows)``, the node of each tier on which a chunk belongs, or ``_SHARED``
    or ``_UNKNOWN``, ``seen`` its samples. ``queue_ns``, ``bandwidth``, ``tier`` and ``room`` are
    of nodes; ``keep`` of their pages stay free beyond the room. ``spread_ns``,
    ``(nodes, nodes)``, is by how much CPUs differ in what they gain by another node.
    """

    wait_ns: Values
    nearest: Numbers
    seen: Values
    queue_ns: Values
    bandwidth: Values
    tier: Numbers
    room: Numbers
    keep: Numbers
    spread_ns: Values

    def choose(
        self, at: Numbers, tier: Numbers, address: npt.NDArray[np.uint64], *, queued: bool = False
    ) -> Numbers:
        """Return the node of its tier on which each page belongs, -1 where that is not known.

        With queues as they are now, a node may be better that is farther and less busy.
        """
        want = self.nearest[tier, at]
        if queued:
            known = np.flatnonzero(want >= 0)
            wait = self.wait_ns[at[known]] + self.queue_ns
            want[known] = np.where(self.tier == tier[known, None], wait, np.inf).argmin(axis=1)
        for row in np.unique(tier[want == _SHARED]).tolist():
            pages = np.flatnonzero((want == _SHARED) & (tier == row))
            near = _near(self.wait_ns[at[pages]], self.tier == row)
            weight = np.cumsum(np.where(near, self.bandwidth, 0.0), axis=1)
            # Other digits than those by which a policy chooses tiers.
            part = hashed(address[pages]) * 1024.0 % 1.0
            want[pages] = (part[:, None] * weight[:, -1:] < weight).argmax(axis=1)
        return np.maximum(want, -1)


class Locality:
    """The account of which CPUs use which chunks, and the moves that follow."""

    def __init__(self) -> None:
        self._processes: tuple[ProcessId, ...] = ()
        self._since: dict[ProcessId, int] = {}
        self._topology: Topology | None = None
        self._initiators: Initiators | None = None
        self._clear(0, 0)

    def _clear(self, initiators: int, nodes: int) -> None:
        self._key, self._seen = np.empty(0, np.int64), np.empty((0, initiators))
        self._loads, self._waited_ns = np.zeros((2, initiators, nodes))
        self._pairs, self._longer_ns = np.zeros((2, initiators, nodes))

    def count(self, heat: HeatTable, topology: Topology) -> None:
        """Add the samples of the heat table's last update to the account."""
        if topology is not self._topology:
            self._follow(topology)
        machine, batch = self._initiators, heat.last_batch
        if machine is None:
            return
        if heat.processes != self._processes:
            self._renumber(heat.processes, heat.history.tick)
        weight = heat.counted.weight.astype(np.float64)
        last = len(machine.of_cpu) - 1
        row = machine.of_cpu[np.minimum(batch.cpu, last)]
        rows = np.flatnonzero((weight > 0) & (row >= 0))
        if not len(rows):
            return
        row, weight = row[rows], weight[rows]
        keys = _keys(batch.process[rows], batch.address[rows], HUGE_PAGE_BYTES)
        key, at = np.unique(keys, return_inverse=True)
        width = self._seen.shape[1]
        counted = np.bincount(at * width + row, weight / weight.mean(), len(key) * width)
        both = np.union1d(self._key, key)
        seen, new = np.zeros((2, len(both), width))
        new[np.searchsorted(both, key)] = counted.reshape(-1, width)
        # So bounded that threads which change sockets are noticed after as many samples.
        excess = np.maximum(self._seen.sum(axis=1, keepdims=True) / _MAX_SAMPLES, 1.0)
        seen[np.searchsorted(both, self._key)] = self._seen * _RETENTION / excess
        seen[_contradicted(seen, new)] = 0.0
        seen += new
        total = seen.sum(axis=1)
        least = _FORGET
        if len(both) > MAX_CHUNKS:
            least = max(least, float(np.partition(total, -MAX_CHUNKS)[-MAX_CHUNKS]))
        self._key, self._seen = both[total >= least], seen[total >= least]
        self._measure(machine, heat, rows, row)

    def improve(self, plan: Plan, pages: PageView, machine: MachineView) -> Plan:
        """Return a policy's plan with nearer nodes of the same tiers, and the moves within tiers.

        Without counted accesses, and where no tier has several nodes, the plan itself.
        """
        if self._initiators is None or not machine.counted:
            return plan
        targets = self._targets(self._initiators, nodes_of(machine, _FULL, 0))
        if len(plan):
            slots = ProcessTable(pages.processes).slots_of(plan.processes)[plan.process]
            tier = targets.tier[plan.to_node]
            rows = self._rows_of(slots, plan.address)
            want = targets.choose(rows, tier, plan.address, queued=True)
            plan = _retargeted(plan, want, targets.tier, targets.room)
        moves = _Exchange(self, targets, pages, machine, plan).plan()
        return Plan.joined((plan, moves)) if len(moves) else plan

    def _follow(self, topology: Topology) -> None:
        """Follow other nodes; the account is kept while the same nodes have CPUs."""
        before, kept = self._topology, (self._key, self._seen)
        self._topology, self._initiators = topology, None
        self._clear(0, 0)
        if all(len(ids) < 2 for ids in topology.tiers):
            return
        self._initiators = found = initiators_of(topology)
        self._clear(*found.hop_ns.shape)
        cpus = [[n.cpus for n in each.nodes if n.cpus] for each in (before, topology) if each]
        if cpus[0] == cpus[-1] and kept[1].shape[1] == self._seen.shape[1]:
            self._key, self._seen = kept

    def _renumber(self, processes: tuple[ProcessId, ...], tick: int) -> None:
        """Keep the chunks of processes that stay, under their new slots."""
        slots = ProcessTable(processes).slots_of(self._processes)
        self._processes = processes
        self._since = {each: self._since.get(each, tick) for each in processes}
        slot = slots[self._key >> _NUMBER_BITS] if len(self._key) else self._key
        key = (slot.astype(np.int64) << _NUMBER_BITS) | self._key & ((1 << _NUMBER_BITS) - 1)
        order = np.argsort(key)
        order = order[slot[order] >= 0]
        self._key, self._seen = key[order], self._seen[order]

    def _measure(self, machine: Initiators, heat: HeatTable, rows: Numbers, row: Numbers) -> None:
        """Add what loads waited for each node, by the CPUs that waited.

        And by how much longer than those of the nearest CPUs in the same tick: queues come and go.
        """
        batch, node = heat.last_batch, heat.counted.node[rows].astype(np.int64)
        latency_ns = batch.latency_ns[rows].astype(np.float64)
        known = (batch.kind[rows] == LOAD) & (node >= 0) & (node < len(machine.idle_ns))
        known &= latency_ns >= _WAITED * machine.idle_ns[np.where(known, node, 0)]
        cell = (row[known], node[known])
        loads, waited_ns = np.zeros((2, *self._loads.shape))
        np.add.at(loads, cell, 1.0)
        np.add.at(waited_ns, cell, latency_ns[known])
        near = (machine.hop_ns.argmin(axis=0), np.arange(len(machine.idle_ns)))
        mean, pairs = waited_ns / np.maximum(loads, 1.0), np.minimum(loads, loads[near])
        self._loads = self._loads * _QUEUE_RETENTION + loads
        self._waited_ns = self._waited_ns * _QUEUE_RETENTION + waited_ns
        if pairs[machine.hop_ns > 0].any():  # else links are as they were
            self._pairs = self._pairs * _LINK_RETENTION + pairs
            self._longer_ns = self._longer_ns * _LINK_RETENTION + pairs * (mean - mean[near])

    def _targets(self, nodes: Initiators, present: Nodes) -> _Targets:
        """Return where chunks belong now, with links between sockets as they were measured.

        Nodes that are not ``present`` are drained: no pages go there.
        """
        count = len(nodes.idle_ns)
        tier, room, keep = np.full(count, -1, np.int64), *np.zeros((2, count), np.int64)
        size = len(present.tier)
        tier[:size], room[:size], keep[:size] = present.tier, present.room, present.headroom
        hop, loads = nodes.hop_ns.copy(), self._loads
        for each in range(present.tiers):
            cells = (self._pairs >= _MIN_LOADS) & (hop > 0) & (tier == each)
            if cells.any():
                longer = self._longer_ns[cells].sum() / (self._pairs * hop)[cells].sum()
                hop[:, tier == each] *= np.clip(longer, *_HOP_RANGE)
        idle, total = nodes.idle_ns + hop, loads.sum(axis=0)
        queue = (self._waited_ns - loads * idle).sum(axis=0) / np.maximum(total, 1.0)
        queue = np.where(total >= _MIN_LOADS, np.maximum(queue, 0.0), 0.0)
        # The last row is for chunks without an account.
        seen = np.concatenate([self._seen, np.zeros((1, self._seen.shape[1]))])
        total = seen.sum(axis=1)
        share = np.full_like(seen, 1.0 / seen.shape[1])
        np.divide(seen, total[:, None], out=share, where=total[:, None] > 0)
        wait = share @ idle
        nearest = np.full((present.tiers + 1, len(wait)), _UNKNOWN, np.int64)
        for each in range(present.tiers):
            found = _near(wait, tier == each)
            belongs = np.where(found.sum(axis=1) > 1, _SHARED, found.argmax(axis=1))
            nearest[each] = np.where(total >= MIN_SAMPLES, belongs, _UNKNOWN)
        spread = np.ptp(idle[:, :, None] - idle[:, None, :], axis=0)
        return _Targets(wait, nearest, total, queue, nodes.bandwidth, tier, room, keep, spread)

    def horizons(self, pages: PageView) -> Values:
        """Return for how many ticks each process's CPUs are expected to use the same pages.

        As long as they have by now (Lindy's law), and no longer than heat is expected to last.
        """
        since = [self._since.get(each, pages.tick) for each in pages.processes]
        age = np.maximum(pages.tick - np.array(since, np.float64), 0.0) + 2.0
        return np.minimum(pages.heat_lifetime_ticks, np.minimum(age, _MAX_HORIZON_TICKS))

    def _rows_of(
        self, process: npt.NDArray[np.integer], address: npt.NDArray[np.uint64]
    ) -> Numbers:
        """Return the account's row of each page's chunk, one past the last where there is none."""
        none = len(self._key)
        if not (len(address) and none):
            return np.full(len(address), none)
        # Pages come in runs of one chunk.
        key = _keys(process, address, HUGE_PAGE_BYTES)
        start = np.flatnonzero(np.diff(key, prepend=key[0] - 1))
        first = key[start]
        at = np.minimum(np.searchsorted(self._key, first), none - 1)
        at = np.where((self._key[at] == first) & (first >= 0), at, none)
        return np.repeat(at, np.diff(start, append=len(key)))


def _contradicted(seen: Values, new: Values) -> Bools:
    """Return the rows whose new samples are of other nodes than those before.

    By half of all and the standard error of so few: threads have changed sockets.
    """
    total, count = seen.sum(axis=1), new.sum(axis=1)
    known = (total > 0) & (count > 0)
    share = seen / np.where(known, total, 1.0)[:, None]
    apart = np.abs(share - new / np.where(known, count, 1.0)[:, None]).sum(axis=1) / 2
    result: Bools = known & (apart > 0.5 + 1.0 / np.sqrt(np.maximum(count, 1.0)))
    return result


def _keys(process: npt.NDArray[np.integer], address: npt.NDArray[np.uint64], size: int) -> Numbers:
    """Return a number for the block of so many bytes at each address of a process's slot."""
    number = (address // np.uint64(size)).astype(np.int64)
    keys: Numbers = (process.astype(np.int64) << _NUMBER_BITS) | number
    return keys


def _near(wait: Values, of_tier: Bools) -> Bools:
    """Return which nodes of a tier are near, by rows of what an access waits for each node."""
    wait = np.where(of_tier, wait, np.inf)
    near: Bools = wait <= wait.min(axis=1)[:, None] * (1 + EQUAL)
    return near & of_tier


def _retargeted(plan: Plan, want: Numbers, tier: Numbers, room: Numbers) -> Plan:
    """Return the plan with moves to the nodes that pages want, within their tier and its room.

    Moves of one size in one phase exchange their targets; others take room that is free before the
    plan. ``want`` is -1 where any node will do.
    """
    target = plan.to_node.astype(np.int64)
    other = (want >= 0) & (want != target)
    if not other.any():
        return plan
    size = plan.pages.astype(np.int64)
    group = (plan.phase.astype(np.int64) * len(tier) + tier[target]) * (size.max() + 1) + size
    order = np.argsort(group, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        if other[rows].any():
            target[rows] = _permuted(target[rows], want[rows])
    free = room - np.bincount(target, size, len(room)).astype(np.int64)
    left = np.flatnonzero((want >= 0) & (want != target))
    pairs, pair_of = np.unique(target[left] * len(room) + want[left], return_inverse=True)
    for number, pair in enumerate(pairs.tolist()):
        source, node = divmod(pair, len(room))
        rows = left[pair_of == number]
        total = np.cumsum(size[rows])
        rows = rows[total <= free[node]]
        moved = int(size[rows].sum())
        free[node] -= moved
        free[source] += moved
        target[rows] = node
    return plan.to(target.astype(np.int16))


def _permuted(target: Numbers, want: Numbers) -> Numbers:
    """Return the same targets in another order: as many as can be where they are wanted."""
    left = np.bincount(target)
    result = np.full_like(target, -1)
    for node in range(len(left)):
        rows = np.flatnonzero(want == node)[: left[node]]
        result[rows] = node
        left[node] -= len(rows)
    result[result < 0] = np.repeat(np.arange(len(left)), left)
    return result


class _Exchange:
    """Moves between nodes of one tier, of pages that no other move of the tick is for."""

    def __init__(
        self,
        account: Locality,
        targets: _Targets,
        pages: PageView,
        machine: MachineView,
        plan: Plan,
    ) -> None:
        self._pages, self._targets, self._tier = pages, targets, targets.tier
        several = np.append(np.bincount(self._tier[self._tier >= 0]) > 1, False)
        rows = np.flatnonzero(several[pages.tier])
        process, address = pages.process[rows], pages.address[rows]
        if len(plan):
            slots = ProcessTable(pages.processes).slots_of(plan.processes)[plan.process]
            moves = _keys(slots, plan.address, PAGE_BYTES)
            free = ~np.isin(_keys(process, address, PAGE_BYTES), moves)
            rows, process, address = rows[free], process[free], address[free]
        self._rows, self._at = rows, account._rows_of(process, address)
        self._here = pages.node[rows].astype(np.int64)
        self._size = pages.size[rows].astype(np.int64)
        seconds = np.maximum(
            account.horizons(pages) * machine.tick_s - machine.move_delay_s, 0.0
        ) / parallelism(pages, machine)
        self._accesses = pages.rate[rows] * seconds[process]
        size = plan.pages.astype(np.int64)
        self._budget = machine.budget_bytes // PAGE_BYTES - int(size.sum())
        came = np.bincount(plan.to_node, size, len(targets.room)).astype(np.int64)
        self._room, self._keep = targets.room - came, targets.keep
        self._want = self._wanted(pages.tier[rows].astype(np.int64), address)
        self._parts: list[tuple[Numbers, Numbers]] = []

    def _wanted(self, tier: Numbers, address: npt.NDArray[np.uint64]) -> Numbers:
        """Return the node on which each page belongs, where it lies if that is as good."""
        targets = self._targets
        want = targets.nearest[tier, self._at]
        for row in np.unique(tier).tolist():
            queue = targets.queue_ns[self._tier == row]
            if queue.max() - queue.min() > EQUAL * targets.wait_ns[-1, self._tier == row].min():
                pages = np.flatnonzero((want == _SHARED) & (tier == row))
                want[pages] = targets.choose(self._at[pages], tier[pages], address[pages])
        return np.where(want < 0, self._here, want)

    def _profits(self, rows: Numbers) -> Values:
        """Return what moves to where pages belong save more than they cost, in ns."""
        targets, at, here, want = self._targets, self._at[rows], self._here[rows], self._want[rows]
        wait, queue = targets.wait_ns, targets.queue_ns
        now, then, seen = wait[at, here], wait[at, want], targets.seen[at]
        error = _SHARE_ERRORS / 2 / np.sqrt(np.maximum(seen, 1.0)) * targets.spread_ns[here, want]
        gain = np.where(now > then * (1 + EQUAL), now - then - error, 0.0)
        gain += queue[here] - queue[want]
        gain = np.where(gain > EQUAL * now, gain, 0.0)
        # As rates of single pages scatter, the samples of their chunk say how certain a gain is.
        root = np.maximum(np.sqrt(seen + ANSCOMBE) - _CONFIDENCE / 2, 0.0)
        certain = np.minimum(root * root / np.maximum(seen, 1.0), 1.0)
        profit: Values = self._accesses[rows] * certain * gain - self._costs(rows)
        return profit

    def _costs(self, rows: Numbers) -> Values:
        wear = self._pages.wear[self._rows[rows]]
        costs: Values = MOVE_NS * PAGE_MOVE_COST * WEAR_COST[wear]
        return costs

    def plan(self) -> Plan:
        """Return the moves, in phases that each find room."""
        self._relieve()
        rows = np.flatnonzero((self._want != self._here) & (self._here >= 0))
        profit = self._profits(rows)
        rows, profit = rows[profit > 0], profit[profit > 0]
        here, want = self._here[rows], self._want[rows]
        for source, target in sorted(set(zip(here.tolist(), want.tolist(), strict=True))):
            pair = (here == source) & (want == target)
            self._exchange(rows[pair], profit[pair], source, target)
        if not self._parts:
            return Plan.empty(self._pages.processes)
        rows, targets = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        length = [len(part) for part, _ in self._parts]
        phase = np.repeat(np.arange(len(length), dtype=np.int32), length)
        taken = self._pages.take(self._rows[rows])
        return moves_of(self._pages.processes, taken, np.arange(len(rows)), targets, phase)

    def _loss(self, rows: Numbers, source: int, target: int) -> Values:
        """Return what pages lose on another node, with their moves; below 0 where they gain."""
        wait = self._targets.wait_ns[:, target] - self._targets.wait_ns[:, source]
        loss: Values = self._accesses[rows] * wait[self._at[rows]] + self._costs(rows)
        return loss

    def _relieve(self) -> None:
        """Move the coldest pages of nearly full nodes to the node of their tier with most room."""
        for source in np.flatnonzero((self._room < 0) & (self._keep > 0)).tolist():
            same = np.flatnonzero(self._tier == self._tier[source])
            target = int(same[self._room[same].argmax()])
            count = min(-int(self._room[source]), int(self._room[target]), self._budget)
            rows = np.flatnonzero(self._here == source)
            rows = rows[np.argsort(self._loss(rows, source, target), kind="stable")]
            self._add(rows[np.cumsum(self._size[rows]) <= count], source, target)

    def _exchange(self, rows: Numbers, profit: Values, source: int, target: int) -> None:
        """Move what pays from one node to another, and the pages that make its room back."""
        left = self._here[rows] >= 0  # some have made room for others
        rows, profit = rows[left], profit[left]
        order = np.argsort(-profit, kind="stable")
        rows, profit = rows[order], profit[order]
        room = max(int(self._room[target]), 0)
        total = np.cumsum(self._size[rows])
        # Beyond the room, each page takes another one's move too.
        fits = total + np.maximum(total - room, 0) <= self._budget
        rows, profit = rows[fits], profit[fits]
        back = np.flatnonzero(self._here == target)
        promoted, displaced = paying_pairs(
            profit,
            self._size[rows],
            self._loss(back, target, source),
            self._size[back],
            room,
        )
        rows, back = rows[promoted], back[displaced]
        block = max(int(self._room[source]), int(self._keep[source]) // 2, 1)
        turn = np.maximum(np.cumsum(self._size[rows]) - room, 0) // block
        turn_back = np.maximum(np.cumsum(self._size[back]) - 1, 0) // block
        for number in np.unique(np.concatenate([turn, turn_back])).tolist():
            self._add(back[turn_back == number], target, source)
            self._add(rows[turn == number], source, target)

    def _add(self, rows: Numbers, source: int, target: int) -> None:
        """Add moves as the next phase."""
        if not len(rows):
            return
        pages = int(self._size[rows].sum())
        self._parts.append((rows, np.full(len(rows), target)))
        self._here[rows] = -1  # those of no node: they move once
        self._room[source] += pages
        self._room[target] -= pages
        self._budget -= pages
