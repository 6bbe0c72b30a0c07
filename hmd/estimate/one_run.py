# SPDX-License-Identifier: MIT
"""What one recorded run says: shares of accesses, and a prediction of the run on the other tier.

The prediction takes the place of the second run, with latencies and bandwidths of the machine's
tiers (HMAT, or a microbenchmark) as CAMP does with counters (ASPLOS '26): the waits of the core, by
pairs of samples, take as much longer or shorter as the latencies differ under the load that
results, and no window is faster than its traffic. It is less exact than a second run: what stores
wait for and what overlaps with computation shows in the difference of two runs alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from hmd.base.errors import UsageError
from hmd.base.units import LINE_BYTES
from hmd.estimate.layout import Layout, MemoryRegions, heat_order
from hmd.estimate.model import collect_pairs, rows_by_cell
from hmd.estimate.overlap import fit_neighbours
from hmd.estimate.runs import (
    WINDOWS,
    AlignedRun,
    AlignedRuns,
    TierSpeeds,
    aggregate_run,
    has_counts,
    read_core,
    waiting_floor_ns,
)
from hmd.estimate.samples import (
    FoundPairs,
    PageIndex,
    SampleAggregator,
    sort_distinct,
)
from hmd.estimate.threads import Parts, count_threads, match_threads
from hmd.estimate.windows import CutBy, cut
from hmd.sample.access_batch import Kind
from hmd.sample.cpu_models import Core
from hmd.trace.reader import TraceSource


@dataclass(frozen=True, slots=True)
class AccessCurve:
    """The share of accesses to the hottest pages, by their number; columns of shape ``(n,)``."""

    pages: npt.NDArray[np.int64]
    access_share: npt.NDArray[np.float64]


def access_curve(pages: PageIndex, steps: int) -> AccessCurve:
    """Return the share of accesses to 0 to all pages, the hottest first, in ``steps`` steps."""
    ordered = np.append(0.0, np.cumsum(pages.accesses[heat_order(pages)]))
    number = np.unique(np.arange(steps + 1) * len(pages) // steps)
    return AccessCurve(number, ordered[number] / max(float(ordered[-1]), 1e-12))


def access_share(pages: PageIndex, chosen: Layout) -> float:
    """Return the share of accesses to chosen pages."""
    return float(pages.accesses[chosen].sum()) / max(float(pages.accesses.sum()), 1e-12)


def region_shares(pages: PageIndex, regions: MemoryRegions) -> list[tuple[str, int, int, float]]:
    """Return name, process, sampled pages and share of accesses of each region, largest first."""
    count = np.bincount(regions.of_page, minlength=len(regions))
    accesses = np.bincount(regions.of_page, pages.accesses, len(regions))
    share = accesses / max(float(accesses.sum()), 1e-12)
    return [
        (regions.name[n], regions.process[n], int(count[n]), float(share[n]))
        for n in np.argsort(-share, kind="stable").tolist()
    ]


def waiting_ns(recording: TraceSource) -> float:
    """Return the sum of all loads' latencies: their waiting if none overlapped; 0 if unknown."""
    total = 0.0
    for batch in recording.batches():
        load = batch.kind == Kind.LOAD
        total += float(np.dot(batch.latency_ns[load].astype(np.float64), batch.period[load]))
    return total


_UNKNOWN_OVERLAP = 3.0
"""Misses that overlap with another one where no pairs show it."""
_ROUNDS = 30
_BUSY, _HIDDEN = 0.7, 0.8
"""Share of a window for which a tier is busy from which waits are hidden; their most at 1."""
_LEAST = 0.05
"""Share of a window that is not waits, at least."""

Floats = npt.NDArray[np.float64]


def predict_runs(
    recording: TraceSource,
    tier: Literal["slow", "fast"],
    *,
    speeds: TierSpeeds | None = None,
    core: Core | None = None,
    windows: int = WINDOWS,
) -> AlignedRuns:
    """Return a run that was recorded on a tier, next to the predicted one on the other.

    ``speeds`` and ``core`` of the machine default to those of the trace. Raises UsageError where
    the latencies of the tiers or those of the run are unknown.
    """
    trace = recording.thinned
    speeds = speeds or TierSpeeds.of(trace.about)
    core = core or read_core(trace.about)
    if min(speeds.slow_latency_ns, speeds.fast_latency_ns) <= 0:
        raise UsageError("the latencies of the tiers are unknown: give --latencies FAST,SLOW in ns")
    by = CutBy.INSTRUCTIONS if has_counts(trace) else CutBy.ACCESSES
    parts = Parts(cut(trace, windows, by), match_threads(trace, trace)[0])
    floor_ns = waiting_floor_ns(trace, trace, speeds)
    found = aggregate_run(recording, parts, floor_ns, core, -1 if tier == "slow" else 0)
    keys = sort_distinct(found.rows.key)
    run = found.indexed(keys)
    heat = np.bincount(run.page, run.accesses, len(keys)).astype(np.float64)
    pages = PageIndex.of(keys, heat)
    nothing = replace(found, rows=SampleAggregator(0).rows(), pairs=FoundPairs.empty())
    other = _predicted(run, nothing.indexed(keys), tier, speeds, core, len(pages))
    slow, fast = (run, other) if tier == "slow" else (other, run)
    return AlignedRuns(
        slow,
        fast,
        pages,
        speeds,
        core,
        by,
        sampled_threads=count_threads(trace),
        predicted="fast" if tier == "slow" else "slow",
    )


def _predicted(
    run: AlignedRun,
    other: AlignedRun,
    tier: Literal["slow", "fast"],
    speeds: TierSpeeds,
    core: Core,
    pages: int,
) -> AlignedRun:
    """Return ``other``, which has no rows, with the figures of the run on the other tier."""
    parts, windows = len(run.busy_ns), len(run.ns)
    threads = parts // windows
    rows = rows_by_cell([run], parts, pages)
    pairs = collect_pairs([run])
    near = fit_neighbours(pairs, rows.sampled_loads, rows.period)
    if not pairs.enough:
        near = np.full_like(near, _UNKNOWN_OVERLAP)
    waits = rows.misses / (1 + near)
    here, there = (speeds.slow_latency_ns, speeds.fast_latency_ns)
    speed_here = speeds.slow_read_bytes_per_ns, speeds.slow_write_bytes_per_ns
    speed_there = speeds.fast_read_bytes_per_ns, speeds.fast_write_bytes_per_ns
    if tier == "fast":
        here, there, speed_here, speed_there = there, here, speed_there, speed_here
    latency_ns = np.maximum(run.latency_ns, here)
    waits = np.minimum(waits, (1 - _LEAST) * run.busy_ns / latency_ns)
    lines, written = rows.moved_lines(windows)
    # What the memory here moved may be whole blocks; there it is lines, as many of them written.
    written = np.maximum(written, lines * np.minimum(_share(run.write_bytes, run.read_bytes), 1.0))
    work_ns = _work_ns(LINE_BYTES * lines, LINE_BYTES * written, *speed_there)
    # Without what streams and stores queue for here: there they queue where the tier is busy.
    bare_ns = run.busy_ns - run.queue_ns - run.store_ns / core.fill_buffers - waits * latency_ns
    # Beside a tier that is busy all the time, the core waits for it in ways that no sample shows.
    busy_here = _share(_work_ns(run.read_bytes, run.write_bytes, *speed_here), run.ns)
    hidden = _HIDDEN * np.clip((busy_here - _BUSY) / (1 - _BUSY), 0.0, 1.0)
    bare_ns = np.maximum(bare_ns * np.repeat(1 - hidden, threads), _LEAST * run.busy_ns)
    stored = run.store_ns / core.fill_buffers / latency_ns
    low_ns, high_ns = np.zeros(windows), run.ns * 100.0
    for _ in range(_ROUNDS):
        wall_ns = (low_ns + high_ns) / 2
        found_ns = there * loaded_latency(work_ns / wall_ns)
        busy_ns = bare_ns + (waits + stored) * np.repeat(found_ns, threads)
        longer = busy_ns.reshape(windows, -1).max(1) > wall_ns
        low_ns, high_ns = np.where(longer, wall_ns, low_ns), np.where(longer, high_ns, wall_ns)
    queue_ns = np.maximum(np.repeat(work_ns, threads) - busy_ns, 0.0) * (run.busy_ns > 0)
    busy_ns += queue_ns
    longest, before = (each.reshape(windows, -1).max(1) for each in (busy_ns, run.busy_ns))
    ns = run.ns * np.divide(longest, before, out=np.ones(windows), where=before > 0)
    return replace(
        other,
        ns=ns,
        busy_ns=busy_ns,
        read_bytes=run.read_bytes,
        write_bytes=run.write_bytes,
        latency_ns=np.repeat(found_ns, threads),
        least_ns=np.repeat(found_ns, threads),
        store_ns=stored * np.repeat(found_ns, threads) * core.fill_buffers,
        queue_ns=queue_ns,
    )


def _work_ns(read_bytes: Floats, write_bytes: Floats, read: float, write: float) -> Floats:
    """Return the time of this traffic at a tier's peak bandwidths; 0 where those are unknown."""
    if min(read, write) <= 0:
        return np.zeros(len(read_bytes))
    return np.asarray(read_bytes / read + write_bytes / write)


def _share(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)


def loaded_latency(busy: Floats) -> Floats:
    """Return a tier's latency over its idle one, by the share of time for which it is busy.

    Between the published curves of DRAM and of persistent memory (hmd/emulate/presets): 1.1 at a
    quarter, 1.2 at a half, 1.5 at three quarters, 2.5 at the peak.
    """
    share = np.clip(busy, 0.0, 1.0)
    return np.asarray(1 + 0.4 * share + 1.1 * share**6)
