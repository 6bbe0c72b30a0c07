"""The status document: the daemon's last snapshot as JSON, the answer to ``status``."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeAlias

from hmd.decide.move_guard import GuardState
from hmd.machine.process_id import ProcessId
from hmd.observe.budget_numbers import BudgetNumbers
from hmd.observe.snapshot import HEAT_LOG2, AccessTotals, Snapshot

Visible: TypeAlias = Callable[[ProcessId], bool]


def status_answer(now: Snapshot, visible: Visible = lambda _: True) -> bytes:
    """Return the status document as the JSON that the status socket sends."""
    return json.dumps(status_document(now, visible)).encode()


def status_document(now: Snapshot, visible: Visible = lambda _: True) -> dict[str, Any]:
    """Return the snapshot as plain values: bytes, seconds, pages of 4 KiB, ratios from 0 to 1.

    Of processes and their pins it has those that are ``visible`` to the caller.
    """
    return {
        "version": now.version,
        "pid": now.pid,
        "started_s": now.started_s,
        "uptime_s": now.uptime_s,
        "config_file": now.config_file,
        "dry_run": now.dry_run,
        "policy": now.policy,
        "tick_s": now.tick_s,
        "cpu_quota": now.cpu_quota,
        "overhead_limit": now.overhead_limit,
        "budget": _budget(now.budget),
        "guard": None if now.guard is None else _guard(now.guard),
        "ticks": now.ticks,
        "stage_failures": {stage.value: n.failures for stage, n in now.stages.items()},
        "cpu_s": now.cpu_s,
        "resident_bytes": now.resident_bytes,
        "reload": {
            "successful": now.reload.successful,
            "success_s": now.reload.success_s,
            "error": now.reload.error,
        },
        "sampler": {
            "name": now.sampler.name,
            "period": now.sampler.period,
            "samples": now.sampler.stats.samples,
            "lost": now.sampler.stats.lost,
            "dropped": now.sampler.stats.dropped,
            "throttled": now.sampler.stats.throttled,
        },
        "control": _control(now, visible),
        "tiers": [list(nodes) for nodes in now.tiers],
        "tier_bytes": [
            sum(node.total_bytes for node in now.nodes if node.tier == tier)
            for tier in range(len(now.tiers))
        ],
        "heat": {"first_log2": HEAT_LOG2[0], "pages": [list(row) for row in now.heat_pages]},
        "moves": _moves(now),
        "rounds": [asdict(each) for each in now.recent_moves],
        "targets": [
            {"name": t.name, "process_count": t.process_count, **_numbers(t.numbers)}
            for t in now.targets
        ],
        "processes": [
            {
                "pid": p.process.pid,
                "start_ticks": p.process.start_ticks,
                "name": p.name,
                "target": p.target,
                **_numbers(p.numbers),
            }
            for p in now.processes
            if visible(p.process)
        ],
    }


def _guard(guard: GuardState) -> dict[str, Any]:
    return {**asdict(guard), "level": guard.level.name.lower()}


def _budget(budget: BudgetNumbers) -> dict[str, Any]:
    return {
        "cpu_s": {work.value: spent_s for work, spent_s in budget.cpu_s.items()},
        "owed_s": budget.owed_s,
        "stretch": budget.stretch,
        "plan_ticks": budget.plan_ticks,
        "plans_delayed": budget.plans_delayed,
        "sweep_share": budget.sweep_share,
        "discovery_s": budget.discovery_s,
        "overhead": budget.overhead,
    }


def _control(now: Snapshot, visible: Visible) -> dict[str, Any]:
    control = now.control
    return {
        "paused": control.paused,
        "policy_ordered": control.policy_override,
        "drains": [asdict(drain) for drain in control.drains],
        "pins": [
            asdict(pin)
            for pin in control.pins
            if not pin.pid or visible(ProcessId(pin.pid, pin.start_ticks))
        ],
        "pinned": control.pinned,
    }


def _moves(now: Snapshot) -> dict[str, Any]:
    failures = {reason: now.pages_by_status[reason] for reason in now.failure_reasons}
    return {
        "planned_pages": now.planned_pages,
        "promoted_bytes": now.promoted_bytes,
        "demoted_bytes": now.demoted_bytes,
        "paged_out_bytes": now.paged_out_bytes,
        "failed_pages": now.failed_pages,
        "deferred_pages": now.pages_by_status["deferred"],
        "would_move_pages": now.pages_by_status["would_move"],
        "calls": now.calls,
        "failures": {reason: pages for reason, pages in failures.items() if pages},
        "flows": [
            {"from_node": a, "to_node": b, "bytes": size}
            for (a, b), size in now.moved_bytes.items()
            if size
        ],
    }


def _numbers(numbers: AccessTotals) -> dict[str, Any]:
    return {
        "resident_bytes": list(numbers.resident_bytes),
        "fast_share": numbers.fast_share,
        "samples": numbers.samples,
        "accesses": list(numbers.accesses),
        "promoted_bytes": numbers.promoted_bytes,
        "demoted_bytes": numbers.demoted_bytes,
        "failed_pages": numbers.failed_pages,
    }
