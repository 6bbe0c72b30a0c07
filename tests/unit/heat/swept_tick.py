# SPDX-License-Identifier: MIT
"""A tick of a heat table and its residency sweep."""

from __future__ import annotations

import numpy as np

from hmd.heat.table import HeatTable
from hmd.residency.sweep import ResidencySweep
from hmd.sample.access_batch import AccessBatch


def tick(table: HeatTable, sweep: ResidencySweep, address: int | None = None) -> int:
    """Count a sample of an address, or none, then sweep; returns what the sweep returns."""
    batch = AccessBatch.empty()
    if address is not None:
        batch = AccessBatch.of(np.array([address], np.uint64))
    table.update(batch)
    return sweep.step(table)
