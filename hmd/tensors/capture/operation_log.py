"""The operations of one recorded step, as the dispatcher reported them, and facts of its storages.

Storages are numbers that stay the same over the steps of a recording. An operation lists each of
its storages once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from hmd.tensors.tensor_trace import TensorKind


class StepPhase(IntEnum):
    """What a step does when an operation runs, or when a storage is allocated."""

    INPUT = 0
    FORWARD = 1
    BACKWARD = 2
    UPDATE = 3


@dataclass(frozen=True, slots=True)
class StorageUse:
    """One use: the mode is READ, WRITE or both, in ``bytes`` ``first`` to ``end``."""

    storage: int
    mode: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Operation:
    """A kernel: its name without namespace, its time, and what it uses."""

    name: str
    nanoseconds: int
    phase: StepPhase
    uses: tuple[StorageUse, ...]


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """What is known of a storage after the step.

    ``kind`` is known of weights, gradients and optimizer state, which the program's modules and
    optimizers name. ``survives``: the storage still exists after the step.
    """

    size: int
    device: str
    kind: TensorKind | None
    survives: bool


@dataclass(slots=True)
class StepLog:
    """One step: operations in order, and the storages that were allocated in it, by phase."""

    operations: list[Operation] = field(default_factory=list)
    births: dict[int, StepPhase] = field(default_factory=dict)
    facts: dict[int, StorageFacts] = field(default_factory=dict)

    def on_device(self, device: str) -> StepLog:
        """Return the step without the uses of storages on other devices."""
        operations = []
        for each in self.operations:
            uses = tuple(use for use in each.uses if self.facts[use.storage].device == device)
            if uses:
                operations.append(Operation(each.name, each.nanoseconds, each.phase, uses))
        return StepLog(operations, self.births, self.facts)

    def signature(self) -> tuple[tuple[str, tuple[tuple[int, int], ...]], ...]:
        """Return what two steps have in common that do the same: names, sizes and modes."""
        return tuple(
            (each.name, tuple((self.facts[use.storage].size, use.mode) for use in each.uses))
            for each in self.operations
        )
