"""The default policy: fill the fast tiers, less headroom, with the hottest pages that fit.

Takes rates per page and the machine, gives a plan; about 30 ns a tracked page and 0.3 µs a move.
The threshold between hot and cold comes from the histogram of heat and the room there is, never
from a setting (as in Lee et al., "MEMTIS", SOSP 2023), so that it holds for any program and any
machine. Any number of tiers: what does not fit a tier competes for the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.decide.choice import choose, collect
from hmd.decide.order import arrange
from hmd.decide.plan import MachineView, Plan
from hmd.decide.rounds import in_rounds
from hmd.heat.layout import CHUNK_PAGES, PAGE_BYTES
from hmd.heat.table import HeatTable, Rates


@dataclass(frozen=True, slots=True)
class Settings:
    """How the histogram policy decides.

    ``headroom_fraction`` of a node's memory, but at least ``headroom_bytes``, stays free on every
    tier but the last, where only ``headroom_bytes`` do, beside what the kernel keeps for itself:
    for new pages of the programs. Pages are demoted for it once less than half is left.
    ``hysteresis``: how many times hotter a page must be than the one that it displaces.
    ``confidence``: how sure of that, in standard deviations of each page's heat.
    ``samples_min``: samples that a page must rest on before it is promoted.
    ``worth_fraction``: a page colder than this fraction of the mean of the faster tier's pages may
    fill free room there, but displaces none: it would cost a swap and bring next to nothing.
    """

    headroom_fraction: float = 0.02
    headroom_bytes: int = 4 << 20
    hysteresis: float = 1.5
    confidence: float = 1.0
    samples_min: float = 2.0
    worth_fraction: float = 0.1


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The machine as arrays by node id; ids without memory have tier -1."""

    tier: npt.NDArray[np.int64]
    room: npt.NDArray[np.int64]
    headroom: npt.NDArray[np.int64]
    near: npt.NDArray[np.int64]
    tiers: int


class Histogram:
    """The hottest set that fits, by histogram."""

    name = "histogram"

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()

    def plan(self, heat: HeatTable, machine: MachineView) -> Plan:
        """Return the moves to make now; an empty plan where nothing pays."""
        nodes = self._nodes(machine)
        if nodes.tiers < 2 or not heat.chunks.used or machine.budget_bytes < PAGE_BYTES:
            return Plan.empty(heat.processes)
        movable, _ = heat.resident_pages(len(nodes.tier))
        holds = movable.sum(axis=0) + nodes.room
        capacity = _by_tier(nodes, holds)
        relieve = _by_tier(nodes, nodes.room) < -_by_tier(nodes, nodes.headroom) / 2
        rates = heat.rates()
        wanted = np.empty((heat.chunks.used, CHUNK_PAGES), np.int8)
        key = np.empty((heat.chunks.used, CHUNK_PAGES), np.float32)
        served = np.zeros(nodes.tiers, np.float64)
        columns = heat.chunks.columns
        risers = choose(
            heat.chunks.used,
            columns.huge,
            columns.node,
            columns.wear,
            rates.rate,
            rates.support,
            nodes.tier,
            capacity,
            self.settings.confidence,
            self.settings.hysteresis,
            self.settings.samples_min,
            wanted,
            key,
            served,
        )
        if not risers and not relieve[:-1].any():
            return Plan.empty(heat.processes)
        held = np.maximum(_by_tier(nodes, movable.sum(axis=0)), 1)
        worth = self.settings.worth_fraction * served / held
        return _arranged(heat, machine, nodes, relieve, rates, wanted, key, worth)

    def _nodes(self, machine: MachineView) -> _Nodes:
        """Return the machine's nodes as arrays."""
        topology, settings = machine.topology, self.settings
        ranks = sorted({node.tier for node in topology.nodes})
        size = max((node.id for node in topology.nodes), default=-1) + 1
        tier = np.full(size, -1, np.int64)
        room, headroom = np.zeros(size, np.int64), np.zeros(size, np.int64)
        distance = np.full((size, size), np.iinfo(np.int64).max)
        for node in topology.nodes:
            tier[node.id] = ranks.index(node.tier)
            for other, hops in zip(topology.nodes, node.distances, strict=False):
                distance[node.id, other.id] = hops
        for memory in machine.memory:
            if memory.node >= size or tier[memory.node] < 0:
                continue
            keep = settings.headroom_bytes
            if tier[memory.node] < len(ranks) - 1:
                keep = max(keep, int(settings.headroom_fraction * memory.total_bytes))
            headroom[memory.node] = keep // PAGE_BYTES
            free_bytes = memory.free_bytes - memory.reserve_bytes
            room[memory.node] = (free_bytes - keep) // PAGE_BYTES
        near = np.argsort(distance, axis=1, kind="stable").astype(np.int64)
        return _Nodes(tier, room, headroom, near, len(ranks))


def _by_tier(nodes: _Nodes, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the sums of a column of nodes over each tier."""
    return np.array([values[nodes.tier == tier].sum() for tier in range(nodes.tiers)], np.int64)


def _arranged(
    heat: HeatTable,
    machine: MachineView,
    nodes: _Nodes,
    relieve: npt.NDArray[np.bool_],
    rates: Rates,
    wanted: npt.NDArray[np.int8],
    key: npt.NDArray[np.float32],
    worth: npt.NDArray[np.float64],
) -> Plan:
    """Return the plan that brings pages to the tiers where they are wanted."""
    columns = heat.chunks.columns
    page = _movers(heat, nodes, wanted)
    source = columns.node.reshape(-1)[page].astype(np.int64)
    here, goal = nodes.tier[source], wanted.reshape(-1)[page].astype(np.int64)
    heats = key.reshape(-1)[page]
    # Promotions by heat, hottest first; then what may go down, by tier, coldest first.
    rising = np.flatnonzero(goal < here)
    parts = [rising[_order(heats[rising], -1)]]
    for tier in range(nodes.tiers):
        falling = np.flatnonzero((goal > here) & (here == tier))
        parts.append(falling[_order(heats[falling], 1)])
    ordered = np.concatenate(parts)
    end = np.cumsum([len(part) for part in parts], dtype=np.int64)
    page, heats, source, goal = page[ordered], heats[ordered], source[ordered], goal[ordered]
    size = np.where(columns.huge[page // CHUNK_PAGES], CHUNK_PAGES, 1).astype(np.int64)
    moved, target = np.empty(len(page), np.int64), np.empty(len(page), np.int64)
    moves = arrange(
        len(rising),
        size,
        source,
        goal,
        heats >= worth[goal],
        end[:-1],
        end[1:],
        relieve,
        nodes.room.copy(),
        nodes.near,
        nodes.tier,
        machine.budget_bytes // PAGE_BYTES,
        moved,
        target,
    )
    moved, target = moved[:moves], target[:moves]
    turns = np.empty(moves, np.int64)
    in_rounds(size[moved], source[moved], target, nodes.tier, nodes.tiers, nodes.room.copy(), turns)
    rows, target = moved[turns], target[turns]
    page = page[rows]
    chunk, offset = page // CHUNK_PAGES, page % CHUNK_PAGES * PAGE_BYTES
    return Plan(
        heat.processes,
        columns.process[chunk],
        columns.address[chunk] + offset.astype(np.uint64),
        size[rows].astype(np.uint32),
        source[rows].astype(np.int16),
        target.astype(np.int16),
        rates.rate.reshape(-1)[page],
    )


def _order(heats: npt.NDArray[np.float32], sign: int) -> npt.NDArray[np.int64]:
    """Return the rows in order of heat, up or down (``sign``), equals as they come.

    Heats are not negative, so that their bits sort as they do. Bits and row in one integer sort
    several times faster than a stable argsort.
    """
    bits = heats.view(np.int32).astype(np.int64) * sign
    rows = np.arange(len(heats), dtype=np.int64)
    both: npt.NDArray[np.int64] = np.sort(bits << 32 | rows)
    return both & 0xFFFFFFFF


def _movers(heat: HeatTable, nodes: _Nodes, wanted: npt.NDArray[np.int8]) -> npt.NDArray[np.int64]:
    """Return the pages that are not where they are wanted, numbered as by ``collect``."""
    columns, room = heat.chunks.columns, 1 << 14
    while True:
        movers = np.empty(room, np.int64)
        found = collect(heat.chunks.used, columns.huge, columns.node, wanted, nodes.tier, movers)
        if found <= room:
            return movers[:found]
        room = found
