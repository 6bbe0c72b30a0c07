# SPDX-License-Identifier: MIT
"""``advise``: how much fast memory a training step needs, without running it.

The step is recorded on fake tensors, which have shapes and no data, with the kernel times of a
roofline; the planners price it with several capacities. Models on the device ``meta`` do too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from hmd.base.errors import HmdError, UsageError
from hmd.cli.output import format_bytes, format_seconds, format_share, print_records
from hmd.tensors.capture.exported_graph import OPTIMIZERS, record_module
from hmd.tensors.lifetimes import vitality
from hmd.tensors.memory_system import STRICT, Roofline, load_system
from hmd.tensors.move_plan import MovePlanError
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import planner_named
from hmd.tensors.prices import StepPrice, halved, price_planner, sweep_capacities
from hmd.tensors.trace import TensorTrace

_HALVINGS: Final = 4
"""Capacities tried between the last that is too small and the first that suffices."""


@dataclass(frozen=True)
class Advice:
    """The trace of a step, its price per capacity of fast memory, and the least that suffices.

    ``needed_bytes`` is None where no capacity that was tried keeps the step within the loss.
    """

    trace: TensorTrace
    rows: tuple[StepPrice, ...]
    peak_bytes: int
    needed_bytes: int | None
    within: float

    def print(self) -> None:
        """Print the table: a row per capacity."""
        first = next(iter(self.rows[0].tiers))
        print_records(
            self.rows,
            {
                first: lambda row: format_bytes(row.tiers[first]),
                "step": lambda row: format_seconds(row.seconds),
                "share of ideal": lambda row: format_share(row.ideal_seconds / row.seconds),
                "bound": lambda row: format_seconds(row.bound_seconds),
                "moved": lambda row: format_bytes(row.moved_bytes),
            },
            title=f"{self.trace.name}: peak {format_bytes(self.peak_bytes)}; for a loss of at most"
            f" {self.within:g} %: {format_bytes(self.needed_bytes)}",
        )

    def picture(self, file: Path) -> None:
        """Draw the curve of times over capacities; needs the extra plot."""
        from hmd.cli.plots import draw_sweep

        draw_sweep(list(self.rows), next(iter(self.rows[0].tiers)), file)


def advise(
    model: torch.nn.Module,
    inputs: Any,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: str = "adam",
    within: float = 5.0,
    tiers: str = "g10",
    roofline: Roofline | None = None,
    points: int = 6,
    planner: str = "portfolio",
) -> Advice:
    """Return what fast memory a training step needs for a loss of time of ``within`` per cent.

    ``inputs`` are the model's arguments, a tuple, on any device; their data is not read. ``loss``
    takes the model's result; by default it is the first tensor of one element, or else the sum of
    all. ``optimizer`` is adam or sgd, ``tiers`` a memory system as of ``hmd plan --tiers``, and
    ``roofline`` the device, by default an A100. Neither the model nor its parameters change. Raises
    HmdError for a step that cannot be recorded or does not run with any capacity.
    """
    if optimizer not in OPTIMIZERS:
        raise UsageError(f"hmd.torch.advise: no optimizer {optimizer!r}: take adam or sgd")
    if points < 2:
        raise UsageError("hmd.torch.advise: points: give 2 or more")
    trace = record_module(model, inputs, {}, optimizer, roofline or Roofline(), loss)
    trace = replace(trace, source=trace.source.replace("record_module", "hmd.torch.advise"))
    problem = StepProblem(trace, load_system(tiers), STRICT)
    entry = planner_named(planner)
    allowed = trace.ideal_seconds * (1 + within / 100)
    rows: dict[int, StepPrice] = {}
    first = problem.system.names[0]

    def fits(capacity: int) -> bool:
        system = problem.system.changed({first: capacity})
        with suppress(MovePlanError):
            rows[capacity] = price_planner(StepProblem(trace, system, STRICT), entry)[0]
            return rows[capacity].seconds <= allowed
        return False

    swept = sweep_capacities(problem, first, points)
    sizes = [each.system.tiers[0].capacity for each in swept]
    enough = [each for each in sizes if fits(each)]
    needed = enough[0] if enough else None
    if needed is not None and needed != sizes[0]:
        low, page = sizes[sizes.index(needed) - 1], problem.system.granularity_bytes
        needed = halved(low, needed, page, _HALVINGS, fits)
    if not rows:
        raise HmdError("hmd.torch.advise: the step does not run on these tiers")
    ordered = tuple(rows[each] for each in sorted(rows))
    return Advice(trace, ordered, vitality(trace).peak_bytes, needed, within)
