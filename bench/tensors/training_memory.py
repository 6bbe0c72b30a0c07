# SPDX-License-Identifier: MIT
"""Picture and tables of docs/results/deep-learning.json: training within less device memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.documents.markdown import table
from hmd.cli.plots import picture

COUNTED: Final = "counted device"
"""Where the rows of :mod:`bench.tensors.deep_learning` are measured."""

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
        if row["where"] == COUNTED
    ]
    head = ["model", "system", "device memory", "speed", "bound of the link", "same losses"]
    return table(head, rows, text=2)


def training_tiers(results: Mapping[str, Any]) -> str:
    """Return a row per model, fast memory and system of the emulated machine."""
    rows = [
        [
            row["model"],
            f"{row['fast_share']:.0%}".replace("%", " %"),
            row["system"],
            f"{row['ideal_seconds'] / row['seconds']:.1%}".replace("%", " %"),
            f"{row['fast_misses']:.0%}".replace("%", " %"),
            f"{row['moved_bytes'] / 2**20:.0f} MiB",
        ]
        for row in sorted(
            results["deep-learning"]["rows"], key=lambda row: (row["model"], -row["fast_share"])
        )
        if row["where"] != COUNTED
    ]
    head = ["model", "fast memory", "system", "speed", "misses in fast memory", "moved"]
    return table(head, rows, text=3)


def _bound(row: Mapping[str, Any]) -> str:
    if "bound_seconds" not in row:
        return ""
    return f"{row['ideal_seconds'] / row['bound_seconds']:.0%}".replace("%", " %")


def compact(document: dict[str, Any]) -> str:
    """Return JSON with curves on one line, and numbers of six digits."""

    def rounded(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: rounded(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [rounded(each) for each in value]
        return float(f"{value:.6g}") if isinstance(value, float) else value

    curves = json.dumps(rounded(document.pop("memory")))
    return f'{json.dumps(rounded(document), indent=1)[:-2]},\n "memory": {curves}\n}}'
