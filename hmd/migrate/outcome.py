"""The outcome of a plan: by row for the heat table, in sums for reports and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hmd.migrate.move_status import FAILURES, MoveStatus
from hmd.units import PAGE_BYTES

Flow = tuple[int, int]
"""Source and target node; the source is -1 where it is not known."""


@dataclass(frozen=True, slots=True)
class MoveOutcome:
    """The outcome of a plan; columns have shape ``(n,)`` and the order of the plan's rows.

    ``status`` holds codes of :class:`hmd.migrate.move_status.MoveStatus`; ``node`` is where the
    page is now, -1 absent or unknown; ``moved_pages`` is how many 4 KiB pages of the row moved (of
    a huge page that the kernel has split, maybe not all). ``moved`` counts 4 KiB pages by flow, in
    a dry run those that would move; ``pages`` counts planned ones by status. ``seconds`` is the
    duration of the whole.
    """

    status: npt.NDArray[np.int16]
    node: npt.NDArray[np.int16]
    moved_pages: npt.NDArray[np.uint32]
    moved: Mapping[Flow, int]
    pages: Mapping[MoveStatus, int]
    calls: int
    seconds: float
    dry_run: bool = False

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.status)

    @property
    def moved_bytes(self) -> int:
        """Bytes that moved, or in a dry run would move."""
        return sum(self.moved.values()) * PAGE_BYTES

    @property
    def failures(self) -> dict[MoveStatus, int]:
        """Pages that failed to move, by reason."""
        return {status: n for status, n in self.pages.items() if status in FAILURES}


@dataclass(slots=True)
class MoverStats:
    """Counters of a mover since it was created; pages are of 4 KiB, dry runs are not counted.

    ``moved_pages`` by flow, ``pages`` planned by status; ``split_huge_pages`` are rows that were
    planned as a huge page which the kernel had split.
    """

    rows: int = 0
    calls: int = 0
    call_rows: int = 0
    retried_rows: int = 0
    queries: int = 0
    queried_rows: int = 0
    busy_ns: int = 0
    slowest_call_ns: int = 0
    split_huge_pages: int = 0
    batch_pages: int = 0
    moved_pages: dict[Flow, int] = field(default_factory=dict)
    pages: dict[MoveStatus, int] = field(
        default_factory=lambda: {s: 0 for s in MoveStatus if s is not MoveStatus.PENDING}
    )
