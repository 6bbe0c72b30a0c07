"""Why pages of a process are where they are: the document of ``hmd explain``.

Takes the stages between two ticks and the journal of moves; gives plain values: heat, price, the
page that they compete with, what the policy adds (:class:`ExplainingPolicy`), and their last moves.
Costs as much as a plan: what it shows is bounded as a policy's view is, whatever a target has.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from hmd.decide.cost_benefit.loaded_latency import loaded_latency_ns
from hmd.decide.cost_benefit.parallelism import parallelism
from hmd.decide.move_guard import MOVE_NS, MoveGuard
from hmd.decide.node_arrays import Nodes, nodes_of
from hmd.decide.plan import MachineView
from hmd.errors import TargetError
from hmd.heat.view.page_view import PageView
from hmd.machine.process_id import ProcessId
from hmd.observe.move_journal import MoveJournal
from hmd.pipeline.tick import POLICY_ROWS
from hmd.pipeline.tick_stages import TickStages
from hmd.units import PAGE_BYTES

LISTED: Final = 5
"""Rows of each side that are listed without an address."""


@runtime_checkable
class ExplainingPolicy(Protocol):
    """A policy that knows more about a page than its heat."""

    def explain(
        self, pages: PageView, machine: MachineView, rows: npt.NDArray[np.int64]
    ) -> list[dict[str, float]]:
        """Return figures of some rows of a view, by name."""
        ...


def explain(
    stages: TickStages,
    journal: MoveJournal,
    process: ProcessId,
    address: int | None,
    rows_most: int = POLICY_ROWS,
) -> dict[str, Any]:
    """Return why the page at an address, or the most disputed ones, are where they are.

    Compares with ``rows_most`` pages of all processes, as a plan does. Raises ``TargetError`` for a
    process without known pages, or an address without one.
    """
    heat, admin = stages.heat, stages.admin
    if process not in heat.processes:
        raise TargetError(f"process {process.pid} belongs to no target: see hmd status")
    pinned = admin.pinned_mask(heat.processes, stages.targets)
    slot = heat.processes.index(process)
    also = _numbers(stages, pinned, slot, address)
    pages = heat.view(stages.topology, pinned, rows_most, also)
    machine = MachineView(
        stages.topology,
        stages.memory,
        0.0,
        stages.tick_s,
        1 << 40,
        cpus=stages.cpu_use.cpus_of(heat.processes),
        move_delay_s=stages.move_delay.mean_s,
    )
    nodes = nodes_of(machine, 0.0, 0)
    rows = _rows(pages, slot, address)
    if not len(rows):
        what = "has no known pages yet" if address is None else f"has no page at {address:#x}"
        raise TargetError(f"process {process.pid} {what}: the sweep may not have reached it")
    policy, guard = stages.policy, None
    if isinstance(policy, MoveGuard):
        guard = {**asdict(policy.state), "level": policy.state.level.name.lower()}
        policy = policy.guarded
    more: list[dict[str, float]] = [{} for _ in rows]
    if isinstance(policy, ExplainingPolicy):
        more = policy.explain(pages, machine, rows)
    prices = _Prices(pages, machine, nodes)
    now_s = max((move.now_s for move in journal.moves(process, 0, 1 << 63)), default=0.0)
    found = []
    for row, figures in zip(rows.tolist(), more, strict=True):
        one = prices.of(row)
        begin = int(pages.address[row])
        end = begin + int(pages.size[row]) * PAGE_BYTES
        one["policy"] = figures
        one["moves"] = [
            {**asdict(move), "before_s": round(now_s - move.now_s, 3)}
            for move in journal.moves(process, begin, end)
        ]
        found.append(one)
    return {"pid": process.pid, "plans": policy.name, "guard": guard, "pages": found}


def _numbers(
    stages: TickStages, pinned: npt.NDArray[np.bool_], slot: int, address: int | None
) -> npt.NDArray[np.int64]:
    """Return the numbers of rows that are looked at, whether or not a policy's view has them.

    Without an address, the process's hottest on slower tiers and its longest idle on the fastest.
    """
    heat, topology = stages.heat, stages.topology
    if address is not None:
        number = heat.view(topology, pinned).number_at(slot, np.array([address], np.uint64))
        return number[number >= 0]
    leaves = np.zeros((2, len(pinned), len(topology.latency_ns)), np.bool_)
    for tier, nodes in enumerate(topology.tiers):
        leaves[min(tier, 1), slot, list(nodes)] = True
    coldest = heat.leaving(topology, pinned, leaves[0], LISTED, longest_idle=True).number
    hottest = heat.leaving(topology, pinned, leaves[1], LISTED).number
    return np.concatenate([hottest, coldest])


def _rows(pages: PageView, slot: int, address: int | None) -> npt.NDArray[np.int64]:
    """Return the row at an address; else the hottest rows that wait, and the coldest on top."""
    if address is not None:
        found = pages.find(slot, np.array([address], np.uint64))
        return found[found >= 0]
    own = (pages.process == slot) & pages.movable
    slower = np.flatnonzero(own & (pages.tier > 0))
    faster = np.flatnonzero(own & (pages.tier == 0))
    hottest = slower[np.argsort(-pages.rate[slower], kind="stable")[:LISTED]]
    coldest = faster[np.argsort(pages.rate[faster], kind="stable")[:LISTED]]
    return np.concatenate([hottest, coldest])


class _Prices:
    """What rows save, what their moves cost, and with what they compete."""

    def __init__(self, pages: PageView, machine: MachineView, nodes: Nodes) -> None:
        self._pages = pages
        self._latency = loaded_latency_ns(pages, machine.topology, nodes)
        self._overlap = parallelism(pages, machine)
        self._room = max(int(nodes.by_tier(nodes.room)[0]), 0)
        self._tier = nodes.tier
        movable = pages.movable
        fast, slow = movable & (pages.tier == 0), movable & (pages.tier > 0)
        self._coldest = float(pages.rate[fast].min()) if fast.any() else None
        self._hottest = float(pages.rate[slow].max()) if slow.any() else None

    def of(self, row: int) -> dict[str, Any]:
        """Return the figures of a row."""
        pages, latency = self._pages, self._latency
        node, rate, size = int(pages.node[row]), float(pages.rate[row]), int(pages.size[row])
        tier = int(self._tier[node]) if 0 <= node < len(self._tier) else -1
        below = min(max(tier, 1), len(latency) - 1)
        difference_ns = float(latency[below] - latency[0])
        per_s = rate * size * difference_ns * 1e-9 / float(self._overlap[pages.process[row]])
        cost_s = size * MOVE_NS * 1e-9
        return {
            "address": int(pages.address[row]),
            "bytes": size * PAGE_BYTES,
            "node": node,
            "tier": tier,
            "movable": bool(pages.movable[row]),
            "rate": rate,
            "samples": float(pages.support[row]),
            "idle_ticks": int(pages.idle_ticks[row]),
            "wear": int(pages.wear[row]),
            "saving_s_per_s": per_s,
            "move_cost_s": cost_s,
            "repaid_after_s": cost_s / per_s if per_s > 0 else None,
            "coldest_fast_rate": self._coldest,
            "hottest_slow_rate": self._hottest,
            "free_fast_bytes": self._room * PAGE_BYTES,
            "why": self._why(row, tier, rate, size),
        }

    def _why(self, row: int, tier: int, rate: float, size: int) -> str:
        if not self._pages.movable[row]:
            return "it may not be moved: it is pinned, fixed in memory, or on a node without a tier"
        if tier == 0:
            if self._hottest is None or rate >= self._hottest:
                return "it is on the fastest tier, and no page of a slower tier is hotter"
            return "it is on the fastest tier: hotter pages of slower tiers do not pay for a swap"
        if size <= self._room:
            return "the fastest tier has free memory: it waits for samples, price or budget"
        if self._coldest is not None and rate <= self._coldest:
            return "every page of the fastest tier is at least as hot"
        return "the fastest tier is full: a swap does not pay yet, or waits for budget or certainty"
