# SPDX-License-Identifier: MIT
"""The planner ``myelin``: optimizer state stays on the host and is streamed in buckets.

After AxoNN's memory optimizations, Myelin (Singh and Bhatele, IPDPS 2022). While one bucket of
state is updated, the next is copied in and the one before is copied out. All else stays in the
fastest tier: of 20 bytes per parameter in mixed precision, 4 and three buckets do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from hmd.tensors.move_plan import ANY, WHOLE, Move, MovePlan, free_moves, plan_of
from hmd.tensors.planner import StepProblem
from hmd.tensors.trace import Ints, TensorKind

HOST: Final = 1

BUCKETS_BYTES: Final = (32_000_000, 64_000_000, 128_000_000, 256_000_000)
"""Sizes of a bucket that are tried; AxoNN's of 16 million parameters has 256 million bytes."""

_AHEAD: Final = 2.0
"""The first bucket is fetched so many times as early as the link needs for it."""


def plan_step(problem: StepProblem) -> MovePlan:
    """Return the moves of the bucket size that the simulator prices lowest."""
    frees = free_moves(problem.life, problem.none)
    return problem.cheapest(plan_of([*frees, *_stream(problem, size)]) for size in BUCKETS_BYTES)


def optimizer_buckets(problem: StepProblem, size: int) -> list[Ints]:
    """Return the tensors of optimizer state, in order of use, in buckets of up to ``size`` bytes.

    A tensor larger than that is a bucket of its own.
    """
    trace, life = problem.trace, problem.life
    state = (trace.tensor_kind == TensorKind.OPTIMIZER) & trace.tensor_persistent
    tensors = np.flatnonzero(state & (life.first >= 0))
    tensors = tensors[np.argsort(life.first[tensors], kind="stable")]
    buckets: list[list[int]] = []
    filled = size
    for tensor in tensors.tolist():
        filled += int(trace.tensor_bytes[tensor])
        if filled > size:
            buckets.append([])
            filled = int(trace.tensor_bytes[tensor])
        buckets[-1].append(tensor)
    return [np.array(bucket, np.int64) for bucket in buckets]


def _stream(problem: StepProblem, size: int) -> Iterator[Move]:
    """Yield the moves of buckets into the fastest tier before their use, and out after it."""
    trace, life = problem.trace, problem.life
    buckets = optimizer_buckets(problem, size)
    begins = [int(life.first[bucket].min()) for bucket in buckets]
    starts = np.concatenate([[0.0], np.cumsum(trace.kernel_seconds)])
    rate = problem.system.bandwidth(HOST, inwards=True)
    latency = problem.system.latency_seconds(HOST)
    for number, bucket in enumerate(buckets):
        if number:
            fetch = begins[number - 1]
        else:
            lead = float(trace.tensor_bytes[bucket].sum()) / rate + latency * len(bucket)
            lead *= _AHEAD
            fetch = int(np.searchsorted(starts, starts[begins[0]] - lead, "right")) - 1
        for tensor in bucket.tolist():
            yield max(fetch, 0), tensor, ANY, 0, WHOLE
            yield (int(life.last[tensor]) + 1) % trace.kernels, tensor, 0, HOST, WHOLE
