"""What one tick did, as the daemon hands it to whoever tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import Plan
from hmd.machine.process_id import ProcessId
from hmd.migrate.outcome import MoveOutcome
from hmd.sample.access_batch import AccessBatch


class Stage(StrEnum):
    """The parts of a tick, in their order."""

    SAMPLE = "sample"
    HEAT = "heat"
    DECIDE = "decide"
    MIGRATE = "migrate"
    OBSERVE = "observe"


@dataclass(frozen=True, slots=True)
class TickRecord:
    """One tick.

    ``processes`` are those that the sampler followed, ``batch.process`` indexes them, and
    ``targets`` names the target of each. ``node`` is where the page of each sample lay, -1 where
    not known, shape ``(len(batch),)``. ``paged_out_bytes`` left memory. ``stage_s`` are the
    seconds of the stages that ran, ``failed`` the stages that raised.
    """

    now_s: float
    processes: tuple[ProcessId, ...]
    targets: tuple[str, ...]
    batch: AccessBatch
    node: npt.NDArray[np.int16]
    plan: Plan
    outcome: MoveOutcome | None
    paged_out_bytes: int = 0
    stage_s: Mapping[Stage, float] = field(default_factory=dict)
    failed: frozenset[Stage] = frozenset()
