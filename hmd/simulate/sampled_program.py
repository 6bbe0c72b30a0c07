# SPDX-License-Identifier: MIT
"""A program for the simulator out of sampled accesses, where its misses were not recorded.

A sample becomes as many misses of its page as it stands for, spread among its neighbours in time,
or fewer where the program would be too long: it is then shorter, and as much so in all of its
parts. What samples do not say is inferred from the length of the run: misses wait for each other
as far as the run is long enough for that, and what remains of its time is computing. So a run
whose misses overlap gains less here than it would, and the other way round;
docs/results/import_error.json has the errors that this makes (bench/suite/import_error.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.base.errors import HmdError, TargetError
from hmd.base.units import LINE_BYTES, PAGE_BYTES
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.misses import MissFlag, MissOutcomes, MissStream
from hmd.emulate.recordings.replay import replayed
from hmd.emulate.timing_params import timing_params
from hmd.estimate.samples import page_keys
from hmd.heat.settings import CHUNK_PAGES
from hmd.sample.access_batch import Kind, Samples
from hmd.trace.blocks import MAGIC
from hmd.trace.reader import TraceFile
from hmd.trace.summary import sampling_error
from hmd.trace.trace import Trace

MAX_MISSES: Final = 1 << 22
"""Misses of a program at most: a simulation of them takes about a second."""
MAX_PLAYED_NS: Final = 10**10
"""Longest run that is played as a whole: ticks are 10 ms."""
_WINDOWS: Final = 64
_MIXED_SAMPLES: Final = 256
"""Samples among which the misses of one are spread."""
_LINES: Final = PAGE_BYTES // LINE_BYTES
_MIN_COMPUTING: Final = 0.05
"""Least share of a run that is no waiting."""
_STEPS: Final = 10
_GROUPS: Final = (1, 2, 3, 4, 6, 8, 12)
"""Loads that wait at once."""


@dataclass(frozen=True, slots=True)
class SampledProgram:
    """The program, and its length as a share of the run's."""

    stream: MissStream
    share: float


def read_program(path: Path, preset: Preset) -> tuple[MissStream, str]:
    """Return a file's program, and what sampling did to it, empty for recorded misses.

    Raises HmdError for a file that is neither recorded misses nor a trace.
    """
    try:
        with path.open("rb") as file:
            traced = file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise HmdError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not traced:
        return MissStream.read(path), ""
    trace = TraceFile(path).thinned
    program = program_of(trace, preset)
    shorter = "" if program.share == 1.0 else f"; played at {program.share:.2%} of its length"
    return program.stream, f"{sampling_error(trace).describe('simulate')}{shorter}"


def program_of(trace: Trace, preset: Preset) -> SampledProgram:
    """Return the program of a trace, which is taken as recorded in fast memory of the preset.

    Raises TargetError where the trace has no samples, or no time.
    """
    samples = trace.samples.in_order_of_time()
    if not len(samples) or not trace.runtime_ns:
        raise TargetError("the trace has no samples to simulate: record it with a shorter period")
    rng = np.random.default_rng(1)
    accesses = np.cumsum(np.maximum(samples.period, 1), dtype=np.float64) * trace.stride
    share = min(1.0, MAX_MISSES / float(accesses[-1]), MAX_PLAYED_NS / trace.runtime_ns)
    ends = np.floor(accesses * share).astype(np.int64)
    in_turn = np.searchsorted(ends, np.arange(ends[-1]), side="right")
    if not len(in_turn):
        raise TargetError("the trace has too few samples to simulate: record it for longer")
    mixed = in_turn[np.argsort(in_turn + _MIXED_SAMPLES * rng.random(len(in_turn)), kind="stable")]
    page, page_address = _pages(samples)
    place = (samples.time_ns - samples.time_ns[0]) * (_WINDOWS / trace.runtime_ns)
    window = np.minimum(place, _WINDOWS - 1).astype(np.int64)[in_turn]
    fast = max(preset.nodes, key=lambda node: -node.read_latency_ns)
    stream = MissStream(
        instructions=np.zeros(len(mixed), np.uint64),
        paid_hits=np.zeros(len(mixed), np.uint32),
        near_hits=np.zeros(len(mixed), np.uint32),
        page=page[mixed],
        line=rng.integers(0, _LINES, len(mixed)).astype(np.uint8),
        flags=_flags(samples, fast.read_latency_ns / 2)[mixed],
        depends=np.zeros(len(mixed), np.uint16),
        page_address=page_address,
        user_pages=len(page_address),
    )
    window_ps = trace.runtime_ns * 1000 * share / _WINDOWS
    return SampledProgram(_paced(stream, preset, window, window_ps), share)


def _pages(samples: Samples) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
    """Return each sample's page, and an address for each page, in one address space."""
    keys, page = np.unique(page_keys(samples), return_inverse=True)
    _, chunk = np.unique(keys // np.uint64(CHUNK_PAGES), return_inverse=True)
    place = (chunk + 1) * CHUNK_PAGES + (keys % np.uint64(CHUNK_PAGES)).astype(np.int64)
    return page.astype(np.uint32), place.astype(np.uint64) * np.uint64(PAGE_BYTES)


def _flags(samples: Samples, floor_ns: float) -> npt.NDArray[np.uint8]:
    """Return the flags of each sample's misses; a line that came sooner was prefetched."""
    flags = np.where(samples.kind == Kind.STORE, np.uint8(MissFlag.STORE), np.uint8(0))
    known = samples.kind == Kind.LOAD if samples.latency_ns.any() else samples.latency_ns > 0
    early = known & (samples.latency_ns < floor_ns)
    return np.asarray(flags | np.where(early, np.uint8(MissFlag.COVERED), np.uint8(0)), np.uint8)


def _paced(
    stream: MissStream, preset: Preset, window: npt.NDArray[np.int64], window_ps: float
) -> MissStream:
    """Return the stream with dependences and instructions such that it takes the run's time."""
    load = (stream.flags & np.uint8(MissFlag.STORE | MissFlag.COVERED)) == 0
    for group in _GROUPS:
        turn = np.cumsum(load)
        begins = np.diff(turn // group, prepend=-1) > 0
        stream = replace(
            stream, depends=np.where(load & (turn > group), group, 0).astype(np.uint16)
        )
        least_ps = _window_times(stream, preset, window)
        if least_ps.sum() <= window_ps * _WINDOWS * (1 - _MIN_COMPUTING):
            break
    groups = np.maximum(np.bincount(window, begins, _WINDOWS), 1)
    low, high = np.zeros(_WINDOWS), window_ps / timing_params(preset).instruction_ps / groups
    for _ in range(_STEPS):
        gap = (low + high) / 2
        trial = replace(stream, instructions=_instructions(gap, begins, window))
        long = _window_times(trial, preset, window) > window_ps
        low, high = np.where(long, low, gap), np.where(long, gap, high)
    return replace(stream, instructions=_instructions((low + high) / 2, begins, window))


def _instructions(
    gap: npt.NDArray[np.float64], begins: npt.NDArray[np.bool_], window: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    """Return each row's instructions so far, with a window's gap before each of its groups."""
    return np.cumsum(np.where(begins, gap[window], 0.0)).astype(np.uint64)


def _window_times(
    stream: MissStream, preset: Preset, window: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return how long each window of the stream takes in fast memory, in ps."""
    outcomes = MissOutcomes.empty(len(stream))
    whole_ps = replayed(stream, preset, np.ones(stream.user_pages, np.bool_), outcomes)
    ends = np.searchsorted(window, np.arange(_WINDOWS), side="right")
    clock = np.append(outcomes.clock_ps.astype(np.float64), float(whole_ps))
    return np.diff(np.where(ends > 0, clock[ends], 0.0), prepend=0.0)
