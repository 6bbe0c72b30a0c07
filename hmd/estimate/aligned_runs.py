"""The two recorded runs of a program as inputs of the model: matching windows, and columns.

Both runs are cut at equal instruction counts if both have them, so that a window is the same work
in both; else into equal parts of their accesses (cut by time, a phase with misses would match one
without). A row holds the samples of a page in a window, of one ``AccessClass``: a core waits for
loads that memory answers, and for fill buffers that stores hold as long; prefetched lines only use
bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hmd.estimate.page_index import PageIndex, distinct, page_keys, same_addresses
from hmd.estimate.sample_aggregation import (
    AccessClass,
    AggregatedSamples,
    SampleAggregator,
    access_of,
)
from hmd.estimate.sample_pairs import FoundPairs, Near, PairCollector
from hmd.estimate.window_latencies import least_latency, mean_latency
from hmd.estimate.windows import CutBy, Windows, cut
from hmd.sample.cpu_model import SKYLAKE_SERVER, Core
from hmd.trace.streaming import TraceSource
from hmd.trace.trace import Trace

WINDOWS = 60
"""Windows of a run: enough for its phases, few enough for hundreds of samples per window."""


@dataclass(frozen=True, slots=True)
class AlignedRun:
    """One run; rows of shape ``(rows,)``, by window of shape ``(windows,)``.

    ``page`` indexes the pages, ``access`` is of ``AccessClass``, ``accesses`` are those that the
    ``samples`` of a row stand for. ``ns`` is the length of each window; ``latency_ns`` the mean
    latency of loads, ``least_ns`` that of loads without queueing (both 0 if no latency was
    recorded); ``store_ns`` the sum of latencies of stores, ``queue_ns`` of streams. Pairs, of shape
    ``(pairs,)``: their pages and window; each stands for ``pair_one_of``. Rows are scaled up by
    ``lost``, lost samples per kept one; pairs are not.
    """

    page: npt.NDArray[np.int32]
    window: npt.NDArray[np.int32]
    access: npt.NDArray[np.int8]
    samples: npt.NDArray[np.int32]
    accesses: npt.NDArray[np.float32]
    ns: npt.NDArray[np.float64]
    latency_ns: npt.NDArray[np.float64]
    least_ns: npt.NDArray[np.float64]
    store_ns: npt.NDArray[np.float64]
    queue_ns: npt.NDArray[np.float64]
    pair_a: npt.NDArray[np.int32]
    pair_b: npt.NDArray[np.int32]
    pair_window: npt.NDArray[np.int32]
    pair_one_of: int = 1
    lost: float = 0.0


@dataclass(frozen=True, slots=True)
class TierSpeeds:
    """Idle latency and peak bandwidth of the two tiers, 0 if unknown.

    From the HMAT that the trace carries (ACPI 6.3, section 5.2.27) or from a benchmark.
    """

    slow_latency_ns: float = 0.0
    fast_latency_ns: float = 0.0
    slow_read_bytes_per_ns: float = 0.0
    slow_write_bytes_per_ns: float = 0.0

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> TierSpeeds:
        """Return the speeds of the fastest and the slowest tier in a trace's metadata."""
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
class AlignedRuns:
    """Both runs, over the same ``windows`` and ``pages``.

    Without ``same_addresses``, pages are the slow run's, and the fast one has no rows.
    """

    slow: AlignedRun
    fast: AlignedRun
    pages: PageIndex
    speeds: TierSpeeds
    core: Core
    cut_by: CutBy
    same_addresses: bool = True

    @property
    def windows(self) -> int:
        """Number of windows."""
        return len(self.slow.ns)


def side_by_side(
    slow: TraceSource,
    fast: TraceSource,
    *,
    windows: int = WINDOWS,
    cut_by: CutBy | None = None,
    speeds: TierSpeeds | None = None,
    core: Core | None = None,
) -> AlignedRuns:
    """Return two recorded runs of a program, cut by instructions where both have counts.

    Each is a trace in memory or a ``TraceFile``, which is read once more, one block at a time.

    ``speeds`` and ``core`` of the machine default to those of the slow run's trace. Raises
    UsageError if the runs are to be cut by instructions that were not counted.
    """
    ends = slow.outline, fast.outline
    if cut_by is None:
        counted = all(_counted(trace) for trace in ends)
        cut_by = CutBy.INSTRUCTIONS if counted else CutBy.ACCESSES
    same = same_addresses(*ends)
    speeds = speeds or TierSpeeds.of(slow.outline.about)
    floor_ns = _waiting_floor_ns(*ends, speeds)
    core = core or core_of(slow.outline.about)
    both = [
        _counts(each, cut(each.outline, windows, cut_by), floor_ns, core) for each in (slow, fast)
    ]
    if not same:
        both[1] = both[1].without_rows()
    keys = distinct(np.concatenate([counts.rows.key for counts in both]))
    slow_run, fast_run = (counts.over(keys) for counts in both)
    heat = np.bincount(slow_run.page, slow_run.accesses, len(keys)).astype(np.float64)
    return AlignedRuns(slow_run, fast_run, PageIndex.of(keys, heat), speeds, core, cut_by, same)


def core_of(about: Mapping[str, Any]) -> Core:
    """Return the cores in a trace's metadata; if it has none, those of Skylake servers."""
    return Core(
        int(about.get("reorder_window") or SKYLAKE_SERVER.reorder_window),
        int(about.get("fill_buffers") or SKYLAKE_SERVER.fill_buffers),
    )


def _counted(trace: Trace) -> bool:
    return trace.progress is not None and bool(trace.progress.instructions.any())


def _waiting_floor_ns(slow: Trace, fast: Trace, speeds: TierSpeeds) -> float:
    """Return the latency below which a load found its line in flight or in a cache."""
    idle = [ns for ns in (speeds.slow_latency_ns, speeds.fast_latency_ns) if ns > 0]
    if idle:
        return min(idle) / 2
    weighed = fast.samples.weight_ns[fast.samples.weight_ns > 0]
    return float(np.median(weighed)) / 2 if len(weighed) else 0.0


@dataclass(frozen=True, slots=True)
class _Counts:
    """One run's aggregated samples, with keys for pages; the rest as in ``AlignedRun``."""

    rows: AggregatedSamples
    pairs: FoundPairs
    ns: npt.NDArray[np.float64]
    latency_ns: npt.NDArray[np.float64]
    least_ns: npt.NDArray[np.float64]
    store_ns: npt.NDArray[np.float64]
    queue_ns: npt.NDArray[np.float64]
    lost: float

    def without_rows(self) -> _Counts:
        """Return the run without rows: its windows only."""
        return replace(self, rows=self.rows.take(slice(0)), pairs=self.pairs.take(slice(0)))

    def over(self, keys: npt.NDArray[np.uint64]) -> AlignedRun:
        """Return the run with its pages as indices into ``keys``."""

        def number(key: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
            return np.searchsorted(keys, key).astype(np.int32)

        rows, pairs = self.rows, self.pairs
        return AlignedRun(
            page=number(rows.key),
            window=rows.window,
            access=rows.access,
            samples=rows.samples,
            accesses=(rows.accesses * (1 + self.lost)).astype(np.float32),
            ns=self.ns,
            latency_ns=self.latency_ns,
            least_ns=self.least_ns,
            store_ns=self.store_ns * (1 + self.lost),
            queue_ns=self.queue_ns * (1 + self.lost),
            pair_a=number(pairs.key_a),
            pair_b=number(pairs.key_b),
            pair_window=pairs.window,
            pair_one_of=pairs.one_of,
            lost=self.lost,
        )


def _counts(recording: TraceSource, windows: Windows, floor_ns: float, core: Core) -> _Counts:
    """Return a run's samples, aggregated in one pass."""
    outline, count = recording.outline, len(windows)
    aggregator = SampleAggregator(windows)
    pairs = PairCollector(Near.of(outline, core.reorder_window, floor_ns))
    loads, load_ns, store_ns, queue_ns = np.zeros((4, count))
    for batch in recording.batches():
        window, access = windows.of(batch.time_ns), access_of(batch, floor_ns)
        weight_ns = batch.weight_ns.astype(np.float64)
        aggregator.add(batch, window, access)
        pairs.add(batch, page_keys(batch), window, access == AccessClass.LOAD)
        load = (access == AccessClass.LOAD) & (batch.weight_ns > 0)
        loads += np.bincount(window[load], minlength=count)
        load_ns += np.bincount(window[load], weight_ns[load], count)
        mass_ns = weight_ns * batch.period
        store, streamed = access == AccessClass.STORE, access >= AccessClass.STREAMED_LOAD
        store_ns += np.bincount(window[store], mass_ns[store], count)
        queue_ns += np.bincount(window[streamed], mass_ns[streamed], count)
    return _Counts(
        aggregator.rows(),
        pairs.found(),
        windows.ns,
        mean_latency(loads, load_ns),
        least_latency(outline, windows, floor_ns),
        store_ns,
        queue_ns,
        outline.losses.lost / max(recording.recorded, 1),
    )
