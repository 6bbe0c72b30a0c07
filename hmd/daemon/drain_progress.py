"""Drains between ticks: what the drain worker is to do, and what status and metrics show of it.

Takes the stages after a tick, gives the drain worker its request and the observer its figures.
About 1 ns per page while a node is drained, else microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from hmd.control.admin_state import STALLED_TICKS
from hmd.daemon import stage_settings
from hmd.daemon.stages import Stages
from hmd.machine.nodes.numa_nodes import read_node_use
from hmd.machine.pages.mappings import Mappings
from hmd.machine.process_id import ProcessId
from hmd.migrate.drain_request import DrainRequest
from hmd.migrate.drain_worker import DrainWorker
from hmd.observe.snapshot import ControlNumbers, DrainNumbers, PinNumbers
from hmd.pipeline.admin_progress import movable_on


def send_drain_request(stages: Stages, worker: DrainWorker, now_s: float) -> None:
    """Send the drain worker its request, with what the tick's moves left of the budget."""
    admin = stages.admin
    if not admin.drained:
        stages.mover.charge(worker.send(None, 0))
        return
    request = DrainRequest(
        serial=admin.drains,
        drained=admin.drained,
        topology=stages.topology,
        spared=_spared(stages),
        pinned=_pinned(stages),
        unmovable=_kept_marker(stages),
        dry_run=stages.config.migrate.dry_run,
        cpu_share=min(stages.config.sample.cpu_quota, 1.0),
    )
    granted = 0 if admin.paused else stages.mover.budget_bytes(now_s)
    stages.mover.charge(worker.send(request, granted))


def _spared(stages: Stages) -> frozenset[ProcessId]:
    """Return the processes whose pages ticks still move; none once ticks have stalled."""
    if stages.admin.stalled_ticks >= STALLED_TICKS:
        return frozenset()
    pages = movable_on(stages, stages.admin.drained)
    return frozenset(stages.heat.processes[slot] for slot in np.flatnonzero(pages).tolist())


def _pinned(stages: Stages) -> frozenset[ProcessId]:
    admin = stages.admin
    pairs = zip(stages.processes, stages.targets, strict=True)
    return frozenset(admin.pins) | {p for p, target in pairs if target in admin.target_pins}


def _kept_marker(stages: Stages) -> Callable[[ProcessId, Mappings], Mappings]:
    """Return the function that marks the mappings that the configuration keeps."""
    targets = dict(zip(stages.processes, stages.targets, strict=True))
    kept = stage_settings.kept_mappings(stages.config, targets)
    return lambda process, found: found.keeping(kept[process]) if process in kept else found


def control_numbers(
    stages: Stages,
    followed: Mapping[ProcessId, str],
    worker: DrainWorker,
    outcomes: Mapping[tuple[str, str], int],
) -> ControlNumbers:
    """Return what the status shows of admin requests; ``followed`` are processes with targets."""
    admin = stages.admin
    pins = [
        PinNumbers(process.pid, process.start_ticks, followed.get(process, ""), pin.node, pin.uid)
        for process, pin in admin.pins.items()
    ]
    pins += [PinNumbers(0, 0, name, pin.node, pin.uid) for name, pin in admin.target_pins.items()]
    return ControlNumbers(
        paused=admin.paused,
        policy_override=admin.policy,
        drains=tuple(_drains(stages, worker)),
        pins=tuple(pins[:256]),
        pinned=len(pins),
        requests=dict(outcomes),
    )


def _drains(stages: Stages, worker: DrainWorker) -> Iterator[DrainNumbers]:
    admin, progress = stages.admin, worker.progress
    if not admin.drained:
        return
    there = {node.id for node in stages.topology.nodes}
    current = progress.serial == admin.drains
    for node in sorted(admin.drained):
        use = read_node_use(node, stages.sysfs)
        left = progress.left.get(node, {}) if current else {}
        yield DrainNumbers(
            node=node,
            there=node in there,
            use=use,
            waiting_pages=int(movable_on(stages, frozenset({node})).sum()),
            moved_pages=progress.moved_pages if current else 0,
            passes=progress.passes if current else 0,
            left=left,
            settled=node not in there or (current and progress.settled and not admin.paused),
        )
