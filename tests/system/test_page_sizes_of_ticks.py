# SPDX-License-Identifier: MIT
"""Whole ticks with base pages of 16 and 64 KiB, for which kernels are compiled again: minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hmd.base.units import PAGE_BYTES, PAGE_SIZES

pytestmark = pytest.mark.alone
ROOT = Path(__file__).parents[2]

TICKS = """
import numpy as np
from bench.synthetic.synthetic_run import SyntheticRun, Tier, hot_blocks
from hmd.base.units import HUGE_PAGE_PAGES, PAGE_BYTES
from hmd.policy.builtin.benefit import Benefit, BenefitSettings
from hmd.policy.builtin.histogram import Histogram, HistogramSettings
pages, fast = HUGE_PAGE_PAGES, HUGE_PAGE_PAGES // 2
for policy in (
    Histogram(HistogramSettings(headroom=0.0, headroom_min=0)),
    Benefit(BenefitSettings(headroom=0.0, headroom_min=0)),
):
    synthetic = SyntheticRun(
        policy,
        (Tier(fast), Tier(2 * pages)),
        hot_blocks(pages, pages // 8, 16, seed=1),
        np.ones(pages, np.int8),
        samples_per_tick=3000,
    )
    moved = sum(synthetic.tick().moved_pages for _ in range(4))
    assert 0 < moved <= 2 * fast, moved
    starts = synthetic.plan.address if len(synthetic.plan) else np.zeros(1, np.uint64)
    assert not (starts % np.uint64(PAGE_BYTES)).any()
    print(synthetic.fast_share)
"""


@pytest.mark.parametrize("page_bytes", sorted({*PAGE_SIZES} - {PAGE_BYTES}))
def test_ticks_bring_hot_pages_to_the_fast_node(page_bytes: int, tmp_path: Path) -> None:
    environment = {
        "NUMBA_CACHE_DIR": str(tmp_path),
        **os.environ,
        "HMD_PAGE_BYTES": str(page_bytes),
    }
    command = [sys.executable, "-c", TICKS]
    done = subprocess.run(
        command, check=False, env=environment, cwd=ROOT, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    shares = [float(line) for line in done.stdout.split()]
    assert min(shares) > 0.7
