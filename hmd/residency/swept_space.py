"""What the residency sweep keeps of each process: its address space, and how far it is swept."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hmd.residency.space_outline import Run, SpaceOutline


@dataclass(slots=True)
class SweptSpace:
    """A process's address space as last read, and the progress of its sweep.

    ``left`` are runs of chunks that the current sweep has not reached. ``asked`` and ``changed``
    count the pages of the sweep; the next one begins ``sweep_ticks`` after ``begun``. A space that
    is not ``tracked`` is another process's too, which it is swept for.
    """

    outline: SpaceOutline
    huge: npt.NDArray[np.uint64]
    read: int
    begun: int
    left: deque[Run] = field(default_factory=deque)
    asked: int = 0
    changed: int = 0
    sweep_ticks: int = 1
    tracked: bool = True
