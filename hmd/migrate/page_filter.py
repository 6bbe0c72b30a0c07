"""What must stay where it is: shared code, devices, kernel pages.

The code of a library is mapped by many processes; to move one of its pages the kernel unmaps it
from all of them. Costs a read of /proc/PID/maps a process and plan (2 µs a mapping).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.machine.mappings import read_mappings
from hmd.machine.process_id import PROC, ProcessId

PageFilter: TypeAlias = Callable[[ProcessId, npt.NDArray[np.uint64]], npt.NDArray[np.bool_]]
"""Which pages of a process may be moved: a mask of the addresses' shape."""


class MovableMappings:
    """The page filter that asks the mappings (``Mappings.movable``)."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc

    def __call__(
        self, process: ProcessId, addresses: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.bool_]:
        """Return which of the pages lie in movable mappings."""
        mappings = read_mappings(process.pid, self._proc)
        if mappings is None:
            # maps asks for no more rights than move_pages (PTRACE_MODE_READ; newer kernels also
            # take CAP_PERFMON here): who is refused, or finds nobody, hears why from the call.
            return np.ones(len(addresses), np.bool_)
        return mappings.movable_at(addresses)
