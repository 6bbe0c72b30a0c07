# SPDX-License-Identifier: MIT
"""Training within device memory, on a device that is counted; skipped without PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hmd.base.errors import UsageError

if find_spec("torch") is None:
    pytest.skip("no PyTorch", allow_module_level=True)

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hmd.torch
from hmd.torch.__main__ import main
from hmd.torch.counted_device import CountedDevice
from hmd.torch.device import HostMemoryError
from hmd.torch.schedule import DeviceMemoryError
from tests.unit.torch.training import LINK, SLOW, Run, Transformer, language_step, train, words


@pytest.fixture(scope="module")
def plain() -> Run:
    return train(Transformer, language_step)


def within(run: Run, factor: float) -> int:
    return int(run.peaks[-1] / factor)


@pytest.mark.parametrize("factor", [1.5, 2.0, 3.0, 4.0])
def test_fit_losses_and_weights_are_those_of_plain_run(plain: Run, factor: float) -> None:
    fitted = train(Transformer, language_step, gpu=within(plain, factor))
    assert fitted.same(plain)
    assert max(fitted.peaks) <= within(plain, factor)
    (plan,) = fitted.plans
    assert plan.stays


@pytest.mark.parametrize("factor", [1.5, 3.0])
def test_fit_predicts_peak_and_time(plain: Run, factor: float) -> None:
    fitted = train(Transformer, language_step, gpu=within(plain, factor))
    (plan,) = fitted.plans
    assert plan.peak_bytes == pytest.approx(fitted.peaks[-1], rel=0.05)
    assert plan.seconds == pytest.approx(fitted.seconds[-1], rel=0.1)
    assert plan.step.plain_peak_bytes == pytest.approx(plain.peaks[-1], rel=0.05)
    assert plan.ideal_seconds == pytest.approx(plain.seconds[-1], rel=0.1)
    assert plan.host_bytes == fitted.host_bytes


def test_fit_plan_is_faster_than_leaving_everything(plain: Run) -> None:
    fitted = train(Transformer, language_step, gpu=within(plain, 1.5))
    assert fitted.seconds[-1] < 0.7 * fitted.seconds[1]


def test_fit_step_that_fits_moves_nothing(plain: Run) -> None:
    fitted = train(Transformer, language_step, gpu=2 * plain.peaks[-1])
    assert fitted.same(plain)
    assert fitted.plans[0].moved_bytes == 0
    assert fitted.seconds[-1] == pytest.approx(plain.seconds[-1])


def test_fit_step_of_other_shape_runs_and_is_planned_again(plain: Run) -> None:
    def step(model: nn.Module, number: int) -> Any:
        return language_step(model, number, 12 if number in (4, 5, 7) else 16)

    expected = train(Transformer, step, steps=9)
    fitted = train(Transformer, step, steps=9, gpu=within(plain, 2))
    assert fitted.same(expected)
    shapes = {plan.step.keys[0][1] for plan in fitted.plans}
    assert shapes == {(12, 32), (16, 32)}
    assert len(fitted.plans) == 2
    assert fitted.seconds[7] < fitted.seconds[4]


def test_fit_step_that_differs_in_the_middle_runs_and_is_planned_again(plain: Run) -> None:
    def step(model: nn.Module, number: int) -> Any:
        loss = language_step(model, number)
        return loss * loss.exp() if number in (3, 6) else loss

    expected = train(Transformer, step, steps=8)
    fitted = train(Transformer, step, steps=8, gpu=within(plain, 2))
    assert fitted.same(expected)
    assert len(fitted.plans) > 1


def test_fit_keeps_what_host_has_no_room_for_in_files(plain: Run, tmp_path: Path) -> None:
    without = train(Transformer, language_step, gpu=within(plain, 3))
    host = without.plans[0].host_bytes // 2
    device = CountedDevice(plain.peaks[-1], SLOW, LINK)
    fitted = train(
        Transformer, language_step, gpu=within(plain, 3), host=host, flash=tmp_path, device=device
    )
    assert fitted.same(plain)
    (plan,) = fitted.plans
    assert plan.flash_bytes > 0
    assert fitted.host_bytes <= host
    assert plan.seconds == pytest.approx(fitted.seconds[-1], rel=0.1)
    assert not list(tmp_path.iterdir())


def test_fit_gradient_accumulation_is_one_step(plain: Run) -> None:
    def step(model: nn.Module, number: int) -> Any:
        language_step(model, number).backward()
        return language_step(model, number)

    expected = train(Transformer, step)
    assert train(Transformer, step, gpu=within(plain, 2)).same(expected)


def test_fit_second_backward_asks_for_tensors_again(plain: Run) -> None:
    def step(model: nn.Module, number: int) -> Any:
        loss = language_step(model, number)
        loss.backward(retain_graph=True)
        return loss

    expected = train(Transformer, step)
    assert train(Transformer, step, gpu=within(expected, 0.9)).same(expected)


class Residual(nn.Module):
    """A residual network in small, with batch normalization and an activation in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(4))
        self.convolutions = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4))
        self.last = nn.Linear(8, 10)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            x = x + nn.functional.relu_(norm(convolution(x)))
        return self.last(x.mean((2, 3)))


class Recurrent(nn.Module):
    """An LSTM cell: its gates are parts of one storage that are computed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(16, 16)

    def forward(self, x: Any) -> Any:
        state = x.new_zeros(x.shape[1], 16), x.new_zeros(x.shape[1], 16)
        for each in x:
            state = self.cell(each, state)
        return state[0]


class Checkpointed(nn.Module):
    """Half of its layers are computed again in the backward pass; with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 32))
            for _ in range(4)
        )

    def forward(self, x: Any) -> Any:
        for number, layer in enumerate(self.layers):
            x = checkpoint(layer, x, use_reentrant=False) if number % 2 else layer(x)
        return x


def half_precision(model: nn.Module, number: int) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return language_step(model, number)


@pytest.mark.parametrize(
    ("make", "step"),
    [
        (Residual, lambda model, number: model(torch.randn(8, 3, 12, 12)).square().mean()),
        (Recurrent, lambda model, number: model(torch.randn(6, 32, 16)).square().mean()),
        (Checkpointed, lambda model, number: model(torch.randn(64, 32)).square().mean()),
        (Transformer, half_precision),
    ],
    ids=["convolutions", "recurrent", "checkpointed", "autocast"],
)
def test_fit_of_other_models_is_identical(
    make: Callable[[], nn.Module], step: Callable[[nn.Module, int], Any]
) -> None:
    expected = train(make, step)
    fitted = train(make, step, gpu=within(expected, 1.3))
    assert fitted.same(expected)
    assert fitted.plans[0].moved_bytes > 0
    assert fitted.plans[0].peak_bytes == pytest.approx(fitted.peaks[-1], rel=0.05)


def test_fit_change_in_place_of_saved_tensor_raises_as_without(plain: Run) -> None:
    def step(model: nn.Module, number: int) -> Any:
        made = torch.sigmoid(next(model.parameters()))
        with torch.no_grad():
            made.add_(number == 3)
        return language_step(model, number) + (made.sum() if number == 3 else 0)

    for gpu in (None, within(plain, 2), 2 * plain.peaks[-1]):
        device = CountedDevice(1 << 40, SLOW, LINK)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            train(Transformer, step, gpu=gpu, device=device)


def test_fit_refuses_device_memory_that_cannot_suffice(plain: Run) -> None:
    device = CountedDevice(1 << 30, SLOW, LINK)
    with pytest.raises(DeviceMemoryError, match="with all saved tensors away, and has"):
        train(Transformer, language_step, gpu=within(plain, 20), device=device)


def test_fit_refuses_sizes_that_are_none() -> None:
    model = Transformer()
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(UsageError, match=r"hmd\.torch\.fit: gpu: write a size"):
        hmd.torch.fit(model, optimizer, "12", "1GiB")
    with pytest.raises(UsageError, match=r"hmd\.torch\.fit: host: give a size above 0"):
        hmd.torch.fit(model, optimizer, "12GiB", 0)
    with pytest.raises(HostMemoryError, match=r"but this machine has .* available: give less"):
        hmd.torch.fit(model, optimizer, "12GiB", "4000TiB")


def test_fit_closed_leaves_no_hooks(plain: Run) -> None:
    device = CountedDevice(plain.peaks[-1], SLOW, LINK)
    train(Transformer, language_step, gpu=within(plain, 2), device=device)
    copied = device.copied_bytes
    with device:
        language_step(Transformer(), 0).backward()
    assert device.copied_bytes == copied
    assert torch.equal(words(0), words(0))


SCRIPT = """\
import sys
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    optimizer.zero_grad()
    loss = model(torch.randn(256, 64)).square().mean()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
"""


def test_command_runs_script_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    monkeypatch.setattr("sys.argv", ["pytest"])
    monkeypatch.setattr("sys.path", list(sys.path))
    losses = []
    for size in ("1GiB", "1MiB"):
        assert main(["--gpu", size, "--host", "64MiB", str(script)]) == 0
        printed, said = capsys.readouterr()
        assert "host memory needed" in printed
        rehearsed = "a rehearsal on the CPU" in said
        assert rehearsed != torch.accelerator.is_available()
        losses.append([line for line in printed.splitlines() if line.startswith("loss")])
    assert len(losses[0]) == 5
    assert losses[0] == losses[1]


def test_command_without_script_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--gpu", "1GiB", "/nonexistent.py"]) == 2
    assert capsys.readouterr().err == "hmd.torch: no script /nonexistent.py\n"
