# SPDX-License-Identifier: MIT
"""``advise``: how much fast memory a training step needs, without running it.

The step is recorded on fake tensors, which have shapes and no data, with the kernel times of a
roofline; the planners price it with several capacities. Models on the device ``meta`` do too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from hmd.base.errors import HmdError, UsageError
from hmd.cli.output import format_bytes, format_seconds, format_share, print_records
from hmd.tensors.capture.exported_graph import OPTIMIZERS
from hmd.tensors.capture.recorder import RooflineRecorder, tensors_in
from hmd.tensors.capture.script import EnoughSteps, RecordedSteps, StepRecorder
from hmd.tensors.lifetimes import vitality
from hmd.tensors.memory_system import STRICT, Roofline, load_system
from hmd.tensors.move_plan import MovePlanError
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import planner_named
from hmd.tensors.prices import StepPrice, price_planner, sweep_capacities
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
    takes the model's result; by default its elements are summed. ``optimizer`` is adam or sgd,
    ``tiers`` a memory system as of ``hmd plan --tiers``, and ``roofline`` the device, by default an
    A100. Neither the model nor its parameters change. Raises HmdError for a step that cannot be
    recorded or does not run with any capacity.
    """
    if optimizer not in OPTIMIZERS:
        raise UsageError(f"hmd.torch.advise: no optimizer {optimizer!r}: take adam or sgd")
    if points < 2:
        raise UsageError("hmd.torch.advise: points: give 2 or more")
    trace = _recorded(model, inputs, loss, optimizer, roofline or Roofline())
    problem = StepProblem(trace, load_system(tiers), STRICT)
    entry = planner_named(planner)
    allowed = trace.ideal_seconds * (1 + within / 100)
    rows: dict[int, StepPrice] = {}
    first = problem.system.names[0]

    def price(capacity: int) -> bool:
        system = problem.system.changed({first: capacity})
        with suppress(MovePlanError):
            rows[capacity] = price_planner(StepProblem(trace, system, STRICT), entry)[0]
            return rows[capacity].seconds <= allowed
        return False

    low = high = None
    for each in sweep_capacities(problem, first, points):
        capacity = each.system.tiers[0].capacity
        if price(capacity):
            high = capacity if high is None else high
        elif high is None:
            low = capacity
    for _ in range(_HALVINGS if low is not None and high is not None else 0):
        assert low is not None and high is not None
        page = problem.system.granularity_bytes
        middle = (low + high) // 2 // page * page
        low, high = (low, middle) if price(middle) else (middle, high)
    if not rows:
        raise HmdError("hmd.torch.advise: the step does not run on these tiers")
    ordered = tuple(rows[each] for each in sorted(rows))
    return Advice(trace, ordered, vitality(trace).peak_bytes, high, within)


def _recorded(
    model: torch.nn.Module,
    inputs: Any,
    loss: Callable[[Any], torch.Tensor] | None,
    optimizer: str,
    roofline: Roofline,
) -> TensorTrace:
    recorder = StepRecorder(
        RecordedSteps(warmup=1, measured=1), lambda table: RooflineRecorder(table, roofline)
    )
    name = type(model).__name__
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        fakes = dict(_fakes(model))
        given = pytree.tree_map_only(torch.Tensor, _without_data, inputs)
        weights = {id(each): each for each in fakes.values() if each.requires_grad}
        if not weights:
            raise UsageError(f"hmd.torch.advise: {name} has no parameter that is trained")
        update = OPTIMIZERS[optimizer](list(weights.values()), lr=1e-3, foreach=False)
        try:
            with recorder:
                while True:
                    update.zero_grad()
                    result = torch.func.functional_call(model, fakes, tuple(given))
                    (_sum(result) if loss is None else loss(result)).backward()
                    update.step()
        except EnoughSteps:
            pass
    return recorder.trace(name, f"hmd.torch.advise, {optimizer}")


def _fakes(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and buffers without data, by name; tied ones are one."""
    made: dict[int, torch.Tensor] = {}
    for name, each in model.named_parameters(remove_duplicate=False):
        if id(each) not in made:
            made[id(each)] = torch.nn.Parameter(_without_data(each), each.requires_grad)
        yield name, made[id(each)]
    for name, buffer in model.named_buffers(remove_duplicate=False):
        if id(buffer) not in made:
            made[id(buffer)] = _without_data(buffer)
        yield name, made[id(buffer)]


def _without_data(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")


def _sum(result: Any) -> torch.Tensor:
    return torch.stack([each.float().sum() for each in tensors_in(result)]).sum()
