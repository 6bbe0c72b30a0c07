"""The pages of one or two traces, numbered densely: what layouts and counts are arrays over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.machine.process import PAGE_BYTES
from hmd.trace.trace import Trace

_PROCESS_SHIFT = np.uint64(52)  # page numbers of 57-bit addresses have 45 bits


@dataclass(frozen=True, slots=True)
class PageIndex:
    """Sampled pages in order of process and address.

    ``process`` and ``address`` have shape ``(pages,)``; ``of_sample``, shape ``(samples,)``, is
    the page of each sample of the first trace; ``accesses``, shape ``(pages,)``, how many
    accesses those samples stand for. ``of_second`` is the page of each sample of the second
    trace, where there is one.
    """

    process: npt.NDArray[np.uint16]
    address: npt.NDArray[np.uint64]
    of_sample: npt.NDArray[np.int32]
    accesses: npt.NDArray[np.float64]
    of_second: npt.NDArray[np.int32]

    def __len__(self) -> int:
        """Return the number of pages."""
        return len(self.address)


def index_pages(first: Trace, second: Trace | None = None) -> PageIndex:
    """Return the pages of a trace's samples, and those of a second run of the program."""
    key, split = _keys(first), len(first.samples)
    if second is not None:
        key = np.concatenate([key, _keys(second)])
    keys, found = np.unique(key, return_inverse=True)
    of_all: npt.NDArray[np.int32] = found.astype(np.int32)
    address = (keys & ((np.uint64(1) << _PROCESS_SHIFT) - np.uint64(1))) * np.uint64(PAGE_BYTES)
    of_sample = of_all[:split]
    return PageIndex(
        process=(keys >> _PROCESS_SHIFT).astype(np.uint16),
        address=address,
        of_sample=of_sample,
        accesses=np.bincount(of_sample, first.samples.period, len(keys)).astype(np.float64),
        of_second=of_all[split:],
    )


def same_addresses(pages: PageIndex) -> bool:
    """Return whether two runs placed the same things at the same addresses.

    Not where samples of the second fall on known pages less than half as often as samples of the
    first do: known are the pages of every other sample of the first.
    """
    if len(pages.of_sample) < 2 or not len(pages.of_second):
        return True
    known = np.bincount(pages.of_sample[::2], minlength=len(pages)) > 0
    own, other = known[pages.of_sample[1::2]].mean(), known[pages.of_second].mean()
    return bool(other >= own / 2)


def _keys(trace: Trace) -> npt.NDArray[np.uint64]:
    samples = trace.samples
    page = samples.address // np.uint64(PAGE_BYTES)
    return np.asarray(page | samples.process.astype(np.uint64) << _PROCESS_SHIFT)
