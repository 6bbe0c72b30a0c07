"""The pages of a trace, numbered densely: what layouts and counts are arrays over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.machine.process import PAGE_BYTES
from hmd.trace.trace import Trace

_PROCESS_SHIFT = np.uint64(52)  # page numbers of 57-bit addresses have 45 bits


@dataclass(frozen=True, slots=True)
class PageIndex:
    """Sampled pages of a trace in order of process and address.

    ``process`` and ``address`` have shape ``(pages,)``; ``of_sample``, shape ``(samples,)``, is
    the page of each sample; ``accesses``, shape ``(pages,)``, how many accesses its samples
    stand for.
    """

    process: npt.NDArray[np.uint16]
    address: npt.NDArray[np.uint64]
    of_sample: npt.NDArray[np.int32]
    accesses: npt.NDArray[np.float64]

    def __len__(self) -> int:
        """Return the number of pages."""
        return len(self.address)


def index_pages(trace: Trace) -> PageIndex:
    """Return the pages of a trace's samples."""
    samples = trace.samples
    page = samples.address // np.uint64(PAGE_BYTES)
    key = page | samples.process.astype(np.uint64) << _PROCESS_SHIFT
    keys, of_sample = np.unique(key, return_inverse=True)
    address = (keys & ((np.uint64(1) << _PROCESS_SHIFT) - np.uint64(1))) * np.uint64(PAGE_BYTES)
    return PageIndex(
        process=(keys >> _PROCESS_SHIFT).astype(np.uint16),
        address=address,
        of_sample=of_sample.astype(np.int32),
        accesses=np.bincount(of_sample, samples.period, len(keys)).astype(np.float64),
    )
