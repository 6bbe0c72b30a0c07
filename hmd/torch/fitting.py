# SPDX-License-Identifier: MIT
"""``fit``: a training step within so much device memory, by a plan that is made from its steps.

The first step of a shape runs with every saved tensor on the host, and so does the second one,
which is recorded. Then the plan is made, its cost is printed, and later steps of that shape follow
it. Steps end when the optimizer's ``step`` returns.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import psutil
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from hmd.base.errors import UsageError
from hmd.base.quantities import parse_size
from hmd.cli.output import format_bytes, format_seconds, format_share, print_table
from hmd.torch.counted_device import CountedDevice
from hmd.torch.device import Device, FlashFile, HostMemoryError, HostPool
from hmd.torch.saved_tensors import SavedTensors
from hmd.torch.schedule import Key, Limits, RecordedStep, StepSchedule, plan_step

MAX_PLANS: Final = 32
"""Shapes of steps that are planned; others run as the first step does."""

Size = str | int
"""Bytes, as a number or as ``"12GiB"``."""


def fit(
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
    gpu: Size,
    host: Size,
    *,
    flash: Path | str | None = None,
    device: Device | None = None,
    report: Callable[[StepSchedule], None] | None = None,
) -> FittedTraining:
    """Keep training within ``gpu`` bytes of device memory and ``host`` bytes of the host's.

    Losses and gradients stay what they are. ``flash`` is a folder for files, for what the host has
    no room for. ``device`` is the accelerator unless given; without one, training is
    rehearsed on the CPU, with counted memory and modelled copies, and a line says so. ``report``
    gets each plan; by default it is printed. Without an optimizer, steps are those of the one that
    updates first.
    Call it before the first step, in the thread that trains. Raises HostMemoryError where this
    machine has less than ``host``, and in a step where a plan's needs exceed the limits.
    """
    budget, room = size_bytes("fit: gpu", gpu), size_bytes("fit: host", host)
    available = int(psutil.virtual_memory().available)
    if room > available:
        raise HostMemoryError(
            f"host={format_bytes(room)}, but this machine has {format_bytes(available)} available:"
            " give less, and flash=FOLDER for the rest"
        )
    rehearsal: AbstractContextManager[object] = nullcontext()
    if device is None:
        device = training_device(budget)
        if isinstance(device, CountedDevice):
            rehearsal = device
    files = None if flash is None else FlashFile(Path(flash), device)
    flash_room = 0 if flash is None else shutil.disk_usage(flash).free
    limits = Limits(
        budget, room, flash_room, *device.rates(), device.flash_rate, device.chunk_bytes
    )
    saved = SavedTensors(device, HostPool(room, device.chunk_bytes, device.host_empty), files)
    return FittedTraining(model, optimizer, saved, limits, report or print_schedule, rehearsal)


def training_device(capacity: int) -> Device:
    """Return the accelerator, or without one a counted device of so many bytes."""
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is not None:
        return Device(found)
    sys.stderr.write(
        "hmd.torch: PyTorch finds no accelerator: a rehearsal on the CPU, where the bytes of a"
        " device are counted, and times are those of a model\n"
    )
    return CountedDevice(capacity)


def size_bytes(argument: str, size: Size) -> int:
    """Return bytes; raises UsageError with the name of the argument for what is no size."""
    try:
        found = size if isinstance(size, int) else parse_size(size)
    except ValueError as error:
        raise UsageError(f"hmd.torch.{argument}: {error}") from None
    if found <= 0:
        raise UsageError(f"hmd.torch.{argument}: give a size above 0, as in 12GiB")
    return found


class FittedTraining:
    """Training that follows plans; a context, or ``close`` it after the last step."""

    def __init__(
        self,
        model: torch.nn.Module | None,
        optimizer: torch.optim.Optimizer | None,
        saved: SavedTensors,
        limits: Limits,
        report: Callable[[StepSchedule], None],
        rehearsal: AbstractContextManager[object],
    ) -> None:
        self.plans: dict[Key, StepSchedule] = {}
        """The plans of steps, by the first event of such a step."""

        self._model, self._optimizer = model, optimizer
        self._saved, self._limits, self._report = saved, limits, report
        self._record = False
        self._hook = register_optimizer_step_post_hook(self._step_ended)
        self._is_open = True
        self._rehearsal = rehearsal
        self._rehearsal.__enter__()
        self._saved.__enter__()
        self._begin()

    def __enter__(self) -> FittedTraining:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End: later steps run as without hmd."""
        if self._is_open:
            self._is_open = False
            self._hook.remove()
            self._saved.__exit__(None, None, None)
            self._rehearsal.__exit__(None, None, None)

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
        schedule = plan_step(recorded, self._limits)
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
