"""Replay of recorded misses: in parts on one CPU, or of several CPUs as a whole.

Takes a running timing model, the misses and where their pages lie; gives modelled time, and the
latency and issue time of each miss. It runs ``timing_replay_misses`` and ``timing_replay_threads``
(hmd/emulate/timing/timing.h), at 20 to 60 ns of host time per miss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hmd.emulate._timing import ffi, lib
from hmd.emulate.recordings.miss_stream import MissOutcomes, MissStream, ThreadOrder
from hmd.errors import HmdError

UNMAPPED = np.uint64(2**64 - 1)
"""Physical address of a page that is not mapped."""

END: Final = 2**64 - 1
"""A time, or a row, that no recording reaches."""

_MISS_COLUMNS = (
    "instructions",
    "paid_hits",
    "near_hits",
    "page",
    "line",
    "flags",
    "depends",
    "page_paddr",
    "latency_ps",
    "clock_ps",
)


class MissReplay:
    """A replay of recorded misses in parts; it continues at ``next``.

    ``page_paddr``, shape ``(pages,)``, may change between parts: an ``UNMAPPED`` page stops the
    replay before its next access.
    """

    def __init__(
        self,
        timing: Callable[[], Any],
        stream: MissStream,
        page_paddr: npt.NDArray[np.uint64],
        into: MissOutcomes | None,
    ) -> None:
        _check_shapes(stream, page_paddr, into)
        if stream.threads is not None:
            raise HmdError(
                f"a recording of {stream.cpus} CPUs is replayed as a whole only: record the "
                "program with one thread"
            )
        self._timing = timing
        self._stream = stream
        self.page_paddr = np.ascontiguousarray(page_paddr)
        self._misses = ffi.new("struct timing_misses *")
        self._held = _fill_misses(self._misses, stream, self.page_paddr, into)
        self._progress = ffi.new("struct timing_progress *")

    @property
    def next(self) -> int:
        """The first row that is not replayed yet."""
        return int(self._progress.next)

    @property
    def done(self) -> bool:
        """Whether all rows are replayed."""
        return self.next == len(self._stream)

    @property
    def stopped_at(self) -> int | None:
        """The unmapped page that the next row accesses; None if that page is mapped."""
        if self.done:
            return None
        page = int(self._stream.page[self.next])
        return page if self.page_paddr[page] == UNMAPPED else None

    def run(self, until_ps: int = END, until_row: int = END) -> int:
        """Replay rows before a time of the CPU's clock; returns its busy time so far, in ps.

        Stops before ``until_row`` and before an access to a page that is not mapped.
        """
        self._misses.count = min(until_row, len(self._stream))
        return int(lib.timing_replay_misses(self._timing(), self._misses, self._progress, until_ps))


def replay_threads(
    timing: Any,
    stream: MissStream,
    order: ThreadOrder,
    page_paddr: npt.NDArray[np.uint64],
    into: MissOutcomes | None,
) -> int:
    """Replay the misses of several CPUs; returns the busy time of the CPU that ends last, in ps.

    ``timing`` is a ``struct timing`` with as many CPUs as the stream.
    """
    _check_shapes(stream, page_paddr, into)
    native = ffi.new("struct timing_misses[]", order.cpus)
    held = [_fill_misses(native[cpu], stream, page_paddr, into, cpu) for cpu in range(order.cpus)]
    meets_at = np.ascontiguousarray(order.meets_at)
    held.append([ffi.from_buffer("uint64_t[]", meets_at)])
    threads = ffi.new("struct timing_threads *")
    threads.cpus, threads.misses = order.cpus, native
    threads.meetings, threads.meets_at = len(meets_at), held[-1][0]
    ended_ps = int(lib.timing_replay_threads(timing, threads))
    if ended_ps == 2**64 - 1:
        raise MemoryError("no memory to replay several CPUs")
    return ended_ps


def _check_shapes(
    stream: MissStream, page_paddr: npt.NDArray[np.uint64], into: MissOutcomes | None
) -> None:
    if page_paddr.shape != (stream.pages,) or page_paddr.dtype != np.uint64:
        raise ValueError(f"page_paddr must be uint64 of shape ({stream.pages},)")
    if into is not None and any(
        len(each) != len(stream) for each in (into.latency_ps, into.clock_ps)
    ):
        raise ValueError("into must have as many rows as the stream")


def _fill_misses(
    native: Any,
    stream: MissStream,
    page_paddr: npt.NDArray[np.uint64],
    into: MissOutcomes | None,
    cpu: int = 0,
) -> list[Any]:
    """Point a ``struct timing_misses`` to the rows of a CPU; returns what must be kept alive."""
    rows = stream.rows_of(cpu)
    columns = [*(column[rows] for column in stream.columns()), np.ascontiguousarray(page_paddr)]
    if into is not None:
        columns += [into.latency_ps[rows], into.clock_ps[rows]]
    held = [ffi.from_buffer(f"{each.dtype}_t[]", each) for each in columns]
    native.count = rows.stop - rows.start
    native.idle = stream.cpus > 1
    for name, column in zip(_MISS_COLUMNS, held, strict=False):
        setattr(native, name, column)
    return held
