# SPDX-License-Identifier: MIT
"""Picture and tables of docs/results/deep-learning.json: training within less device memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.documents.markdown import table
from hmd.cli.plots import picture

_NAMES = {
    "plain": "PyTorch alone",
    "save_on_cpu": "every saved tensor on the host",
    "checkpointing": "checkpointing of each layer",
    "hmd": "hmd's plan",
}


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Write a PNG file with the memory over a step, without a plan and with one."""
    models = document["memory"]
    with picture(path, 1, len(models), figsize=(10, 3.2)) as (_, axes):
        for axis, (name, curves) in zip(axes, models.items(), strict=True):
            for system, color in (("plain", "tab:gray"), ("hmd", "tab:blue")):
                seconds, sizes = zip(*curves[system], strict=True)
                axis.plot(
                    [1e3 * each for each in seconds],
                    [each / 2**20 for each in sizes],
                    color=color,
                    label={"plain": "without a plan", "hmd": "with a plan"}[system],
                )
            axis.set(title=name, xlabel="time in the step, ms", ylabel="device memory, MiB")
            axis.set_ylim(bottom=0)
            axis.legend()


def training_memory(results: Mapping[str, Any]) -> str:
    """Return a row per model, system and memory."""
    rows = [
        [
            row["model"],
            _NAMES[row["system"]],
            f"{row['fast_share']:.0%}".replace("%", " %"),
            f"{row['ideal_seconds'] / row['seconds']:.0%}".replace("%", " %"),
            _bound(row),
            "yes" if row["loss_identical"] else "no",
        ]
        for row in results["deep-learning"]["rows"]
    ]
    head = ["model", "system", "device memory", "speed", "bound of the link", "same losses"]
    return table(head, rows, text=2)


def _bound(row: Mapping[str, Any]) -> str:
    if "bound_seconds" not in row:
        return ""
    return f"{row['ideal_seconds'] / row['bound_seconds']:.0%}".replace("%", " %")
