"""Rows of the planners' benchmark, their commands and the picture of sweeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.tensor_sweeps_plot import PUBLISHED, draw, sweeps, swept
from bench.tensors import command_of


@pytest.mark.parametrize(
    ("row", "command"),
    [
        ({"trace": "bert-512", "tiers": "g10"}, "python -m bench.tensors traces bert-512"),
        ({"trace": "bert-512", "tiers": "host 16 GiB"}, "python -m bench.tensors host bert-512"),
        (
            {"trace": "mlp_mixer", "tiers": "dram-pm, dram 20%"},
            "python -m bench.tensors_in_place mlp_mixer 0.2",
        ),
        ({"trace": "bert-256", "noise": 0.05}, "python -m bench.tensors noise bert-256"),
    ],
)
def test_row_names_the_command_that_repeats_it(row: dict[str, str], command: str) -> None:
    assert command_of(row) == command


def test_tiers_of_rows_give_sweep_and_size() -> None:
    assert swept("host 16 GiB") == ("host, GiB", 16.0)
    assert swept("flash 6.4 GB/s") == ("flash, GB/s", 6.4)
    assert swept("dram-pm, dram 20%") == ("DRAM, % of the peak", 20.0)
    assert swept("g10") is None


def test_published_sweeps_have_no_point_above_the_bound() -> None:
    found = sweeps(json.loads(PUBLISHED.read_text()))
    assert ("host, GiB", "bert-512") in found
    for lines in found.values():
        bound = dict(lines["bound"])
        for planner, points in lines.items():
            assert len(points) == len(dict(points))
            assert all(share <= bound[size] * 1.0005 for size, share in points), planner


def test_picture_of_sweeps_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(json.loads(PUBLISHED.read_text()), tmp_path / "sweeps.png")
    assert (tmp_path / "sweeps.png").read_bytes().startswith(b"\x89PNG")
