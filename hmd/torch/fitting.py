# SPDX-License-Identifier: MIT
"""``fit``: a training step within so much device memory, by a plan that is made from its steps.

The first step of a shape runs with every saved tensor on the host, and so does the second one,
which is recorded. Then the plan is made, its cost is printed, and later steps of that shape follow
it. Steps end when the optimizer's ``step`` returns.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from hmd.base.errors import UsageError
from hmd.base.quantities import parse_size
from hmd.cli.output import format_bytes, format_seconds, format_share, print_table
from hmd.torch.device import (
    AcceleratorDevice,
    CountedDevice,
    Device,
    FlashFile,
    HostMemoryError,
    HostPool,
)
from hmd.torch.saved_tensors import SavedTensors
from hmd.torch.schedule import Key, Limits, RecordedStep, StepSchedule, plan_step

MAX_PLANS: Final = 32
"""Shapes of steps that are planned; others run as the first step does."""

Size = str | int


def fit(
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
    gpu: Size,
    host: Size,
    *,
    flash: Path | str | None = None,
    device: Device | None = None,
    planner: str = "portfolio",
    report: Callable[[StepSchedule], None] | None = None,
) -> FittedTraining:
    """Keep training within ``gpu`` bytes of device memory and ``host`` bytes of the host's.

    Losses and gradients stay what they are. Sizes are as ``"12GiB"`` or bytes. ``flash`` is a
    folder for files, for what the host has no room for. ``device`` is the accelerator, or without
    one CPU tensors whose bytes are counted. ``report`` gets each plan; by default it is printed.
    Without an optimizer, steps are those of the one that updates first.
    Call it before the first step, in the thread that trains. Raises HostMemoryError where this
    machine has less than ``host``, and in a step where a plan's needs exceed the limits.
    """
    budget, room = _bytes("gpu", gpu), _bytes("host", host)
    available = int(psutil.virtual_memory().available)
    if room > available:
        raise HostMemoryError(
            f"host={format_bytes(room)}, but this machine has {format_bytes(available)} available:"
            " give less, and flash=FOLDER for the rest"
        )
    if device is None:
        device = training_device(budget)
    return FittedTraining(
        model, optimizer, budget, room, flash, device, planner, report or print_schedule
    )


def training_device(capacity: int) -> Device:
    """Return the accelerator, or without one a counted device of so many bytes."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return CountedDevice(capacity) if found is None else AcceleratorDevice(found)


def _bytes(name: str, size: Size) -> int:
    try:
        found = size if isinstance(size, int) else parse_size(size)
    except ValueError as error:
        raise UsageError(f"hmd.torch.fit: {name}: {error}") from None
    if found <= 0:
        raise UsageError(f"hmd.torch.fit: {name}: give a size above 0, as in 12GiB")
    return found


class FittedTraining:
    """Training that follows plans; a context, or ``close`` it after the last step."""

    def __init__(
        self,
        model: torch.nn.Module | None,
        optimizer: torch.optim.Optimizer | None,
        budget: int,
        host: int,
        flash: Path | str | None,
        device: Device,
        planner: str,
        report: Callable[[StepSchedule], None],
    ) -> None:
        self.device = device
        self.plans: dict[Key, StepSchedule] = {}
        """The plans of steps, by the first event of such a step."""

        self._model, self._optimizer = model, optimizer
        self._planner, self._report = planner, report
        inwards, outwards = device.rates()
        folder = None if flash is None else Path(flash)
        room = 0 if folder is None else shutil.disk_usage(folder).free
        link = getattr(device, "link", None)
        self._limits = Limits(
            budget,
            host,
            room,
            inwards,
            outwards,
            link.flash if link is not None else FLASH_BYTES_PER_SECOND,
            device.chunk_bytes,
        )
        pool = HostPool(host, device.chunk_bytes, device.host_empty)
        self._saved = SavedTensors(
            device, pool, None if folder is None else FlashFile(folder, device)
        )
        self._warm: set[Key] = set()
        self._record = False
        self._hook = register_optimizer_step_post_hook(self._step_ended)
        self._is_open = True
        if isinstance(device, CountedDevice):
            device.__enter__()
        self._saved.__enter__()
        self._begin()

    def __enter__(self) -> FittedTraining:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End: later steps run as without hmd."""
        if not self._is_open:
            return
        self._is_open = False
        self._hook.remove()
        self._saved.__exit__(None, None, None)
        if isinstance(self.device, CountedDevice):
            self.device.__exit__(None, None, None)

    @property
    def host_bytes(self) -> int:
        """Host memory that is allocated for saved tensors."""
        return self._saved.pool.bytes

    def _begin(self) -> None:
        self._saved.begin(self.plans.get, self._weights(), record=self._record)

    def _weights(self) -> Iterator[torch.Tensor]:
        for group in self._optimizer.param_groups if self._optimizer is not None else ():
            yield from group["params"]
        if self._model is not None:
            yield from self._model.parameters()
            yield from self._model.buffers()

    def _step_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Plan what was recorded; record the next step where this one had no plan."""
        if self._optimizer is None:
            self._optimizer = optimizer
        if not self._is_open or optimizer is not self._optimizer:
            return
        first = self._saved.first_key
        recorded = self._saved.end()
        if self._saved.differs and first is not None:
            self.plans.pop(first, None)
        if recorded is not None and recorded.keys:
            self._plan(recorded)
        self._record = recorded is None and self._saved.differs and len(self.plans) < MAX_PLANS
        self._begin()

    def _plan(self, recorded: RecordedStep) -> None:
        schedule = plan_step(recorded, self._limits, self._planner)
        self.plans[recorded.keys[0]] = schedule
        self._saved.reserve(max((each.host_pieces for each in self.plans.values()), key=sum))
        self._report(schedule)


def print_schedule(schedule: StepSchedule) -> None:
    """Print what a plan costs."""
    rows = [
        ("device memory without a plan", format_bytes(schedule.step.plain_peak_bytes)),
        ("device memory", format_bytes(schedule.peak_bytes)),
        ("host memory needed", format_bytes(schedule.host_bytes)),
        ("flash needed", format_bytes(schedule.flash_bytes)),
        ("copied per step", format_bytes(schedule.moved_bytes)),
        ("step without a plan", format_seconds(schedule.ideal_seconds)),
        ("step", format_seconds(schedule.seconds)),
        ("share of ideal", format_share(schedule.ideal_seconds / schedule.seconds)),
    ]
    print_table(("quantity", "predicted"), rows, title="training step", right=("predicted",))


FLASH_BYTES_PER_SECOND: Final = 3.2e9
"""What a file is assumed to carry per second."""
