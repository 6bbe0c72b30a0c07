# SPDX-License-Identifier: MIT
"""A small machine with round numbers, and streams of accesses to run on it.

Node 0: 0 to 1 GiB, 100 ns, 64 bytes per line. Node 1: 1 to 2 GiB, 300 ns, 256 bytes per granule.
One instruction is 100 ps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bench.access_model import AccessFlag, AccessModel, AccessStream
from hmd.emulate.timing_params import NodeParams, TimingParams

GIB = 1 << 30
FAST = NodeParams(0, GIB, 100_000, 120_000, 64.0, 32.0)
SLOW = NodeParams(GIB, 2 * GIB, 300_000, 400_000, 16.0, 4.0, granularity_bytes=256)
PARAMS = TimingParams(
    nodes=(FAST, SLOW),
    vcpus=2,
    instruction_ps=100,
    llc_bytes=256 << 10,
    llc_ways=16,
    llc_hit_ps=5000,
    mshrs=10,
    rob_instructions=200,
    chase_span_bytes=256,
    prefetch_streams=16,
)

Machine = Callable[..., AccessModel]
Columns = Callable[..., AccessStream]


@pytest.fixture(scope="session")
def params() -> TimingParams:
    return PARAMS


@pytest.fixture
def machine() -> Iterator[Machine]:
    """Return a maker of models: PARAMS with some fields replaced."""
    with ExitStack() as stack:
        yield lambda **fields: stack.enter_context(AccessModel(replace(PARAMS, **fields)))


@pytest.fixture
def columns() -> Columns:
    """Return a maker of streams: addresses, and other columns per access or one value for all."""

    def make(
        address: Sequence[int] | npt.NDArray[np.uint64],
        *,
        vcpu: int = 0,
        step: int = 4,
        start: int = 0,
        size: int = 8,
        flags: int | Sequence[int] = AccessFlag.LOAD,
        value: Any = 0,
    ) -> AccessStream:
        paddr = np.asarray(address, np.uint64)
        count = len(paddr)

        def column(values: Any, dtype: Any) -> npt.NDArray[Any]:
            return np.ascontiguousarray(np.broadcast_to(np.asarray(values, dtype), (count,)))

        return AccessStream(
            vcpu=column(vcpu, np.uint8),
            instructions=start + step * np.arange(1, count + 1, dtype=np.uint64),
            vaddr=paddr + np.uint64(1 << 40),
            paddr=paddr,
            size=column(size, np.uint8),
            flags=column(flags, np.uint8),
            value=column(value, np.uint64),
        )

    return make


@pytest.fixture
def scattered() -> Callable[..., npt.NDArray[np.uint64]]:
    """Return a maker of distinct line addresses in random order, none near the previous one."""

    def make(count: int, start: int = 0, seed: int = 1) -> npt.NDArray[np.uint64]:
        pages = np.random.default_rng(seed).permutation(GIB // 4096)[:count].astype(np.uint64)
        return start + pages * 4096 + pages % 64 * 64

    return make


@pytest.fixture
def chain() -> Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.uint64]]:
    """Return the values of a pointer chase: each load gives the next virtual address."""
    return lambda address: np.append(address[1:], np.uint64(0)) + np.uint64(1 << 40)
