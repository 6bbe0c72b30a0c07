# SPDX-License-Identifier: MIT
"""The two recorded runs of a program as inputs of the model: checked, and in matching windows.

Both runs are cut at equal instruction counts if both have them, so that a window is the same work
in both; else into equal parts of their accesses (cut by time, a phase with misses would match one
without). What one thread does in a window is a part. A row holds the samples of a page in a part,
of one ``AccessClass``: a core waits for loads that memory answers, and for fill buffers that stores
hold as long; prefetched lines only use bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hmd.base.errors import UsageError
from hmd.base.units import LINE_BYTES
from hmd.estimate.samples import (
    AccessClass,
    AggregatedSamples,
    FoundPairs,
    PageIndex,
    PairCollector,
    PairDefinition,
    SampleAggregator,
    classify_accesses,
    page_keys,
    same_addresses,
    sort_distinct,
)
from hmd.estimate.windows import CutBy, Parts, Windows, count_threads, cut, match_threads
from hmd.sample.access_batch import Kind
from hmd.sample.cpu_models import SKYLAKE_SERVER, Core
from hmd.trace.reader import TraceSource
from hmd.trace.summary import resident_pages
from hmd.trace.trace import Trace

Floats = npt.NDArray[np.float64]

WINDOWS = 60
"""Windows of a run: enough for its phases, few enough for hundreds of samples per window."""
STREAM_WINDOWS = 600
"""Those of a run that waits for streams, which stay long on pages of one tier."""
_STREAMED, _STALLED = 0.7, 0.5
"""Shares of lines that were prefetched and of time spent waiting, above which a run is such."""
SAME_PLACEMENT = 0.05
"""Two runs have the same placement if less than this share of their pages is on other nodes."""
_UNQUEUED = 0.2  # share of a part's loads that did not wait for a fill buffer
_MIN_LOADS = 10  # loads of a part that speak for it
_PRIOR_SAMPLES = 3.0
_MAX_RECORDING = 0.9  # share of a part's time that its samples may have taken


@dataclass(frozen=True, slots=True)
class AlignedRun:
    """One run; rows of shape ``(rows,)``, figures of parts ``(parts,)``, of windows ``(windows,)``.

    ``page`` indexes the pages, ``access`` is of ``AccessClass``, ``accesses`` are those that the
    ``samples`` of a row stand for. ``ns`` is the length of each window, ``read_bytes`` and
    ``write_bytes`` are what its tier moved, and ``stalled_ns`` for how long its threads waited for
    memory in sum (0: not counted). By part, ``busy_ns`` is how long its
    thread ran; ``latency_ns`` the mean latency of loads, ``least_ns`` that of loads without
    queueing (both 0 if no latency was recorded); ``store_ns`` the sum of latencies of stores,
    ``queue_ns`` of streams. Pairs, of shape ``(pairs,)``: their pages and part; each stands for
    ``pair_stride``. Rows are scaled up by ``lost``, lost samples per kept one; pairs are not.
    """

    page: npt.NDArray[np.int32]
    part: npt.NDArray[np.int32]
    access: npt.NDArray[np.int8]
    samples: npt.NDArray[np.int32]
    accesses: npt.NDArray[np.float32]
    ns: npt.NDArray[np.float64]
    read_bytes: npt.NDArray[np.float64]
    write_bytes: npt.NDArray[np.float64]
    stalled_ns: npt.NDArray[np.float64]
    busy_ns: npt.NDArray[np.float64]
    latency_ns: npt.NDArray[np.float64]
    least_ns: npt.NDArray[np.float64]
    store_ns: npt.NDArray[np.float64]
    queue_ns: npt.NDArray[np.float64]
    pair_a: npt.NDArray[np.int32]
    pair_b: npt.NDArray[np.int32]
    pair_part: npt.NDArray[np.int32]
    pair_stride: int = 1
    lost: float = 0.0

    @property
    def stalled_by_part_ns(self) -> Floats:
        """How long each part's thread waited for memory, ``(parts,)``, by the threads' times."""
        threads = len(self.busy_ns) // len(self.ns)
        of_all = np.repeat(self.busy_ns.reshape(len(self.ns), -1).sum(1), threads)
        stalled_ns = np.repeat(self.stalled_ns, threads) * self.busy_ns
        return np.asarray(stalled_ns / np.where(of_all > 0, of_all, 1.0))


@dataclass(frozen=True, slots=True)
class TierSpeeds:
    """Idle latency and peak bandwidth of the two tiers, 0 if unknown.

    From the HMAT that the trace carries (ACPI 6.3, section 5.2.27) or from a benchmark. The slow
    tier's memory moves blocks of ``slow_block_bytes``, more than a line if it is persistent.
    """

    slow_latency_ns: float = 0.0
    fast_latency_ns: float = 0.0
    slow_read_bytes_per_ns: float = 0.0
    slow_write_bytes_per_ns: float = 0.0
    fast_read_bytes_per_ns: float = 0.0
    fast_write_bytes_per_ns: float = 0.0
    slow_block_bytes: float = LINE_BYTES

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> TierSpeeds:
        """Return the speeds of the fastest and the slowest tier in a trace's metadata."""
        tiers = about.get("tiers") or []
        if len(tiers) < 2:
            return cls()
        fast, slow = tiers[0], tiers[-1]
        latencies_ns = (float(tier.get("read_latency_ns") or 0) for tier in (slow, fast))
        bandwidths = (
            float(tier.get(f"{way}_bandwidth_mbps") or 0) / 1e3
            for tier in (slow, fast)
            for way in ("read", "write")
        )
        return cls(*latencies_ns, *bandwidths)

    def work_ns(
        self, tier: Literal["slow", "fast"], read_bytes: Floats, write_bytes: Floats
    ) -> tuple[Floats, Floats]:
        """Return the times of reads and writes at a tier's peak bandwidths; 0 where not known."""
        read = getattr(self, f"{tier}_read_bytes_per_ns")
        write = getattr(self, f"{tier}_write_bytes_per_ns")
        if min(read, write) <= 0:
            return np.zeros(len(read_bytes)), np.zeros(len(read_bytes))
        return read_bytes / read, write_bytes / write


@dataclass(frozen=True, slots=True)
class AlignedRuns:
    """Both runs, over the same ``windows``, ``threads`` and ``pages``.

    Without ``same_addresses``, pages are the slow run's, and the fast one has no rows.
    ``sampled_threads`` of the program have samples; one of the runs may be ``predicted``
    instead of recorded.
    """

    slow: AlignedRun
    fast: AlignedRun
    pages: PageIndex
    speeds: TierSpeeds
    core: Core
    cut_by: CutBy
    same_addresses: bool = True
    sampled_threads: int = 1
    predicted: Literal["slow", "fast"] | None = None

    @property
    def windows(self) -> int:
        """Number of windows."""
        return len(self.slow.ns)

    @property
    def parts(self) -> int:
        """Number of windows times that of threads."""
        return len(self.slow.busy_ns)

    @property
    def threads(self) -> int:
        """Number of threads that are priced by themselves."""
        return self.parts // self.windows


def side_by_side(
    slow: TraceSource,
    fast: TraceSource,
    *,
    windows: int | None = None,
    cut_by: CutBy | None = None,
    speeds: TierSpeeds | None = None,
    core: Core | None = None,
) -> AlignedRuns:
    """Return two recorded runs of a program, cut by instructions where both have counts.

    Each is a trace in memory or a ``TraceFile``, which is read once more, one block at a time.
    Without ``windows`` there are ``WINDOWS``, or ``STREAM_WINDOWS`` for a program of that kind.

    ``speeds`` and ``core`` of the machine default to those of the slow run's trace. Raises
    UsageError if the runs are to be cut by instructions that were not counted.
    """
    ends = slow.thinned, fast.thinned
    if cut_by is None:
        counted = all(has_counts(trace) for trace in ends)
        cut_by = CutBy.INSTRUCTIONS if counted else CutBy.ACCESSES
    same = same_addresses(*ends)
    speeds = speeds or TierSpeeds.of(slow.thinned.about)
    floor_ns = waiting_floor_ns(*ends, speeds)
    core = core or read_core(slow.thinned.about)
    if windows is None:
        windows = STREAM_WINDOWS if waits_for_streams(slow.thinned, floor_ns) else WINDOWS
    runs = [
        aggregate_run(
            each, Parts(cut(each.thinned, windows, cut_by), threads), floor_ns, core, tier
        )
        for each, threads, tier in zip((slow, fast), match_threads(*ends), (-1, 0), strict=True)
    ]
    if not same:  # only what is known of the fast run's windows
        runs[1] = replace(runs[1], rows=SampleAggregator(0).rows(), pairs=FoundPairs.empty())
    keys = sort_distinct(np.concatenate([run.rows.key for run in runs]))
    slow_run, fast_run = (run.indexed(keys) for run in runs)
    heat = np.bincount(slow_run.page, slow_run.accesses, len(keys)).astype(np.float64)
    threads = max(map(count_threads, ends))
    return AlignedRuns(
        slow_run, fast_run, PageIndex.of(keys, heat), speeds, core, cut_by, same, threads
    )


def waits_for_streams(trace: Trace, floor_ns: float) -> bool:
    """Return whether a run waits for most of its time, and most of its lines are prefetched."""
    samples, threads = trace.samples, count_threads(trace)
    if not len(samples) or trace.progress is None:
        return False
    streamed = classify_accesses(samples, floor_ns) >= AccessClass.STREAMED_LOAD
    weights = samples.period.astype(np.float64)
    lines = float(weights[streamed].sum()) / max(float(weights.sum()), 1.0)
    stalled = trace.progress.last_sum("stalled_ns") / max(trace.runtime_ns * threads, 1)
    return lines > _STREAMED and stalled > _STALLED


def read_core(about: Mapping[str, Any]) -> Core:
    """Return the cores in a trace's metadata; if it has none, those of Skylake servers."""
    return Core(
        int(about.get("reorder_window") or SKYLAKE_SERVER.reorder_window),
        int(about.get("fill_buffers") or SKYLAKE_SERVER.fill_buffers),
    )


def has_counts(trace: Trace) -> bool:
    """Return whether a trace has instruction counts, to cut it by."""
    return trace.progress is not None and bool(trace.progress.instructions.any())


def waiting_floor_ns(slow: Trace, fast: Trace, speeds: TierSpeeds) -> float:
    """Return the latency below which a load found its line in flight or in a cache.

    It is 0 where no latencies of loads are known: their event counts misses alone.
    """
    if not any((t.samples.latency_ns[t.samples.kind == Kind.LOAD] > 0).any() for t in (slow, fast)):
        return 0.0
    idle = [ns for ns in (speeds.slow_latency_ns, speeds.fast_latency_ns) if ns > 0]
    if idle:
        return min(idle) / 2
    weighed = fast.samples.latency_ns[fast.samples.latency_ns > 0]
    return float(np.median(weighed)) / 2 if len(weighed) else 0.0


@dataclass(frozen=True, slots=True)
class AggregatedRun:
    """One run's samples, with keys for pages; ``figures`` are other fields of ``AlignedRun``."""

    rows: AggregatedSamples
    pairs: FoundPairs
    figures: Mapping[str, Floats]
    lost: float

    def indexed(self, keys: npt.NDArray[np.uint64]) -> AlignedRun:
        """Return the run with its pages as indices into ``keys``."""
        rows, pairs = self.rows, self.pairs
        page, pair_a, pair_b = (
            np.searchsorted(keys, key).astype(np.int32)
            for key in (rows.key, pairs.key_a, pairs.key_b)
        )
        return AlignedRun(
            page=page,
            part=rows.part,
            access=rows.access,
            samples=rows.samples,
            accesses=(rows.accesses * (1 + self.lost)).astype(np.float32),
            pair_a=pair_a,
            pair_b=pair_b,
            pair_part=pairs.part,
            pair_stride=pairs.stride,
            lost=self.lost,
            **self.figures,
        )


def aggregate_run(
    recording: TraceSource, parts: Parts, floor_ns: float, core: Core, tier: int
) -> AggregatedRun:
    """Return the samples of a run on a tier, aggregated in one pass."""
    thinned, count = recording.thinned, len(parts)
    aggregator = SampleAggregator(count)
    pairs = PairCollector(PairDefinition.of(thinned, core.reorder_window, floor_ns))
    loads, load_ns, store_ns, queue_ns, recorded = np.zeros((5, count))
    for batch in recording.batches():
        part, access = parts.of(batch), classify_accesses(batch, floor_ns)
        latency_ns = batch.latency_ns.astype(np.float64)
        aggregator.add(batch, part, access)
        pairs.add(batch, page_keys(batch), part, access == AccessClass.LOAD)
        load = (access == AccessClass.LOAD) & (batch.latency_ns > 0)
        recorded += np.bincount(part, minlength=count)
        loads += np.bincount(part[load], minlength=count)
        load_ns += np.bincount(part[load], latency_ns[load], count)
        mass_ns = latency_ns * batch.period
        store, streamed = access == AccessClass.STORE, access >= AccessClass.STREAMED_LOAD
        store_ns += np.bincount(part[store], mass_ns[store], count)
        queue_ns += np.bincount(part[streamed], mass_ns[streamed], count)
    lost = thinned.losses.lost / max(recording.recorded, 1)
    # What samples took of the program's time, which runs without a recorder do not take.
    busy_ns = parts.busy_ns(thinned)
    cost_ns = recorded * (1 + lost) * float(thinned.about.get("record_ns") or 0)
    cost_ns = np.minimum(cost_ns, _MAX_RECORDING * busy_ns)
    ns = parts.windows.ns
    figures = {
        "ns": ns - cost_ns.reshape(len(ns), -1).max(1),
        **moved_bytes(thinned, parts.windows, tier),
        "stalled_ns": stalled_ns(thinned, parts.windows),
        "busy_ns": busy_ns - cost_ns,
        "latency_ns": mean_latency(loads, load_ns),
        "least_ns": least_latency(thinned, parts, floor_ns),
        "store_ns": store_ns * (1 + lost),
        "queue_ns": queue_ns * (1 + lost),
    }
    return AggregatedRun(aggregator.rows(), pairs.found(), figures, lost)


def moved_bytes(trace: Trace, windows: Windows, tier: int) -> dict[str, Floats]:
    """Return what a tier (-1: the slowest) read and wrote by window, ``(windows,)``."""
    rows = trace.traffic
    names = ("read_bytes", "write_bytes")
    moved = {name: np.zeros(len(windows)) for name in names}
    tiers = trace.about.get("tiers") or []
    if rows is None or not tiers:
        return moved
    edges_ns = np.append(0.0, np.cumsum(windows.ns))
    for node in tiers[tier]["nodes"]:
        own = rows.node == node
        if own.any():
            at_ns = rows.time_ns[own].astype(np.float64) - float(windows.begin_ns)
            for name in names:
                moved[name] += np.diff(np.interp(edges_ns, at_ns, getattr(rows, name)[own]))
    return moved


def stalled_ns(trace: Trace, windows: Windows) -> Floats:
    """Return for how long all threads waited for memory by window, ``(windows,)``."""
    rows, found = trace.progress, np.zeros(len(windows))
    if rows is None or not rows.stalled_ns.any():
        return found
    edges_ns = np.append(0.0, np.cumsum(windows.ns))
    order = np.lexsort((rows.time_ns, rows.process))
    for own in np.split(order, np.flatnonzero(np.diff(rows.process[order])) + 1):
        at_ns = rows.time_ns[own].astype(np.float64) - float(windows.begin_ns)
        waited_ns = np.append(0.0, np.maximum.accumulate(rows.stalled_ns[own].astype(np.float64)))
        found += np.diff(np.interp(edges_ns, np.append(0.0, np.maximum(at_ns, 0.0)), waited_ns))
    return found


def mean_latency(loads: Floats, load_ns: Floats) -> Floats:
    """Return the mean by part, ``(parts,)``, from numbers of loads and sums of latencies.

    Parts with few loads are shrunk towards the mean of all; 0 if no latency was recorded.
    """
    mean_ns = load_ns.sum() / max(loads.sum(), 1.0)
    return np.asarray((load_ns + _PRIOR_SAMPLES * mean_ns) / (loads + _PRIOR_SAMPLES))


def least_latency(trace: Trace, parts: Parts, floor_ns: float) -> Floats:
    """Return the latency that a fifth of a part's loads stay below, ``(parts,)``.

    A measured latency (PEBS's weight) starts when the load's address is known, so it includes the
    wait for a fill buffer; the lowest fifth of a part's loads did not wait. A thinned trace
    suffices. Parts with few loads have that of all; 0 if none was recorded.
    """
    samples = trace.samples
    load = (classify_accesses(samples, floor_ns) == AccessClass.LOAD) & (samples.latency_ns > 0)
    latency_ns = samples.latency_ns[load].astype(np.float64)
    if not len(latency_ns):
        return np.zeros(len(parts))
    part = parts.of(samples.take(load))
    latency_ns = latency_ns[np.lexsort((latency_ns, part))]
    loads = np.bincount(part, minlength=len(parts))
    begins = np.cumsum(loads) - loads
    place = np.minimum(begins + (loads * _UNQUEUED).astype(np.int64), len(latency_ns) - 1)
    least_ns = np.where(loads < _MIN_LOADS, np.quantile(latency_ns, _UNQUEUED), latency_ns[place])
    return np.asarray(least_ns)


def check(slow: Trace, fast: Trace, names: tuple[str, str] = ("SLOW", "FAST")) -> list[str]:
    """Return warnings, one sentence each; ``names`` are the traces' names in messages.

    Raises UsageError, in one line, if the pair cannot be estimated from: no slow samples, two
    clocks, the wrong order, one recording given twice, or two runs with the same placement.
    """
    slow_name, fast_name = names
    if not len(slow.samples):
        raise UsageError(f"{slow_name} has no samples: record with a shorter --period")
    if slow.clock != fast.clock:
        raise UsageError(
            f"{slow_name} has {slow.clock} time and {fast_name} {fast.clock}: "
            "record both on one machine"
        )
    tiers = slow.about.get("tier"), fast.about.get("tier")
    if tiers == ("fast", "slow"):
        raise UsageError(
            f"{slow_name} was recorded with --tier fast and {fast_name} with --tier slow: "
            "name the slow one first"
        )
    if tiers[0] is not None and tiers[0] == tiers[1]:
        raise UsageError(
            f"{slow_name} and {fast_name} were both recorded with --tier {tiers[0]}: "
            "record one with --tier slow and one with --tier fast"
        )
    if (
        slow.runtime_ns == fast.runtime_ns
        and np.array_equal(slow.samples.time_ns, fast.samples.time_ns)
        and np.array_equal(slow.samples.address, fast.samples.address)
    ):
        raise UsageError(
            f"{slow_name} and {fast_name} are the same recording: "
            "record one run with --tier slow and one with --tier fast"
        )
    if tiers != ("slow", "fast") and _same_placement(slow, fast):
        raise UsageError(
            f"both runs had the same placement: nothing to compare in {slow_name} and "
            f"{fast_name}; record one with --tier slow and one with --tier fast"
        )
    return _warnings(slow, fast, names)


def _same_placement(slow: Trace, fast: Trace) -> bool:
    """Return whether both runs ended with the same share of their pages on each node.

    False if a trace has no placement, as an imported one.
    """
    shares = []
    for trace in (slow, fast):
        pages = resident_pages(trace)
        total = sum(pages.values())
        if not total:
            return False
        shares.append({node: count / total for node, count in pages.items()})
    elsewhere = sum(
        abs(shares[0].get(node, 0.0) - shares[1].get(node, 0.0))
        for node in shares[0].keys() | shares[1].keys()
    )
    return elsewhere / 2 < SAME_PLACEMENT


def _warnings(slow: Trace, fast: Trace, names: tuple[str, str]) -> list[str]:
    slow_name, fast_name = names
    warnings = []
    commands = [list(trace.about.get("command") or []) for trace in (slow, fast)]
    if all(commands) and commands[0] != commands[1]:
        warnings.append(f"{slow_name} and {fast_name} record different commands")
    for name, trace in zip(names, (slow, fast), strict=True):
        code = trace.ending.exit_code if trace.ending is not None else None
        if code:
            warnings.append(f"{name} ended with exit code {code}: check that the run is complete")
    if fast.runtime_ns > slow.runtime_ns:
        warnings.append(
            f"{fast_name} took longer than {slow_name} ({fast.runtime_ns / 1e9:.3f} s versus "
            f"{slow.runtime_ns / 1e9:.3f} s): check that they are not swapped"
        )
    if not len(fast.samples):
        warnings.append(f"{fast_name} has no samples: only its runtime is used")
    return warnings
