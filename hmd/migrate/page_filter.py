"""The filter for pages that stay where they are: shared code, devices, kernel pages.

The code of a library is mapped by many processes; to move one of its pages the kernel unmaps it
from all of them. Costs a query of about 2 µs per mapping that pages of a plan lie in
(:mod:`hmd.machine.pages.mapping_queries`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.machine.linear_pattern import LinearPattern
from hmd.machine.pages.mapping_queries import mappings_at
from hmd.machine.process_id import PROC, ProcessId

PageFilter: TypeAlias = Callable[[ProcessId, npt.NDArray[np.uint64]], npt.NDArray[np.bool_]]
"""Returns which pages of a process may move: a mask of the shape of the addresses."""


class MovableMappings:
    """The page filter by mappings (:attr:`hmd.machine.pages.mappings.Mappings.movable`)."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._kept: dict[ProcessId, tuple[LinearPattern, ...]] = {}

    def keep(self, patterns: Mapping[ProcessId, tuple[LinearPattern, ...]]) -> None:
        """Keep pages where they are whose mapping's path matches a pattern of their process."""
        self._kept = dict(patterns)

    def __call__(
        self, process: ProcessId, addresses: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.bool_]:
        """Return which of the pages lie in movable mappings."""
        mappings = mappings_at(process.pid, addresses, self._proc)
        if mappings is None:
            # maps needs no more rights than move_pages(2) does (PTRACE_MODE_READ; newer kernels
            # also accept CAP_PERFMON): the call reports why the process cannot be read.
            return np.ones(len(addresses), np.bool_)
        kept = self._kept.get(process)
        return (mappings.keeping(kept) if kept else mappings).movable_at(addresses)
