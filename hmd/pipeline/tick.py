"""One tick: sample, heat, decide, migrate; its record is what the observer takes.

The daemon, the simulator, the benches and tests of policies call the same function, each over its
own machine (:mod:`hmd.pipeline.tick_stages`).
"""

from __future__ import annotations

import time
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from hmd.decide.admin_moves import drain_moves, machine_after, pin_moves, without_drained
from hmd.decide.idle_selection import idle_pages
from hmd.decide.plan import MachineView, Plan
from hmd.machine.nodes.topology import Topology
from hmd.migrate import STUCK, MoveOutcome, MoveStatus
from hmd.observe.residency_counts import sample_nodes
from hmd.observe.tick_record import Stage, TickRecord
from hmd.pipeline.admin_progress import note_progress
from hmd.pipeline.stage_guard import StageTimer
from hmd.pipeline.tick_stages import TickStages
from hmd.sample.access_batch import AccessBatch

PAGEOUT_CANDIDATES = 16
"""Idle pages to select, in multiples of the budget: the kernel keeps some of them in memory."""

POLICY_ROWS = 1 << 16
"""Rows of a view on which a policy decides, of a table with more than twice as many: 256 MiB of
4 KiB pages, 128 GiB of chunks. And most rows of which drains and pins move some in a tick."""

PAGEOUT_ROWS = 1 << 19
"""Most rows of which some are paged out in a tick: the kernel may keep many of them in memory."""


def run_tick(stages: TickStages, guard: StageTimer, now_s: float) -> TickRecord:
    """Run one tick after ``guard.begin``, and return its record.

    A stage that fails under a :class:`hmd.pipeline.stage_guard.StageGuard` leaves a neutral
    result: no samples, no plan, nothing moved.
    """
    batch = guard.run(Stage.SAMPLE, lambda: read_samples(stages), AccessBatch.empty())
    unknown = np.full(len(batch), -1, np.int16)
    node = guard.run(Stage.HEAT, lambda: update_heat(stages, batch), unknown)
    plan = guard.run(Stage.DECIDE, lambda: decide(stages, now_s), Plan.empty(stages.processes))
    decided = Stage.DECIDE not in guard.failed
    outcome = guard.run(Stage.MIGRATE, lambda: migrate(stages, plan, now_s, decided=decided), None)
    paged_out_bytes = guard.run(Stage.MIGRATE, lambda: page_out(stages, now_s), 0)
    return TickRecord(
        now_s=now_s,
        processes=stages.processes,
        targets=stages.targets,
        batch=batch,
        node=node,
        plan=plan,
        outcome=outcome,
        paged_out_bytes=paged_out_bytes,
        tick_s=stages.tick_s,
        memory=stages.memory,
        stage_s=dict(guard.seconds),
        failed=frozenset(guard.failed),
    )


def read_samples(stages: TickStages) -> AccessBatch:
    """Return the samples since the last tick; those of shared pages are the counting process's."""
    begun_s = time.thread_time()
    samples = stages.sampler.read()
    stages.move_delay.begin(stages.clock())
    batch = stages.sweep.fold(samples, stages.heat)
    stages.sampling_cpu_s += time.thread_time() - begun_s
    return batch


def update_heat(stages: TickStages, batch: AccessBatch) -> npt.NDArray[np.int16]:
    """Count samples, sweep residency; return the node of each sample's page, ``(len(batch),)``."""
    begun_s = time.thread_time()
    stages.heat.update(batch, stages.tick_s)
    counted_s = time.thread_time()
    stages.sampling_cpu_s += counted_s - begun_s
    stages.sweep.step(stages.heat)
    stages.sweep_cpu_s += time.thread_time() - counted_s
    return sample_nodes(stages.heat, batch)


def decide(stages: TickStages, now_s: float) -> Plan:
    """Return the administrators' moves, then the policy's with what room and budget are left."""
    heat, admin = stages.heat, stages.admin
    stages.memory = stages.node_memory(stages.topology, now_s)
    follow_processes(stages, now_s)
    if admin.paused or not heat.processes or not plan_due(stages):
        return Plan.empty(heat.processes)
    machine = MachineView(
        topology=stages.topology,
        memory=stages.memory,
        now_s=now_s,
        tick_s=stages.tick_s,
        budget_bytes=stages.mover.plan_bytes(now_s),
        limits=stages.limits,
        counted=stages.sampler.capabilities.counts_accesses,
        allocation_bytes=stages.allocations.expected_bytes,
        cpus=stages.cpu_use.cpus_of(heat.processes),
        move_delay_s=stages.move_delay.mean_s,
    )
    pinned = admin.pinned_mask(heat.processes, stages.targets)
    requested, machine = admin_moves(stages, machine, pinned)
    machine = without_drained(machine, admin.drained)
    left_alone = pinned | stages.confined.mask(heat.processes, now_s)
    pages = heat.view(machine.topology, left_alone, POLICY_ROWS)
    wanted = stages.policy.plan(pages, machine)
    return Plan.joined((requested, wanted))


def follow_processes(stages: TickStages, now_s: float) -> None:
    """Read what processes use of memory and CPUs."""
    processes = stages.processes
    readings = stages.readings.read(processes, stages.stat)
    stages.allocations.follow(stages.memory, processes, stages.targets, readings)
    stages.cpu_use.follow(processes, readings, now_s)


def plan_due(stages: TickStages) -> bool:
    """Return whether the CPU quota permits a plan now; requests of administrators do not wait."""
    if stages.budget is None:
        return True
    admin = stages.admin
    return stages.budget.plan_due(requested=bool(admin.drained or admin.moves))


def admin_moves(
    stages: TickStages, machine: MachineView, pinned: npt.NDArray[np.bool_]
) -> tuple[Plan, MachineView]:
    """Return the moves off drained nodes and to the nodes of pins, and the machine after them."""
    heat, admin, topology = stages.heat, stages.admin, machine.topology
    plan = Plan.empty(heat.processes)
    if admin.drained:
        leaves = ~pinned[:, None] & _on_nodes(topology, admin.drained)
        pages = heat.leaving(topology, pinned, leaves, POLICY_ROWS)
        plan = drain_moves(pages, machine, admin.drained)
        machine = machine_after(machine, plan)
    if pinned.any():
        goals = admin.pin_nodes(heat.processes, stages.targets)
        every = np.arange(len(topology.latency_ns))
        leaves = (goals >= 0)[:, None] & (every != goals[:, None])
        pages = heat.leaving(topology, np.zeros_like(pinned), leaves, POLICY_ROWS)
        gathered = pin_moves(pages, machine, goals, admin.drained)
        plan, machine = Plan.joined((plan, gathered)), machine_after(machine, gathered)
    return plan, machine


def _on_nodes(topology: Topology, nodes: Collection[int]) -> npt.NDArray[np.bool_]:
    """Return which node ids are among ``nodes``, shape ``(nodes,)``."""
    return np.isin(np.arange(len(topology.latency_ns)), list(nodes))


def migrate(stages: TickStages, plan: Plan, now_s: float, *, decided: bool) -> MoveOutcome | None:
    """Apply a plan, and record in the heat table where its pages are now; None without moves.

    ``decided`` says whether the plan was made: an empty one of a decision that failed does not
    mean that administrators' moves are done.
    """
    outcome = None
    if len(plan):
        begun_s = stages.clock()
        outcome = stages.mover.apply(plan, now_s)
        stages.move_delay.observe(begun_s, stages.clock())
        stages.heat.settle(plan, outcome.node, np.isin(outcome.status, STUCK))
        shared = np.unique(plan.process[outcome.status == MoveStatus.SHARED])
        stages.sweep.refused(plan.processes[slot] for slot in shared)
        stages.confined.observe(plan, outcome, now_s)
    if decided:
        note_progress(stages, plan, outcome)
    return outcome


def page_out(stages: TickStages, now_s: float) -> int:
    """Page out what was idle for ``pageout_s``, with the budget that moves left; return bytes."""
    idle_s, admin = stages.pageout_s, stages.admin
    if idle_s is None or not stages.sampler.capabilities.sees_reads or admin.paused:
        return 0
    if stages.budget is not None and not stages.budget.planned:
        return 0
    left = stages.mover.budget_bytes(now_s)
    machine = MachineView(stages.topology, (), now_s, stages.tick_s, left)
    pinned = admin.pinned_mask(stages.heat.processes, stages.targets)
    machine = without_drained(machine, admin.drained)
    slowest = machine.topology.tiers[-1] if machine.topology.tiers else ()
    leaves = ~pinned[:, None] & _on_nodes(stages.topology, slowest)
    pages = stages.heat.leaving(machine.topology, pinned, leaves, PAGEOUT_ROWS, longest_idle=True)
    plan = idle_pages(pages, machine, idle_s, PAGEOUT_CANDIDATES * left)
    sent = stages.pageout.apply(plan, left, now_s)
    stages.mover.charge(sent.out_bytes)
    rows = np.flatnonzero(sent.tried)
    stages.heat.settle(plan.take(rows), sent.node[rows], np.zeros(len(rows), np.bool_))
    return sent.out_bytes
