# SPDX-License-Identifier: MIT
"""A training step replayed in the guest, whose hints the daemon there takes.

Times are modelled. The share of misses in fast memory says less: first touch had 6 to 36 % of more
misses.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.tensors.guest_step import measure

FEW_BYTES = 1 << 20

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def test_tensors_moves_what_a_step_announces(tmp_path: Path) -> None:
    systems = ["first-touch", "hmd:tensors"]
    rows = {row["system"]: row for row in measure(["transformer"], [0.2], systems, tmp_path)}
    touch, told = rows["first-touch"], rows["hmd:tensors"]
    assert touch["seconds"] > 1.1 * touch["ideal_seconds"]
    assert touch["moved_bytes"] < FEW_BYTES < told["moved_bytes"]
    assert told["hints"] > 0
    assert told["seconds"] < touch["seconds"]
