# SPDX-License-Identifier: MIT
"""The record of one tick, from which counters, heat maps and move histories are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hmd.linux.procfs import ProcessId
from hmd.linux.topology import NodeMemory
from hmd.metrics.status import FarStatus, Stage
from hmd.migrate.status import MoveOutcome
from hmd.policy.plan import Plan
from hmd.sample.access_batch import AccessBatch


@dataclass(frozen=True, slots=True)
class TickRecord:
    """One tick.

    ``processes`` are those that the sampler followed: ``batch.process`` indexes them, ``targets``
    names the target of each. ``node`` is the node of each sample's page, -1 where unknown, shape
    ``(len(batch),)``. ``paged_out_bytes`` were sent to swap or to files; ``far`` is what is out.
    ``tick_s`` is the length of the tick, to which its samples belong. ``memory`` is that of the
    nodes. ``planned`` says whether a plan could be made, as the CPU quota permits or administrators
    request; None without processes and while paused. ``heat_changes`` is the number of processes
    whose samples refuted their heat. ``stage_s`` has the seconds of each stage that ran, ``failed``
    the stages that raised an error. ``dry_plan`` and ``dry_outcome`` are of the targets that are in
    a dry run of their own.
    """

    now_s: float
    processes: tuple[ProcessId, ...]
    targets: tuple[str, ...]
    batch: AccessBatch
    node: npt.NDArray[np.int16]
    plan: Plan
    outcome: MoveOutcome | None
    paged_out_bytes: int = 0
    far: FarStatus = field(default_factory=FarStatus)
    tick_s: float = 1.0
    memory: tuple[NodeMemory, ...] = ()
    planned: bool | None = None
    heat_changes: int = 0
    stage_s: Mapping[Stage, float] = field(default_factory=dict)
    failed: frozenset[Stage] = frozenset()
    dry_plan: Plan | None = None
    dry_outcome: MoveOutcome | None = None

    def moves(self, *, dry_run: bool) -> Iterator[tuple[Plan, MoveOutcome]]:
        """Yield the plans that were carried out, or that a dry run would have, and how."""
        for plan, outcome in ((self.plan, self.outcome), (self.dry_plan, self.dry_outcome)):
            if plan is not None and outcome is not None and outcome.dry_run == dry_run:
                yield plan, outcome

    @property
    def moved_bytes(self) -> int:
        """Bytes that were moved; 0 in a dry run."""
        return 0 if self.outcome is None or self.outcome.dry_run else self.outcome.moved_bytes
