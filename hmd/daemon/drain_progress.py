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
from hmd.machine.mappings import Mappings
from hmd.machine.numa_nodes import read_node_use
from hmd.machine.process_id import ProcessId
from hmd.migrate.drain_worker import Errand, Evacuation
from hmd.observe.snapshot import ControlNumbers, DrainNumbers, PinNumbers
from hmd.pipeline.admin_progress import movable_on


def send_errand(stages: Stages, evacuation: Evacuation, now_s: float) -> None:
    """Have the drains' thread go on with what the tick's moves have left of the budget."""
    orders = stages.orders
    if not orders.drained:
        stages.mover.charge(evacuation.send(None, 0))
        return
    errand = Errand(
        serial=orders.drains,
        drained=orders.drained,
        topology=stages.topology,
        spared=_spared(stages),
        pinned=_pinned(stages),
        unmovable=_keeping(stages),
        dry_run=stages.config.migrate.dry_run,
    )
    granted = 0 if orders.paused else stages.mover.budget_bytes(now_s)
    stages.mover.charge(evacuation.send(errand, granted))


def _spared(stages: Stages) -> frozenset[ProcessId]:
    """Return the processes of which ticks still move pages; none once they got no further."""
    if stages.orders.stalled_ticks >= STALLED_TICKS:
        return frozenset()
    pages = movable_on(stages, stages.orders.drained)
    return frozenset(stages.heat.processes[slot] for slot in np.flatnonzero(pages).tolist())


def _pinned(stages: Stages) -> frozenset[ProcessId]:
    orders = stages.orders
    pairs = zip(stages.processes, stages.targets, strict=True)
    return frozenset(orders.pins) | {p for p, target in pairs if target in orders.target_pins}


def _keeping(stages: Stages) -> Callable[[ProcessId, Mappings], Mappings]:
    """Return what marks the mappings that the configuration keeps."""
    targets = dict(zip(stages.processes, stages.targets, strict=True))
    kept = stage_settings.kept_mappings(stages.config, targets)
    return lambda process, found: found.keeping(kept[process]) if process in kept else found


def control_numbers(
    stages: Stages,
    followed: Mapping[ProcessId, str],
    evacuation: Evacuation,
    told: Mapping[tuple[str, str], int],
) -> ControlNumbers:
    """Return what is told of orders; ``followed`` are processes with their targets."""
    orders = stages.orders
    pins = [
        PinNumbers(process.pid, process.start_ticks, followed.get(process, ""), pin.node, pin.uid)
        for process, pin in orders.pins.items()
    ]
    pins += [PinNumbers(0, 0, name, pin.node, pin.uid) for name, pin in orders.target_pins.items()]
    return ControlNumbers(
        paused=orders.paused,
        policy_ordered=orders.policy,
        drains=tuple(_drains(stages, evacuation)),
        pins=tuple(pins[:256]),
        pinned=len(pins),
        orders=dict(told),
    )


def _drains(stages: Stages, evacuation: Evacuation) -> Iterator[DrainNumbers]:
    orders, progress = stages.orders, evacuation.progress
    if not orders.drained:
        return
    there = {node.id for node in stages.topology.nodes}
    current = progress.serial == orders.drains
    for node in sorted(orders.drained):
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
            settled=node not in there or (current and progress.settled and not orders.paused),
        )
