# SPDX-License-Identifier: MIT
"""Traces and models made by hand, small enough to compute the expected results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hmd.estimate.cost import ModelNumbers, PartFigures, WindowFigures
from hmd.estimate.model import RuntimeModel
from hmd.estimate.overlap import Pairs
from hmd.estimate.samples import PageIndex
from hmd.linux.mappings import MappingKind
from hmd.sample.access_batch import SAMPLE_COLUMNS, Kind, Samples
from hmd.trace.trace import Ending, MappingSnapshot, Trace, TracedProcess

PAGE = 4096
MS = 1_000_000


def make_trace(rows: list[tuple[float, int]], runtime_ms: float, processes: int = 1) -> Trace:
    """Samples as (milliseconds, page), one access each."""
    columns = {name: np.zeros(len(rows), dtype) for name, dtype in SAMPLE_COLUMNS.items()}
    columns["time_ns"] = np.array([t * MS for t, _ in rows], np.uint64)
    columns["address"] = np.array([p * PAGE + 8 for _, p in rows], np.uint64)
    columns["period"] = np.ones(len(rows), np.uint32)
    return Trace(
        {"begin_ns": 0},
        tuple(TracedProcess(i, "x") for i in range(processes)),
        Samples(**columns),
        ending=Ending(0, int(runtime_ms * MS), 0),
    )


def make_pages(accesses: list[float]) -> PageIndex:
    """Pages from address 0 on, with these numbers of accesses."""
    n = len(accesses)
    return PageIndex(
        np.zeros(n, np.uint16),
        np.arange(n, dtype=np.uint64) * np.uint64(PAGE),
        np.array(accesses),
    )


def make_mappings(
    time_ns: int, rows: list[tuple[int, int, str]], process: int = 0
) -> MappingSnapshot:
    """Mappings as (first page, page after the last, path), of anonymous memory."""
    return MappingSnapshot(
        time_ns,
        process,
        np.array([start * PAGE for start, _, _ in rows], np.uint64),
        np.array([end * PAGE for _, end, _ in rows], np.uint64),
        np.full(len(rows), MappingKind.ANON, np.uint8),
        np.full(len(rows), 3, np.uint8),
        tuple(path for _, _, path in rows),
    )


PAGES = 200


def make_run(
    latency_ns: int, runtime_ms: float, seed: int, samples: int = 4000, **about: Any
) -> Trace:
    """A run of 200 pages, some much hotter than others; a quarter of its samples are stores.

    Its second half goes to the upper pages. Every other miss follows close on another.
    """
    rng = np.random.default_rng(seed)
    heat = 1.0 / (1 + np.arange(PAGES // 2))
    page = rng.choice(PAGES // 2, samples, p=heat / heat.sum())
    page[samples // 2 :] += PAGES // 2
    trace = make_trace([(0.0, int(number)) for number in page], runtime_ms)
    columns = {name: getattr(trace.samples, name) for name in SAMPLE_COLUMNS}
    columns["time_ns"] = np.sort(rng.integers(0, int(runtime_ms * MS), samples)).astype(np.uint64)
    columns["kind"] = np.where(rng.random(samples) < 0.25, Kind.STORE, Kind.LOAD).astype(np.uint8)
    columns["latency_ns"] = rng.integers(latency_ns - 20, latency_ns + 20, samples).astype(
        np.uint32
    )
    columns["period"] = np.full(samples, 199, np.uint32)
    columns["instructions"] = np.cumsum(np.where(np.arange(samples) % 2, 50, 20_000)).astype(
        np.uint64
    )
    return replace(
        trace,
        about={"begin_ns": 0, **about},
        samples=Samples(**columns),
        mappings=(make_mappings(0, [(0, 100, "[heap]"), (100, 250, "")]),),
    )


def make_model(
    accesses: list[float],
    k: float,
    pairs: list[tuple[int, int]] | None = None,
    slow_ns: float = 400.0,
    fast_ns: float = 100.0,
    independent: bool = False,
) -> RuntimeModel:
    """One window of loads to as many pages, of which ``k`` overlap.

    Without pairs it is unknown which, unless pages are ``independent``.
    """
    pages = len(accesses)
    total = np.zeros(4)
    total[0] = sum(accesses)
    near = np.array(pairs or np.zeros((0, 2)), np.int32)
    nothing = np.zeros(len(near), np.int32)
    found = Pairs(near[:, 0].copy(), near[:, 1].copy(), nothing)
    none = np.zeros(1)
    figures = PartFigures(
        slow_ns=np.array([slow_ns]),
        fast_ns=np.array([fast_ns]),
        waiting_ns=np.array([slow_ns - fast_ns]),
        holding_ns=none,
        queueing_ns=none,
        idle_waits_ns=none,
        bandwidth_bound=none,
        fast_bound_ns=none,
        loaded_latency_ns=none,
        idle_latency_ns=none,
        fast_latency_ns=none,
        alone=none,
        overlapping=np.full(1, k - 1),
        core_factor=np.ones((1, 2)),
    )
    numbers = ModelNumbers(2.0, 4.0, pairs_known=found.enough or independent, load_known=False)
    return RuntimeModel(
        page=np.arange(pages, dtype=np.int32),
        accesses=np.array(accesses, np.float32),
        samples=np.ones(pages, np.int32),
        begin=np.array([0] + [pages] * 4, np.uint64),
        pages=pages,
        total=total,
        figures=figures,
        of_windows=WindowFigures(
            slow_ns=np.array([slow_ns]),
            slow_in_turn=none,
            fast_in_turn=none,
            slow_idle_ns=none,
            fast_idle_ns=none,
            read_work=np.ones(1),
            write_work=none,
            stored=none,
            busy=none,
        ),
        pairs=found,
        numbers=numbers,
    )


@pytest.fixture
def trace_of() -> Callable[..., Trace]:
    return make_trace


@pytest.fixture
def pages_of() -> Callable[..., PageIndex]:
    return make_pages


@pytest.fixture
def mappings_of() -> Callable[..., MappingSnapshot]:
    return make_mappings


@pytest.fixture
def run_of() -> Callable[..., Trace]:
    return make_run


@pytest.fixture
def model_of() -> Callable[..., RuntimeModel]:
    return make_model


@pytest.fixture
def slow_run() -> Trace:
    return make_run(300, 400, seed=1, tier="slow", command=["./program"])


@pytest.fixture
def fast_run() -> Trace:
    return make_run(100, 200, seed=2, tier="fast", command=["./program"])
