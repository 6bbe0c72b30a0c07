# SPDX-License-Identifier: MIT
"""One tick: sample, heat, decide, migrate. The caller observes its record.

    limits = budget.limits()
    state, record = tick(state, inputs, limits)

The daemon, the simulator, the benches and tests call the same function, each over its own machine:
:class:`Machine`, and what is behind ``mover`` (:class:`hmd.migrate.engine.PageCalls`), ``pageout``
and ``sweep`` (:class:`hmd.residency.memory_reader.MemoryReader`).

Limits are frozen and go in; what a tick has measured, counted and done goes out in its frozen
record. Sampler, sweep, policy and mover do not know each other: arrays go from one to the next, and
the heat table is the state that sample, sweep and migrate update.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.base.units import HUGE_PAGE_BYTES
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId, ProcessStat, read_stat
from hmd.linux.topology import NodeMemory, Topology
from hmd.metrics.observer import sample_nodes
from hmd.metrics.status import FarStatus, Stage, Work
from hmd.metrics.tick_record import TickRecord
from hmd.migrate import STUCK, FarLimits, MoveOutcome, Mover, MoveStatus, Pageout
from hmd.policy.admin import (
    AdminState,
    machine_after,
    movable_pages,
    node_mask,
    plan_admin_moves,
    plan_never_slow,
    without_drained,
)
from hmd.policy.plan import FastLimits, MachineView, Plan, Policy
from hmd.policy.planning import idle_pages
from hmd.policy.use_hints import UseHints
from hmd.profiles.prior import ProfilePrior
from hmd.residency.sweep import ResidencySweep, StepLimit
from hmd.sample.access_batch import AccessBatch
from hmd.sample.sampler import SampleSource
from hmd.tick.estimates import (
    CpusetBackoff,
    CpuUse,
    ExpectedAllocations,
    MoveDelay,
    ProcessReadings,
)
from hmd.tick.locality import Locality
from hmd.tick.stage_runner import StageTimer

PAGEOUT_CANDIDATES: Final = 16
"""Idle pages to select, in multiples of the budget: the kernel keeps some of them in memory."""

POLICY_ROWS: Final = 1 << 16
"""Rows of a view on which a policy decides, of a table with more than twice as many: 256 MiB of
base pages, 128 GiB of chunks. And most rows of which drains and pins move some in a tick."""

PAGEOUT_ROWS: Final = 1 << 19
"""Most rows of which some are paged out in a tick: the kernel may keep many of them in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine, real or modelled; ``clock`` times moves only."""

    topology: Topology
    sampler: SampleSource
    node_memory: Callable[[Topology, float], tuple[NodeMemory, ...]]
    stat: Callable[[int], ProcessStat | None] = read_stat
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class Tracked:
    """The processes that sampler and heat table track, in their order, with the target of each.

    ``fast_limits`` are what targets may have of tiers, ``far_limits`` what may be paged out of each
    process, nothing if None. ``dry`` says which processes are in a dry run while others are not,
    ``never_slow`` which stay on the fastest tier, shape ``(processes,)``; None: none is.
    """

    processes: tuple[ProcessId, ...] = ()
    targets: tuple[str, ...] = ()
    fast_limits: FastLimits | None = None
    far_limits: FarLimits | None = None
    dry: npt.NDArray[np.bool_] | None = None
    never_slow: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TickInputs:
    """What a tick acts on.

    ``held`` are samples that were read since the last tick, to look at them. ``move_guests``: also
    pages of virtual machines that the sampler does not see. ``resting`` targets are outside of
    their hours: nothing of them moves but by request. ``hints`` are of programs, ``priors`` what
    former runs tell of some processes.
    """

    now_s: float
    machine: Machine
    tracked: Tracked
    held: tuple[AccessBatch, ...] = ()
    move_guests: bool = False
    resting: frozenset[str] = frozenset()
    hints: UseHints | None = None
    priors: Mapping[ProcessId, ProfilePrior] = field(default_factory=dict)

    def resting_mask(self) -> npt.NDArray[np.bool_]:
        """Return which processes are of ``resting`` targets, shape ``(processes,)``."""
        return np.array([name in self.resting for name in self.tracked.targets], np.bool_)


@dataclass(frozen=True, slots=True)
class TickLimits:
    """What a tick may cost, as the CPU budget sets it (:mod:`hmd.tick.cpu_budget`).

    ``tick_s`` is the length of the tick, to which its samples belong. ``period`` is the sampling
    period from now on, None for the present one; ``sweep`` what the residency sweep may take, None
    for what its settings say. Without ``plan`` the policy does not plan, but administrators' moves
    do not wait. A plan whose promotions have less than ``min_gain`` of all accesses is not carried
    out.
    """

    tick_s: float
    period: int | None = None
    sweep: StepLimit | None = None
    plan: bool = True
    min_gain: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TickState:
    """What one tick leaves to the next.

    All but ``memory``, the nodes' memory at the last tick, are tables that ticks update in place.
    ``dry_policy`` plans for the targets that are in a dry run while others are not. Pages move
    between nodes of one tier where ``places_within_tiers``.
    """

    heat: HeatTable
    sweep: ResidencySweep
    policy: Policy
    mover: Mover
    pageout: Pageout
    dry_policy: Policy | None = None
    admin: AdminState = field(default_factory=AdminState)
    locality: Locality = field(default_factory=Locality)
    places_within_tiers: bool = True
    readings: ProcessReadings = field(default_factory=ProcessReadings)
    cpu_use: CpuUse = field(default_factory=CpuUse)
    allocations: ExpectedAllocations = field(default_factory=ExpectedAllocations)
    move_delay: MoveDelay = field(default_factory=MoveDelay)
    cpuset_backoff: CpusetBackoff = field(default_factory=CpusetBackoff)
    memory: tuple[NodeMemory, ...] = ()


def tick(
    state: TickState, inputs: TickInputs, limits: TickLimits, runner: StageTimer | None = None
) -> tuple[TickState, TickRecord]:
    """Run one tick; return the state after it and its record.

    ``runner`` times the stages, since its ``begin``; a new one by default. A stage that fails under
    a :class:`hmd.tick.stage_runner.StageRunner` leaves a neutral result: no samples, no plan,
    nothing moved.
    """
    run = (runner := runner or StageTimer()).run
    heat, admin, tracked = state.heat, state.admin, inputs.tracked

    machine, period = inputs.machine, limits.period
    if period is not None and period != machine.sampler.period:
        run(Stage.SAMPLE, lambda: machine.sampler.set_period(period), 0)
    batch = run(
        Stage.SAMPLE, lambda: read_samples(state, inputs), AccessBatch.empty(), Work.SAMPLES
    )

    changes = heat.stats.changes
    run(Stage.HEAT, lambda: heat.update(batch, limits.tick_s), None, Work.SAMPLES)
    run(Stage.HEAT, lambda: state.sweep.step(heat, limits.sweep), 0, Work.SWEEP)
    unknown = np.full(len(batch), -1, np.int16)
    node = run(Stage.HEAT, lambda: sample_nodes(heat, batch), unknown)

    planned = None
    if heat.processes and not admin.paused:
        planned = limits.plan or admin.requests_moves
    memory = run(Stage.DECIDE, lambda: machine.node_memory(machine.topology, inputs.now_s), None)
    plan = Plan.empty(tracked.processes)
    if memory is not None:
        state = replace(state, memory=memory)
        plan = run(
            Stage.DECIDE, lambda: decide(state, inputs, limits, may_plan=bool(planned)), plan
        )

    dry_plan = None
    if planned and memory is not None and tracked.dry is not None:
        dry_plan = run(Stage.DECIDE, lambda: decide_dry(state, inputs, limits, plan), None)

    outcome = run(Stage.MIGRATE, lambda: migrate(state, inputs, plan), None)
    dry_outcome = None
    if dry_plan is not None:
        dry_outcome = run(
            Stage.MIGRATE, lambda: migrate(state, inputs, dry_plan, dry_run=True), None
        )
    if Stage.DECIDE not in runner.failed:
        run(Stage.MIGRATE, lambda: record_admin_progress(state, inputs, plan, outcome), None)
    paged_out_bytes = 0
    if planned is not False:
        paged_out_bytes = run(Stage.MIGRATE, lambda: page_out(state, inputs, limits), 0)

    record = TickRecord(
        now_s=inputs.now_s,
        processes=tracked.processes,
        targets=tracked.targets,
        batch=batch,
        node=node,
        plan=plan,
        outcome=outcome,
        paged_out_bytes=paged_out_bytes,
        far=far_status(state, inputs),
        tick_s=limits.tick_s,
        memory=state.memory,
        planned=planned,
        heat_changes=heat.stats.changes - changes,
        stage_s=dict(runner.seconds),
        failed=frozenset(runner.failed),
        dry_plan=dry_plan,
        dry_outcome=dry_outcome,
    )
    return state, record


def read_samples(state: TickState, inputs: TickInputs) -> AccessBatch:
    """Return the samples since the last tick; those of shared pages are their owner's."""
    samples = inputs.machine.sampler.read()
    if inputs.held:
        samples = AccessBatch.concatenated([*inputs.held, samples])
    state.move_delay.start_tick(inputs.machine.clock())
    return state.sweep.attribute_to_owner(samples, state.heat)


def decide(state: TickState, inputs: TickInputs, limits: TickLimits, *, may_plan: bool) -> Plan:
    """Return the administrators' moves, then the policy's with the memory and budget left."""
    heat, tracked, now_s = state.heat, inputs.tracked, inputs.now_s
    readings = state.readings.read_next(tracked.processes, inputs.machine.stat)
    state.allocations.add_readings(state.memory, tracked.processes, tracked.targets, readings)
    state.cpu_use.add_readings(tracked.processes, readings, now_s)
    state.locality.count(heat, inputs.machine.topology)
    if not may_plan:
        return Plan.empty(heat.processes)
    machine = machine_view(state, inputs, limits)
    requested, machine = plan_admin_moves(state.admin, heat, machine, tracked.targets, POLICY_ROWS)
    others = np.zeros(len(heat.processes), np.bool_) if tracked.dry is None else tracked.dry
    rising, machine, unmovable = raise_never_slow(state, inputs, machine, others)
    pages = heat.view(machine.topology, unmovable, POLICY_ROWS)
    plan = state.policy.plan(pages, machine)
    if state.places_within_tiers:
        plan = state.locality.improve(plan, pages, machine)
    if limits.min_gain > 0 and tracked.fast_limits is None:
        up = np.isin(plan.to_node, machine.topology.tiers[0] if machine.topology.tiers else ())
        promoted = float((plan.heat[up].astype(np.float64) * plan.pages[up]).sum())
        if up.any() and promoted < limits.min_gain * float(pages.accesses.sum()):
            plan = Plan.empty(pages.processes)
    return replace(Plan.joined((requested, rising, plan)), requested=len(requested))


def machine_view(state: TickState, inputs: TickInputs, limits: TickLimits) -> MachineView:
    """Return what a policy may know of the machine at this tick."""
    return MachineView(
        topology=inputs.machine.topology,
        memory=state.memory,
        now_s=inputs.now_s,
        tick_s=limits.tick_s,
        budget_bytes=state.mover.plan_bytes(inputs.now_s),
        limits=inputs.tracked.fast_limits,
        counted=inputs.machine.sampler.capabilities.counts_accesses,
        allocation_bytes=state.allocations.expected_bytes,
        cpus=state.cpu_use.max_cpus(state.heat.processes),
        move_delay_s=state.move_delay.mean_s,
        hints=inputs.hints,
        priors=inputs.priors,
    )


def raise_never_slow(
    state: TickState, inputs: TickInputs, machine: MachineView, others: npt.NDArray[np.bool_]
) -> tuple[Plan, MachineView, npt.NDArray[np.bool_]]:
    """Return the moves up of targets that are never slow, and what they leave to a policy.

    That is the machine, and which processes' pages no policy may move: ``others`` and, shape
    ``(processes,)``, those that are pinned, resting, never slow or unseen guests.
    """
    heat, never_slow = state.heat, inputs.tracked.never_slow
    unmovable = others | state.admin.pinned_mask(heat.processes, inputs.tracked.targets)
    unmovable |= state.cpuset_backoff.waiting_mask(heat.processes, inputs.now_s)
    if inputs.resting:
        unmovable |= inputs.resting_mask()
    plan = Plan.empty(heat.processes)
    if never_slow is not None:
        # Those of guests that the sampler does not see, too: it needs no heat.
        plan, machine = plan_never_slow(heat, machine, never_slow & ~unmovable, POLICY_ROWS)
        unmovable |= never_slow
    return plan, machine, unmovable | unseen_guests(state, inputs)


def unseen_guests(state: TickState, inputs: TickInputs) -> npt.NDArray[np.bool_]:
    """Return which processes run guests that the sampler does not see, shape ``(processes,)``.

    Their memory looks unused, whatever the guests do: it stays, unless administrators request
    moves.
    """
    processes = state.heat.processes
    if inputs.move_guests or inputs.machine.sampler.capabilities.sees_guests:
        return np.zeros(len(processes), np.bool_)
    return state.sweep.guest_mask(processes)


def decide_dry(state: TickState, inputs: TickInputs, limits: TickLimits, plan: Plan) -> Plan | None:
    """Return what would move of the targets in a dry run, with the machine as ``plan`` leaves it.

    A second policy plans: policies have a memory.
    """
    dry, policy = inputs.tracked.dry, state.dry_policy
    if dry is None or policy is None or not dry.any():
        return None
    machine = machine_after(machine_view(state, inputs, limits), plan)
    machine = without_drained(machine, state.admin.drained)
    rising, machine, unmovable = raise_never_slow(state, inputs, machine, ~dry)
    pages = state.heat.view(machine.topology, unmovable, POLICY_ROWS)
    return Plan.joined((rising, policy.plan(pages, machine)))


def migrate(
    state: TickState, inputs: TickInputs, plan: Plan, *, dry_run: bool = False
) -> MoveOutcome | None:
    """Apply a plan, and record in the heat table where its pages are now; None without moves."""
    if not len(plan):
        return None
    clock = inputs.machine.clock
    begun_s = clock()
    outcome = state.mover.apply(plan, inputs.now_s, dry_run=dry_run)
    if not dry_run:
        state.move_delay.record_moves(begun_s, clock())
    state.heat.record_moves(plan, outcome.node, np.isin(outcome.status, STUCK))
    shared = np.unique(plan.process[outcome.status == MoveStatus.SHARED])
    state.sweep.record_refused_moves(plan.processes[slot] for slot in shared)
    state.cpuset_backoff.record_refusals(plan, outcome, inputs.now_s)
    return outcome


def record_admin_progress(
    state: TickState, inputs: TickInputs, plan: Plan, outcome: MoveOutcome | None
) -> None:
    """Record what a plan did for the moves and drains that administrators requested.

    Only of plans that were made: a decision that failed does not mean that nothing is left to move.
    """
    admin, heat = state.admin, state.heat
    if admin.paused:
        return
    moved_pages = np.zeros(len(plan), np.int64)
    busy: set[int] = set()
    if outcome is not None and not outcome.dry_run:
        moved_pages = outcome.moved_pages.astype(np.int64)
        going = (moved_pages > 0) | (outcome.status == MoveStatus.DEFERRED)
        busy = set(plan.process[going].tolist())
    if admin.moves and state.mover.budget_bytes() >= HUGE_PAGE_BYTES:
        # Done are those of which nothing more could be moved, of a process whose pages are known.
        # What a later sweep finds stays where it is.
        nodes = max(node.id for node in inputs.machine.topology.nodes) + 1
        known = heat.resident_pages(nodes)[0].sum(axis=1)
        admin.end_moves(
            process
            for slot, process in enumerate(heat.processes)
            if known[slot] and slot not in busy
        )
    if admin.drained:
        if moved_pages[np.isin(plan.from_node, sorted(admin.drained))].any():
            admin.stalled_ticks = 0
        elif movable_pages(admin, heat, inputs.tracked.targets, admin.drained).any():
            admin.stalled_ticks += 1


def far_status(state: TickState, inputs: TickInputs) -> FarStatus:
    """Return what is out now, and what keeps more from going."""
    pageout = state.pageout
    if inputs.tracked.far_limits is None:
        return FarStatus()
    held = int(pageout.held(state.heat.processes, inputs.now_s).sum())
    return FarStatus(pageout.out_bytes, pageout.ahead_bytes, held, pageout.stopped)


def page_out(state: TickState, inputs: TickInputs, limits: TickLimits) -> int:
    """Page out what was idle for long, with the budget that moves left; return bytes.

    And bring back what is expected to be used next.
    """
    heat, admin, now_s = state.heat, state.admin, inputs.now_s
    far, pageout = inputs.tracked.far_limits, state.pageout
    sees_reads = inputs.machine.sampler.capabilities.sees_reads
    if far is None or not heat.processes or not sees_reads or admin.paused:
        return 0
    held = pageout.held(heat.processes, now_s)
    if not pageout.works(now_s):
        return 0
    pageout.bring_back(far, heat.processes)
    budget_bytes = state.mover.budget_bytes(now_s)
    machine = MachineView(inputs.machine.topology, (), now_s, limits.tick_s, budget_bytes)
    pinned = admin.pinned_mask(heat.processes, inputs.tracked.targets)
    pinned |= unseen_guests(state, inputs) | held | np.isinf(far.idle_s)
    if inputs.resting:
        pinned |= inputs.resting_mask()
    if inputs.tracked.dry is not None:
        pinned |= inputs.tracked.dry
    machine = without_drained(machine, admin.drained)
    slowest = machine.topology.tiers[-1] if machine.topology.tiers else ()
    leaves = ~pinned[:, None] & node_mask(inputs.machine.topology, slowest)
    pages = heat.rows_to_evacuate(machine.topology, pinned, leaves, PAGEOUT_ROWS, longest_idle=True)
    plan = idle_pages(pages, machine, far.idle_s, PAGEOUT_CANDIDATES * budget_bytes)
    sent = pageout.apply(plan, budget_bytes, now_s, far)
    state.mover.charge(sent.out_bytes)
    rows = np.flatnonzero(sent.tried)
    heat.record_moves(plan.take(rows), sent.node[rows], np.zeros(len(rows), np.bool_))
    return sent.out_bytes
