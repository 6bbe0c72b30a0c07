"""The record of one tick, from which counters, heat maps and move histories are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import Plan
from hmd.machine.nodes.topology import NodeMemory
from hmd.machine.process_id import ProcessId
from hmd.migrate.outcome import MoveOutcome
from hmd.sample.access_batch import AccessBatch


class Stage(StrEnum):
    """The stages of a tick, in their order."""

    SAMPLE = "sample"
    HEAT = "heat"
    DECIDE = "decide"
    MIGRATE = "migrate"
    OBSERVE = "observe"


@dataclass(frozen=True, slots=True)
class TickRecord:
    """One tick.

    ``processes`` are those that the sampler followed: ``batch.process`` indexes them, ``targets``
    names the target of each. ``node`` is the node of each sample's page, -1 where unknown, shape
    ``(len(batch),)``. ``paged_out_bytes`` were sent to swap or to files. ``tick_s`` is the length
    of the tick, to which its samples belong. ``memory`` is that of the nodes. ``stage_s`` has the
    seconds of each stage that ran, ``failed`` the stages that raised an error.
    """

    now_s: float
    processes: tuple[ProcessId, ...]
    targets: tuple[str, ...]
    batch: AccessBatch
    node: npt.NDArray[np.int16]
    plan: Plan
    outcome: MoveOutcome | None
    paged_out_bytes: int = 0
    tick_s: float = 1.0
    memory: tuple[NodeMemory, ...] = ()
    stage_s: Mapping[Stage, float] = field(default_factory=dict)
    failed: frozenset[Stage] = frozenset()
