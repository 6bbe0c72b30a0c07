"""Summary of a trace in a few figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hmd.machine.clock import ClockKind
from hmd.sample.access_batch import Kind
from hmd.trace.placement_log import pages_of
from hmd.trace.trace import Trace
from hmd.units import PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a trace; ``resident_pages`` by node as last seen, ``pages`` those sampled.

    ``clock`` is that of ``runtime_s``, "monotonic" or "modelled"; ``elapsed_s`` is that by the
    guest's own clock, and equal on a real machine. ``instructions`` is None if they were not
    counted, ``pair_period`` if loads had no second counter, ``reorder_window`` (instructions) if it
    is unknown. ``tiers`` are as in the trace: nodes and their HMAT figures, fastest tier first.
    """

    command: list[str]
    processes: list[str]
    date: str
    hmd: str
    kernel: str
    tier: str | None
    detail: str
    period: int
    pair_period: int | None
    reorder_window: int | None
    clock: ClockKind
    runtime_s: float
    elapsed_s: float
    instructions: int | None
    instructions_detail: str
    ended: bool
    samples: int
    stores: int
    pages: int
    threads: int
    mean_weight_ns: float
    lost: int
    throttled: int
    resident_pages: dict[int, int]
    tiers: list[dict[str, Any]]


def summarise(trace: Trace) -> Summary:
    """Return the figures."""
    samples, about = trace.samples, trace.about
    page = samples.address // np.uint64(PAGE_BYTES)
    both = np.unique(page ^ (samples.process.astype(np.uint64) << np.uint64(52)))
    weighed = samples.weight_ns[samples.weight_ns > 0]
    return Summary(
        command=[str(word) for word in about.get("command", [])],
        processes=[f"{process.name} ({process.pid})" for process in trace.processes],
        date=str(about.get("date", "?")),
        hmd=str(about.get("hmd", "?")),
        kernel=str(about.get("kernel", "?")),
        tier=about.get("tier"),
        detail=str(about.get("detail", "?")),
        period=int(about.get("period", 0)),
        pair_period=about.get("pair_period"),
        reorder_window=about.get("reorder_window"),
        clock=trace.clock,
        runtime_s=trace.runtime_ns / 1e9,
        elapsed_s=_elapsed_ns(trace) / 1e9,
        instructions=_instructions(trace),
        instructions_detail=str(about.get("instructions_detail", "not counted")),
        ended=trace.ending is not None,
        samples=len(samples),
        stores=int((samples.kind == Kind.STORE).sum()),
        pages=len(both),
        threads=len(np.unique(samples.thread)),
        mean_weight_ns=float(weighed.mean()) if len(weighed) else 0.0,
        lost=trace.losses.lost,
        throttled=trace.losses.throttled,
        resident_pages=resident_pages(trace),
        tiers=list(about.get("tiers", [])),
    )


def _elapsed_ns(trace: Trace) -> int:
    ending = trace.ending
    if ending is None or ending.elapsed_ns is None:
        return trace.runtime_ns
    return ending.elapsed_ns


def _instructions(trace: Trace) -> int | None:
    """Return the sum of all processes' last instruction counts; None without counts."""
    progress = trace.progress
    if progress is None or not progress.instructions.any():
        return None
    most = np.zeros(len(trace.processes), np.uint64)
    np.maximum.at(most, progress.process, progress.instructions)
    return int(most.sum())


def resident_pages(trace: Trace) -> dict[int, int]:
    """Return the number of pages on each node, each page where it was last seen."""
    nodes: dict[int, int] = {}
    for index in range(len(trace.processes)):
        changes = [pages_of(c) for c in trace.placement if c.process == index]
        if not changes:
            continue
        page = np.concatenate([p for p, _ in changes])
        node = np.concatenate([n for _, n in changes])
        # The last change of each page: of equal pages, unique returns the first of the reversed.
        _, last = np.unique(page[::-1], return_index=True)
        here, count = np.unique(node[::-1][last], return_counts=True)
        for n, pages in zip(here.tolist(), count.tolist(), strict=True):
            if n >= 0:
                nodes[n] = nodes.get(n, 0) + pages
    return dict(sorted(nodes.items()))
