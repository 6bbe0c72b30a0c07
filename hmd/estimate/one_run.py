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
from hmd.estimate.cost import LATENCY_KNEE, LATENCY_RISE
from hmd.estimate.layout import Layout, MemoryRegions, heat_order
from hmd.estimate.model import UNKNOWN_OVERLAP, collect_pairs, rows_by_cell
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
from hmd.estimate.windows import CutBy, Parts, count_threads, cut, match_threads
from hmd.sample.access_batch import Kind
from hmd.sample.cpu_models import Core
from hmd.sample.instruction_counts import PerfInstructions
from hmd.trace.reader import TraceSource
from hmd.trace.trace import Trace


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


_ROUNDS = 30
_BUSY, _HIDDEN = 0.7, 0.8
"""Share of a window for which a tier is busy from which waits are hidden; their most at 1."""
_MOST_HIDDEN = 0.9
"""Share of the lower of two latencies that a core hides, at most."""
_LEAST = 0.05
"""Share of a window that is not waits, at least."""

Floats = npt.NDArray[np.float64]


def predict_runs(
    recording: TraceSource,
    tier: Literal["slow", "fast"],
    *,
    speeds: TierSpeeds | None = None,
    core: Core | None = None,
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
    parts = Parts(cut(trace, WINDOWS, by), match_threads(trace, trace)[0])
    floor_ns = waiting_floor_ns(trace, trace, speeds)
    found = aggregate_run(recording, parts, floor_ns, core, -1 if tier == "slow" else 0)
    keys = sort_distinct(found.rows.key)
    run = found.indexed(keys)
    heat = np.bincount(run.page, run.accesses, len(keys)).astype(np.float64)
    pages = PageIndex.of(keys, heat)
    nothing = replace(found, rows=SampleAggregator(0).rows(), pairs=FoundPairs.empty())
    other = _predicted(run, nothing.indexed(keys), tier, speeds, core, len(pages), trace)
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
    trace: Trace,
) -> AlignedRun:
    """Return ``other``, which has no rows, with the figures of the run on the other tier."""
    parts, windows = len(run.busy_ns), len(run.ns)
    threads = parts // windows
    rows = rows_by_cell([run], parts, pages)
    pairs = collect_pairs([run])
    near = fit_neighbours(pairs, rows.sampled_loads, rows.period)
    if not pairs.enough:
        near = np.full_like(near, UNKNOWN_OVERLAP)
    waits = rows.misses / (1 + near)
    here, there = (speeds.slow_latency_ns, speeds.fast_latency_ns)
    if tier == "fast":
        here, there = there, here
    latency_ns = np.maximum(run.latency_ns, here)
    waits = np.minimum(waits, (1 - _LEAST) * run.busy_ns / latency_ns)
    lines, written = rows.moved_lines(windows)
    # What the memory here moved may be whole blocks; there as many lines are written, and all but
    # streams move a block for each.
    written = np.maximum(written, lines * np.minimum(_share(run.write_bytes, run.read_bytes), 1.0))
    block_bytes = speeds.slow_block_bytes if tier == "fast" else LINE_BYTES
    alone = _share(rows.lines.reshape(windows, -1).sum(1), lines)
    bytes_of_line = LINE_BYTES + alone * (block_bytes - LINE_BYTES)
    reads_ns, writes_ns = speeds.work_ns(
        "fast" if tier == "slow" else "slow", bytes_of_line * lines, bytes_of_line * written
    )
    work_ns = reads_ns + writes_ns
    lines_per_buffer, least_ns = rows.lines / core.fill_buffers, _LEAST * run.busy_ns
    buffers_ns = run.store_ns / core.fill_buffers
    if run.stalled_ns.any():
        # A CPU's counter has the waits of loads alone, the emulated machine's has all.
        executed = float(trace.progress.last_sum("instructions")) if trace.progress else 0.0
        loads_only = trace.about.get("instructions") == PerfInstructions.source
        others_ns = np.zeros(parts) if loads_only else run.queue_ns + buffers_ns
        waits, of_others_ns = _split_stalls(
            run, waits, latency_ns, others_ns, core, executed / windows, min(here, there)
        )
        # At most one wait per miss: the others are for memory of the kernel, which does not move.
        waits *= min(float(rows.misses.sum()) / max(float(waits.sum()), 1.0), 1.0)
        stored = (run.queue_ns + buffers_ns if loads_only else of_others_ns) / latency_ns
        bare_ns = run.busy_ns - (waits + stored) * latency_ns
    else:
        stored = buffers_ns / latency_ns
        # Beside a tier that is busy all the time, the core waits in ways that no sample shows.
        reads_here_ns, writes_here_ns = speeds.work_ns(tier, run.read_bytes, run.write_bytes)
        busy_here = _share(reads_here_ns + writes_here_ns, run.ns)
        hidden = _HIDDEN * np.clip((busy_here - _BUSY) / (1 - _BUSY), 0.0, 1.0)
        # Streams that queue here do so there where the tier is busy.
        bare_ns = run.busy_ns - run.queue_ns - (waits + stored) * latency_ns
        bare_ns = np.maximum(bare_ns * np.repeat(1 - hidden, threads), least_ns)
    low_ns, high_ns = np.zeros(windows), run.ns * 100.0
    for _ in range(_ROUNDS):
        wall_ns = (low_ns + high_ns) / 2
        found_ns = there * loaded_latency(work_ns / wall_ns)
        of_part_ns = np.repeat(found_ns, threads)
        busy_ns = np.maximum(bare_ns + (waits + stored) * of_part_ns, lines_per_buffer * of_part_ns)
        busy_ns = np.maximum(busy_ns, least_ns)
        longer = busy_ns.reshape(windows, -1).max(1) > wall_ns
        low_ns, high_ns = np.where(longer, wall_ns, low_ns), np.where(longer, high_ns, wall_ns)
    # Some memory reads and writes at once, so that a window takes the longer of the two at least.
    least_ns = np.repeat(np.maximum(reads_ns, writes_ns), threads)
    queue_ns = np.maximum(least_ns - busy_ns, 0.0) * (run.busy_ns > 0)
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


def _split_stalls(
    run: AlignedRun,
    by_pairs: Floats,
    latency_ns: Floats,
    queued_ns: Floats,
    core: Core,
    instructions: float,
    idle_ns: float,
) -> tuple[Floats, Floats]:
    """Return by part the loads that the core waited for, and how long streams and stores queued.

    Stalls are shared out among threads by their time, and between loads and what queues (streams,
    stores) as samples are. A core goes on until its reorder window is full, or up to the next
    load that it waits for: what it executes meanwhile is hidden, so that ``n`` waits make up
    ``n * (latency - hidden)``. Where little is left, that says little about ``n``, and what pairs
    of samples say counts by as much.
    """
    windows = len(run.ns)
    threads = len(by_pairs) // windows

    def of_all(ns: Floats) -> Floats:
        return np.repeat(ns.reshape(windows, -1).sum(1), threads)

    stalled_ns = np.minimum(run.stalled_by_part_ns, (1 - _LEAST) * run.busy_ns)
    waited_ns = by_pairs * latency_ns
    of_loads_ns = stalled_ns * _share(waited_ns, waited_ns + queued_ns)
    instruction_ns = of_all(run.busy_ns - stalled_ns) / max(instructions, 1.0)
    hidden_ns = np.zeros(len(by_pairs))
    for _ in range(_ROUNDS):
        waits = of_loads_ns / (latency_ns - hidden_ns)
        between = np.maximum(instructions, 1.0) / np.maximum(of_all(waits), 1.0)
        executed = between * -np.expm1(-core.reorder_window / between)
        hidden_ns = np.minimum((hidden_ns + executed * instruction_ns) / 2, _MOST_HIDDEN * idle_ns)
    shown = 1 - hidden_ns / latency_ns
    return shown * waits + (1 - shown) * by_pairs, stalled_ns - of_loads_ns


def _share(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)


def loaded_latency(busy: Floats) -> Floats:
    """Return a tier's latency over its idle one, by the share of time for which it is busy."""
    share = np.clip(busy, 0.0, 1.0)
    return np.asarray(1 + LATENCY_RISE * (share + LATENCY_KNEE * share**6))
