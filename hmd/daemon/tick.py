"""The tick: sample, heat, decide, migrate; what comes of it goes to the observer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hmd.daemon.drain_progress import note_progress
from hmd.daemon.stage_guard import Guard
from hmd.daemon.stages import Stages
from hmd.decide.admin_moves import after, beside, drain, gather
from hmd.decide.idle_selection import idle_pages
from hmd.decide.plan import MachineView, Plan
from hmd.heat.pinned_pages import holding
from hmd.machine.numa_nodes import read_node_memory
from hmd.migrate import STUCK, MoveOutcome
from hmd.observe.residency_counts import sample_nodes
from hmd.observe.tick_record import Stage, TickRecord
from hmd.sample.access_batch import AccessBatch

BLIND = ("faults", "softdirty")
"""Samplers to which pages in use look idle: reads of pages that are there show in none of them."""

PAGEOUT_CHOICE = 16
"""How many times the budget of idle pages there are to choose from, of which some have to wait."""


def run_tick(stages: Stages, guard: Guard, now_s: float) -> TickRecord:
    """Run one tick after ``guard.begin``; a stage that fails leaves a neutral result."""
    batch = guard.run(Stage.SAMPLE, stages.sampler.read, AccessBatch.empty())
    unknown = np.full(len(batch), -1, np.int16)
    node = guard.run(Stage.HEAT, lambda: _heat(stages, batch), unknown)
    plan = guard.run(Stage.DECIDE, lambda: _decide(stages, now_s), Plan.empty(stages.processes))
    outcome = guard.run(Stage.MIGRATE, lambda: _migrate(stages, plan, now_s), None)
    paged_out_bytes = guard.run(Stage.MIGRATE, lambda: _page_out(stages, now_s), 0)
    return TickRecord(
        now_s=now_s,
        processes=stages.processes,
        targets=stages.targets,
        batch=batch,
        node=node,
        plan=plan,
        outcome=outcome,
        paged_out_bytes=paged_out_bytes,
        stage_s=dict(guard.seconds),
        failed=frozenset(guard.failed),
    )


def _heat(stages: Stages, batch: AccessBatch) -> npt.NDArray[np.int16]:
    """Count the samples and sweep residency; returns where the samples' pages are."""
    stages.heat.update(batch)
    stages.sweep.step(stages.heat)
    return sample_nodes(stages.heat, batch)


def _decide(stages: Stages, now_s: float) -> Plan:
    """Return what was ordered to move, then what the policy wants with what that leaves."""
    heat, orders = stages.heat, stages.orders
    stages.memory = read_node_memory(stages.topology, stages.sysfs, stages.reserves.at(now_s))
    if orders.paused:
        return Plan.empty(heat.processes)
    machine = MachineView(
        topology=stages.topology,
        memory=stages.memory,
        now_s=now_s,
        tick_s=stages.config.tick,
        budget_bytes=stages.mover.plan_bytes(now_s),
        limits=stages.limits,
    )
    held = orders.held(heat.processes, stages.targets)
    drained = orders.drained
    emptied = drain(heat, machine, drained, held)
    machine = after(machine, emptied)
    brought = gather(heat, machine, orders.goals(heat.processes, stages.targets), drained)
    machine = after(machine, brought)
    with holding(heat, held):
        wanted = stages.policy.plan(heat, beside(machine, drained))
    return Plan.joined((emptied, brought, wanted))


def _migrate(stages: Stages, plan: Plan, now_s: float) -> MoveOutcome | None:
    outcome = None
    if len(plan):
        outcome = stages.mover.apply(plan, now_s)
        stages.heat.settle(plan, outcome.node, np.isin(outcome.status, STUCK))
    note_progress(stages, plan, outcome)
    return outcome


def _page_out(stages: Stages, now_s: float) -> int:
    """Send out what was idle for longer than is set, with what moves have left of the budget."""
    idle_s, orders = stages.config.decide.pageout, stages.orders
    if idle_s is None or stages.sampler.name in BLIND or orders.paused:
        return 0
    left = stages.mover.budget_bytes(now_s)
    machine = MachineView(stages.topology, (), now_s, stages.config.tick, left)
    # Of pages that the kernel keeps there may be many before one that it does not.
    with holding(stages.heat, orders.held(stages.heat.processes, stages.targets)):
        plan = idle_pages(
            stages.heat, beside(machine, orders.drained), idle_s, PAGEOUT_CHOICE * left
        )
    sent = stages.pageout.apply(plan, left, now_s)
    stages.mover.charge(sent.out_bytes)
    rows = np.flatnonzero(sent.tried)
    stages.heat.settle(plan.take(rows), sent.node[rows], np.zeros(len(rows), np.bool_))
    return sent.out_bytes
