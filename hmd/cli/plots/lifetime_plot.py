"""The plot of a tensor trace: footprint over the step, and the life of each large tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from hmd.cli.plots.plotting import load_pyplot, save_plot
from hmd.tensors.tensor_trace import TensorKind, TensorTrace
from hmd.tensors.vitality import vitality
from hmd.units import GIB

_LIVES: Final = 400
"""Lives drawn: those of the largest tensors."""


def draw(trace: TensorTrace, file: Path) -> None:
    """Write the plot of a trace; raises what ``plotting`` raises."""
    pyplot = load_pyplot("or use --json")
    life = vitality(trace)
    start = np.concatenate([[0.0], np.cumsum(trace.kernel_seconds)])
    figure, axes = pyplot.subplots(2, 1, figsize=(9, 8), sharex=True, layout="tight")
    axes[0].step(start[:-1], life.live_bytes / GIB, where="post", label="alive")
    axes[0].step(start[:-1], life.working_bytes / GIB, where="post", label="used by the kernel")
    axes[0].set_ylabel("footprint (GiB)")
    axes[0].legend(loc="upper right")
    largest = np.argsort(-trace.tensor_bytes, kind="stable")[:_LIVES]
    largest = largest[np.argsort(life.birth[largest], kind="stable")]
    begin = np.where(life.birth[largest] < 0, 0, life.birth[largest])
    end = np.where(life.death[largest] < 0, trace.kernels, life.death[largest])
    for kind in TensorKind:
        rows = np.flatnonzero(trace.tensor_kind[largest] == kind)
        if len(rows):
            axes[1].hlines(
                rows,
                start[begin[rows]],
                start[end[rows]],
                color=f"C{int(kind)}",
                label=kind.name.lower(),
            )
    axes[1].set_ylabel("tensors by birth")
    axes[1].set_xlabel("time of the step (s)")
    axes[1].legend(loc="upper left")
    figure.suptitle(f"{trace.name}: peak {life.peak_bytes / GIB:.1f} GiB")
    save_plot(figure, file)
