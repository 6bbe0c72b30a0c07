# SPDX-License-Identifier: MIT
"""The modelled kernel of tests/fakes/move_pages_kernel.py with one process."""

from __future__ import annotations

import pytest

from hmd.linux.procfs import ProcessId
from tests.fakes.move_pages_kernel import FakeKernel


@pytest.fixture
def kernel() -> FakeKernel:
    """Three nodes with 10,000 free pages each, and process 10."""
    made = FakeKernel({0: 10_000, 1: 10_000, 2: 10_000})
    made.process(10)
    return made


@pytest.fixture
def process(kernel: FakeKernel) -> ProcessId:
    """Process 10 of ``kernel``."""
    stat = kernel.stat(10)
    assert stat is not None
    return stat.process
