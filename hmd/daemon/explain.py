# SPDX-License-Identifier: MIT
"""Why pages of a process are where they are: the document of ``hmd explain``.

Takes the state between two ticks and the journal of moves; gives plain values: heat, price, the
page that they compete with, what the policy adds (:class:`ExplainingPolicy`), and their last moves.
Costs as much as a plan: what it shows is bounded as a policy's view is, whatever a target has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from hmd.base.errors import TargetError
from hmd.base.units import MOVE_NS, PAGE_BYTES, PAGE_MOVE_COST
from hmd.heat.table import HeatTable
from hmd.heat.view import PageView
from hmd.linux.memory_policy import UNBOUND, Bindings
from hmd.linux.procfs import ProcessId, format_ids
from hmd.linux.topology import Topology
from hmd.metrics.move_journal import MoveJournal
from hmd.policy.builtin.benefit import Benefit
from hmd.policy.latency import loaded_latency_ns, parallelism
from hmd.policy.nodes import nodes_of
from hmd.policy.plan import MachineView
from hmd.tick.tick import POLICY_ROWS, TickInputs, TickState, unseen_guests

LISTED: Final = 5
"""Rows of each side that are listed without an address."""

UNSEEN_GUESTS: Final = "its process runs virtual machines, whose accesses samples do not show"

RESTING: Final = "its target is outside of its hours (active)"
NEVER_SLOW: Final = "its target is never slow: it "
FULL: Final = "the fastest tier is full: a swap does not pay yet, or waits for budget or certainty"


@runtime_checkable
class ExplainingPolicy(Protocol):
    """A policy that knows more about a page than its heat."""

    def explain(
        self, pages: PageView, machine: MachineView, rows: npt.NDArray[np.int64]
    ) -> list[dict[str, float]]:
        """Return figures of some rows of a view, by name."""
        ...


def explain(
    state: TickState,
    inputs: TickInputs,
    tick_s: float,
    journal: MoveJournal,
    process: ProcessId,
    address: int | None,
    max_rows: int = POLICY_ROWS,
    bindings: Bindings = UNBOUND,
) -> dict[str, Any]:
    """Return why the page at an address, or the most disputed ones, are where they are.

    ``inputs`` and the length of the tick are those of the next one, ``bindings`` the process's.
    Compares with ``max_rows`` pages of all processes, as a plan does. Raises ``TargetError`` for a
    process without known pages, or an address without one.
    """
    heat, topology = state.heat, inputs.machine.topology
    if process not in heat.processes:
        raise TargetError(f"process {process.pid} belongs to no target: see hmd status")
    pinned = state.admin.pinned_mask(heat.processes, inputs.tracked.targets)
    slot = heat.processes.index(process)
    extra_rows = _disputed_rows(heat, topology, pinned, slot, address)
    pages = heat.view(topology, pinned, max_rows, extra_rows)
    machine = MachineView(
        topology,
        state.memory,
        0.0,
        tick_s,
        1 << 40,
        cpus=state.cpu_use.max_cpus(heat.processes),
        move_delay_s=state.move_delay.mean_s,
    )
    rows = _rows(pages, slot, address)
    if not len(rows):
        what = "has no known pages yet" if address is None else f"has no page at {address:#x}"
        raise TargetError(f"process {process.pid} {what}: the sweep may not have reached it")
    policy = state.policy
    more: list[dict[str, float]] = [{} for _ in rows]
    if isinstance(policy, ExplainingPolicy):
        more = policy.explain(pages, machine, rows)
    drained, found = state.admin.drained, []
    fastest = topology.tiers[0] if topology.tiers else ()
    unseen, never_slow = bool(unseen_guests(state, inputs)[slot]), inputs.tracked.never_slow
    move_ns = policy.settings.move_ns if isinstance(policy, Benefit) else MOVE_NS
    for page, figures in zip(_describe(pages, machine, rows, move_ns), more, strict=True):
        if page["node"] in drained:
            page["why"] = f"node {page['node']} is drained: it leaves soon (hmd undrain)"
        elif page["tier"] > 0 and drained.issuperset(fastest):
            nodes = format_ids(sorted(drained.intersection(fastest)))
            page["why"] = f"the fastest tier is drained, node {nodes} (hmd undrain)"
        elif inputs.tracked.targets[slot] in inputs.resting:
            page["why"] = f"{RESTING}; {page['why']}"
        elif page["movable"] and never_slow is not None and never_slow[slot]:
            goes = "goes to the fastest tier as room is made" if page["tier"] else "stays there"
            page["why"] = NEVER_SLOW + goes
        elif unseen:
            page["why"] = f"{UNSEEN_GUESTS}; {page['why']}"
        begin = page["address"]
        if bound := bindings.nodes_at(begin):
            kept = format_ids(bound)
            page["why"] = f"a memory policy binds it to node {kept} (MPOL_BIND); {page['why']}"
        moves = [
            {**asdict(move), "before_s": round(inputs.now_s - move.now_s, 3)}
            for move in journal.moves(process, begin, begin + page["bytes"])
        ]
        found.append({**page, "policy": figures, "moves": moves})
    return {"pid": process.pid, "plans": policy.name, "pages": found}


def _disputed_rows(
    heat: HeatTable,
    topology: Topology,
    pinned: npt.NDArray[np.bool_],
    slot: int,
    address: int | None,
) -> npt.NDArray[np.int64]:
    """Return the storage indices of rows to show, whether or not a policy's view has them.

    Without an address, the process's hottest on slower tiers and its longest idle on the fastest.
    """
    if address is not None:
        number = heat.view(topology, pinned).storage_index_at(slot, np.array([address], np.uint64))
        return number[number >= 0]
    leaves = np.zeros((2, len(pinned), len(topology.latency_ns)), np.bool_)
    for tier, nodes in enumerate(topology.tiers):
        leaves[min(tier, 1), slot, list(nodes)] = True
    coldest = heat.rows_to_evacuate(
        topology, pinned, leaves[0], LISTED, longest_idle=True
    ).storage_index
    hottest = heat.rows_to_evacuate(topology, pinned, leaves[1], LISTED).storage_index
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


def _describe(
    pages: PageView, machine: MachineView, rows: npt.NDArray[np.int64], move_ns: float
) -> Iterator[dict[str, Any]]:
    """Yield of each row what it saves, what its move costs, and with what it competes."""
    nodes = nodes_of(machine, 0.0, 0)
    latency = loaded_latency_ns(pages, machine.topology, nodes)
    overlap = parallelism(pages, machine)
    free_fast = max(int(nodes.by_tier(nodes.room)[0]), 0)
    fast = pages.rate[pages.movable & (pages.tier == 0)]
    slow = pages.rate[pages.movable & (pages.tier > 0)]
    coldest = float(fast.min()) if len(fast) else None
    hottest = float(slow.max()) if len(slow) else None
    for row in rows.tolist():
        node, rate, size = int(pages.node[row]), float(pages.rate[row]), int(pages.size[row])
        movable = bool(pages.movable[row])
        tier = int(nodes.tier[node]) if 0 <= node < len(nodes.tier) else -1
        slower = min(max(tier, 1), len(latency) - 1)
        difference_ns = float(latency[slower] - latency[0])
        per_s = rate * size * difference_ns * 1e-9 / float(overlap[pages.process[row]])
        cost_s = size * move_ns * PAGE_MOVE_COST * 1e-9
        if not movable:
            why = "it may not be moved: pinned, bound, fixed in memory, or on a node without a tier"
        elif tier == 0 and (hottest is None or rate >= hottest):
            why = "it is on the fastest tier, and no page of a slower tier is hotter"
        elif tier == 0:
            why = "it is on the fastest tier: hotter pages of slower tiers do not pay for a swap"
        elif size <= free_fast:
            why = "the fastest tier has free memory: it waits for samples, price or budget"
        elif coldest is not None and rate <= coldest:
            why = "every page of the fastest tier is at least as hot"
        else:
            why = FULL
        yield {
            "address": int(pages.address[row]),
            "bytes": size * PAGE_BYTES,
            "node": node,
            "tier": tier,
            "movable": movable,
            "rate": rate,
            "samples": float(pages.effective_samples[row]),
            "idle_ticks": int(pages.idle_ticks[row]),
            "wear": int(pages.wear[row]),
            "saving_s_per_s": per_s,
            "move_cost_s": cost_s,
            "repaid_after_s": cost_s / per_s if per_s > 0 else None,
            "coldest_fast_rate": coldest,
            "hottest_slow_rate": hottest,
            "free_fast_bytes": free_fast * PAGE_BYTES,
            "why": why,
        }
