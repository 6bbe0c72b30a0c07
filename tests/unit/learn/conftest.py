# SPDX-License-Identifier: MIT
"""Two recorded programs whose hot sets first touch leaves on the slow node, and a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.simulate.conftest import HOT_PAGES, PAGES, hot_set, stream_of

MISSES = 60_000
CONFIG = """\
recordings: ["*.misses"]
held_out: [late]
fast: [0.25]
periods: [29]
tick_ms: 1.0
delay_ms: 0.2
found_ms: 0.0
horizon_ticks: 3
hidden: [8]
epochs: 3
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for name, first in (("late", PAGES - HOT_PAGES), ("middle", PAGES // 2)):
        stream_of(hot_set(MISSES, first, first)).write(tmp_path / f"{name}.misses")
    file = tmp_path / "train.yaml"
    file.write_text(CONFIG)
    return file
