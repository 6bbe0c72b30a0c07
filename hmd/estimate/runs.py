"""The two recorded runs of a program as the model takes them: windows that match, and columns.

Both runs are cut where equally many instructions were executed, where that was counted, so that
a window is the same piece of work in both; else in equal parts of their accesses (by time, a
phase that misses would be matched with one that does not). A row is a sampled access, of one
``Access``: a core waits for loads that memory answers, and for fill buffers that stores hold as
long; what a prefetcher had fetched only moves lines.

Pairs are samples of two counters of one event with different periods that fell so close together
(within a reorder window) that their misses were under way at once: they tell which misses
overlap, which no single counter can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from hmd.estimate.pages import PageIndex, index_pages, same_addresses
from hmd.estimate.windows import CutBy, Windows, cut
from hmd.sample.batch import Kind
from hmd.trace.trace import Trace

WINDOWS = 60
"""Pieces of a run: many enough for its phases, few enough for hundreds of samples in each."""

REORDER_WINDOW = 224
"""Instructions within which misses overlap, where the trace does not tell: the reorder buffer of
Skylake to Cascade Lake (WikiChip)."""

_PRIOR_SAMPLES = 3.0


class Access(IntEnum):
    """What a row is: answered by memory, or fetched before it was asked for."""

    LOAD = 0
    STORE = 1
    STREAMED_LOAD = 2
    STREAMED_STORE = 3


@dataclass(frozen=True, slots=True)
class Run:
    """One run; rows of shape ``(samples,)``, by window of shape ``(windows,)``.

    ``page`` indexes the pages, ``access`` is of ``Access``, ``accesses`` what a row stands for.
    ``ns`` is how long each window took, ``latency_ns`` the mean latency of loads (0 where no
    latency was recorded), ``store_ns`` the latencies of stores in sum, ``queue_ns`` those of
    streams. Pairs are rows, of shape ``(pairs,)``.
    """

    page: npt.NDArray[np.int32]
    window: npt.NDArray[np.int32]
    accesses: npt.NDArray[np.float32]
    access: npt.NDArray[np.int8]
    ns: npt.NDArray[np.float64]
    latency_ns: npt.NDArray[np.float64]
    store_ns: npt.NDArray[np.float64]
    queue_ns: npt.NDArray[np.float64]
    pair_first: npt.NDArray[np.int64]
    pair_second: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TierSpeeds:
    """What is known of the two tiers, 0 for what is not: idle latency, peak bandwidth.

    From the HMAT that the trace carries (ACPI 6.3, section 5.2.27) or from a benchmark.
    """

    slow_latency_ns: float = 0.0
    fast_latency_ns: float = 0.0
    slow_read_bytes_per_ns: float = 0.0
    slow_write_bytes_per_ns: float = 0.0

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> TierSpeeds:
        """Return what a trace tells of its machine's fastest and slowest tier."""
        tiers = about.get("tiers") or []
        if len(tiers) < 2:
            return cls()
        fast, slow = tiers[0], tiers[-1]
        return cls(
            slow_latency_ns=float(slow.get("read_latency_ns") or 0),
            fast_latency_ns=float(fast.get("read_latency_ns") or 0),
            slow_read_bytes_per_ns=float(slow.get("read_bandwidth_mbps") or 0) / 1e3,
            slow_write_bytes_per_ns=float(slow.get("write_bandwidth_mbps") or 0) / 1e3,
        )


@dataclass(frozen=True, slots=True)
class Runs:
    """Both runs, over the same ``windows`` and ``pages``.

    Where they had not the ``same_addresses``, pages are the slow run's, and the fast one has no
    rows.
    """

    slow: Run
    fast: Run
    pages: PageIndex
    speeds: TierSpeeds
    cut_by: CutBy
    same_addresses: bool = True

    @property
    def windows(self) -> int:
        """Number of windows."""
        return len(self.slow.ns)


def side_by_side(
    slow: Trace,
    fast: Trace,
    *,
    windows: int = WINDOWS,
    cut_by: CutBy | None = None,
    speeds: TierSpeeds | None = None,
    reorder_window: int | None = None,
) -> Runs:
    """Return two recorded runs of a program, cut by instructions where both have counts.

    What the machine is (``speeds``, ``reorder_window`` in instructions) the slow run's trace
    tells, where it is not given. Raises UsageError where they are to be cut by instructions and
    were not counted.
    """
    if cut_by is None:
        counted = _counted(slow) and _counted(fast)
        cut_by = CutBy.INSTRUCTIONS if counted else CutBy.ACCESSES
    pages = index_pages(slow, fast)
    same = same_addresses(pages)
    speeds = speeds or TierSpeeds.of(slow.about)
    near = reorder_window or int(slow.about.get("reorder_window") or REORDER_WINDOW)
    floor_ns = _waiting_floor_ns(slow, fast, speeds)
    slow_run = _run(slow, pages.of_sample, cut(slow, windows, cut_by), floor_ns, near)
    fast_run = _run(fast, pages.of_second, cut(fast, windows, cut_by), floor_ns, near)
    if not same:
        pages, fast_run = index_pages(slow), _without_rows(fast_run)
        slow_run = replace(slow_run, page=pages.of_sample)
    return Runs(slow_run, fast_run, pages, speeds, cut_by, same)


def _without_rows(run: Run) -> Run:
    """Return a run with what is known of its windows alone."""
    return replace(
        run,
        page=run.page[:0],
        window=run.window[:0],
        accesses=run.accesses[:0],
        access=run.access[:0],
        pair_first=run.pair_first[:0],
        pair_second=run.pair_second[:0],
    )


def _counted(trace: Trace) -> bool:
    return trace.progress is not None and bool(trace.progress.instructions.any())


def _waiting_floor_ns(slow: Trace, fast: Trace, speeds: TierSpeeds) -> float:
    """Return the latency below which a load was not answered by memory, but found its line."""
    idle = [ns for ns in (speeds.slow_latency_ns, speeds.fast_latency_ns) if ns > 0]
    if idle:
        return min(idle) / 2
    weighed = fast.samples.weight_ns[fast.samples.weight_ns > 0]
    return float(np.median(weighed)) / 2 if len(weighed) else 0.0


def _run(
    trace: Trace, page: npt.NDArray[np.int32], windows: Windows, floor_ns: float, near: int
) -> Run:
    samples, count = trace.samples, len(windows)
    weight = samples.weight_ns.astype(np.float64)
    store = samples.kind == Kind.STORE
    # Sources that do not know the latency of stores leave it 0.
    streamed = np.where(store, weight < max(floor_ns, 1.0), weight < floor_ns)
    access = (store + 2 * streamed).astype(np.int8)
    lost = 1.0 + trace.losses.lost / max(len(samples), 1)
    accesses = (samples.period * lost).astype(np.float32)
    window = windows.of_sample

    def in_sum(chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        total = np.bincount(window[chosen], weight[chosen] * accesses[chosen], count)
        return np.asarray(total, np.float64)

    load = (access == Access.LOAD) & (weight > 0)
    rows = np.bincount(window[load], minlength=count)
    total_ns = np.bincount(window[load], weight[load], count)
    mean_ns = float(weight[load].mean()) if load.any() else 0.0
    first, second = _pairs(trace, access == Access.LOAD, near, floor_ns)
    return Run(
        page,
        window,
        accesses,
        access,
        windows.ns,
        (total_ns + _PRIOR_SAMPLES * mean_ns) / (rows + _PRIOR_SAMPLES),
        in_sum(access == Access.STORE),
        in_sum(access >= Access.STREAMED_LOAD),
        first,
        second,
    )


def _pairs(
    trace: Trace, load: npt.NDArray[np.bool_], near: int, near_ns: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return neighbours among a CPU's loads from memory that were executed within a window.

    Where samples carry no counts of instructions, those are meant that were less than half an
    idle latency apart: a window that is full waits for longer.
    """
    samples = trace.samples
    if samples.instructions.any():
        rows, order, most = np.flatnonzero(load & (samples.instructions > 0)), "instructions", near
    elif trace.about.get("pairs"):
        rows, order, most = np.flatnonzero(load), "time_ns", int(near_ns)
    else:
        # One counter: what looks near has a clock that steps, or is luck.
        return np.empty(0, np.int64), np.empty(0, np.int64)
    place = getattr(samples, order)[rows]
    sequence = np.lexsort((place, samples.cpu[rows]))
    rows, place = rows[sequence], place[sequence]
    cpu, address = samples.cpu[rows], samples.address[rows]
    apart = place[1:] - place[:-1]
    # The same access, sampled by both counters, is no pair.
    same = (apart == 0) & (address[1:] == address[:-1])
    first = np.flatnonzero((cpu[1:] == cpu[:-1]) & (apart < most) & ~same)
    return rows[first], rows[first + 1]
