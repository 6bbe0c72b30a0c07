# SPDX-License-Identifier: MIT
"""Optimizers whose state lies on the host, beside plain ones; skipped without PyTorch."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

from hmd.base.errors import UsageError

if find_spec("torch") is None:
    pytest.skip("no PyTorch", allow_module_level=True)

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import hmd.torch
from hmd.torch.counted_device import CountedDevice
from tests.unit.torch.training import LINK, SLOW, Transformer, language_step

Make = Callable[[Any], Any]

OPTIMIZERS: dict[str, Make] = {
    "adam": lambda weights: torch.optim.Adam(weights, foreach=False),
    "adamw": lambda weights: torch.optim.AdamW(weights, amsgrad=True, foreach=True),
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    "adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.1),
    "rmsprop": lambda weights: torch.optim.RMSprop(weights, centered=True),
    "adafactor": lambda weights: torch.optim.Adafactor(weights, lr=0.1),
}


def train(
    make: Make, *, wrap: bool, clip: bool = False, passes: int = 1, load: Any = None, **options: Any
) -> tuple[Any, Any, int]:
    """Return weights, state and the peak of the last step."""
    torch.manual_seed(0)
    model = Transformer(layers=2)
    groups = [{"params": [each]} for each in model.parameters()]
    groups[0]["lr"] = 0.02  # type: ignore[assignment]
    device = CountedDevice(1 << 40, SLOW, LINK)
    with device:
        optimizer = make(groups)
        if wrap:
            options = {"in_backward": not clip, "passes": passes, **options}
            optimizer = hmd.torch.offloaded(optimizer, 30_000, device=device, **options)
        if load is not None:
            optimizer.load_state_dict(load)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for number in range(4):
            device.reset_peak()
            for _ in range(passes):
                language_step(model, number, 2).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return list(model.parameters()), copy.deepcopy(optimizer.state_dict()), device.peak_bytes()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.stride() == other.stride()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize(
    ("name", "clip", "passes"),
    [*((name, False, 1) for name in OPTIMIZERS), ("adam", True, 1), ("adamw", False, 2)],
)
def test_offloaded_weights_and_state_are_those_of_plain(name: str, clip: bool, passes: int) -> None:
    make = OPTIMIZERS[name]
    plain = train(make, wrap=False, clip=clip, passes=passes)
    found = train(make, wrap=True, clip=clip, passes=passes)
    assert same(found[:2], plain[:2])
    assert found[2] <= 1.05 * plain[2]
    again = train(make, wrap=True, clip=clip, passes=passes, load=plain[1])
    assert same(again[:2], train(make, wrap=False, clip=clip, passes=passes, load=found[1])[:2])


def test_offloaded_state_is_on_the_device_by_buckets_alone() -> None:
    plain, found = (train(OPTIMIZERS["adam"], wrap=wrap)[2] for wrap in (False, True))
    state = 2 * sum(each.nbytes for each in Transformer(layers=2).parameters())
    assert plain - found > 0.6 * state


def test_offloaded_updates_begin_during_backward() -> None:
    model, device = Transformer(layers=2), CountedDevice(1 << 40, SLOW, LINK)
    with device:
        optimizer = hmd.torch.offloaded(torch.optim.Adam(model.parameters()), 30_000, device=device)
        before = model.layers[1].narrow.weight.detach().clone()
        language_step(model, 0, 2).backward()
        assert not torch.equal(before, model.layers[1].narrow.weight)
        optimizer.step()


def test_offloaded_gradients_that_change_after_the_update_are_refused() -> None:
    with pytest.raises(UsageError, match="in_backward=False"):
        train(OPTIMIZERS["adam"], wrap=True, clip=True, in_backward=True)


def test_offloaded_second_pass_that_was_not_announced_is_refused() -> None:
    with pytest.raises(UsageError, match="passes=N"):
        model, device = Transformer(layers=1), CountedDevice(1 << 40, SLOW, LINK)
        optimizer = hmd.torch.offloaded(torch.optim.Adam(model.parameters()), 4_000, device=device)
        language_step(model, 0, 2).backward()
        language_step(model, 0, 2).backward()
        optimizer.step()


def test_offloaded_parameter_without_gradient_is_left_alone() -> None:
    used, unused = nn.Linear(32, 32), nn.Linear(32, 32)
    before = unused.weight.detach().clone()
    device = CountedDevice(1 << 40, SLOW, LINK)
    weights = [*used.parameters(), *unused.parameters()]
    optimizer = hmd.torch.offloaded(torch.optim.Adam(weights), device=device)
    used(torch.ones(2, 32)).sum().backward()
    optimizer.step()
    assert torch.equal(unused.weight, before)
    assert len(optimizer.state_dict()["state"]) == 2


def test_offloaded_refuses_what_it_cannot_do() -> None:
    weights = list(nn.Linear(2, 2).parameters())
    with pytest.raises(UsageError, match="LBFGS"):
        hmd.torch.offloaded(torch.optim.LBFGS(weights))
    with pytest.raises(UsageError, match="bucket: write a size with its unit"):
        hmd.torch.offloaded(torch.optim.SGD(weights), "12")


def test_offloaded_with_fit_is_identical() -> None:
    from tests.unit.torch.training import train as fitted

    def wrap(optimizer: Any, device: CountedDevice) -> Any:
        adam = torch.optim.Adam(optimizer.param_groups[0]["params"], foreach=False)
        return hmd.torch.offloaded(adam, 30_000, device=device)

    def plain(optimizer: Any, device: CountedDevice) -> Any:
        return torch.optim.Adam(optimizer.param_groups[0]["params"], foreach=False)

    expected = fitted(Transformer, language_step, wrap=plain)
    found = fitted(Transformer, language_step, wrap=wrap, gpu=expected.peaks[-1] // 2)
    assert found.same(expected)
    assert found.plans[0].peak_bytes == pytest.approx(found.peaks[-1], rel=0.05)


def _parallel(rank: int, port: int, sharded: bool) -> None:
    """Train in one of two processes with and without, and compare."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    try:
        found = []
        for wrap in (False, True):
            torch.manual_seed(0)
            model = Transformer(layers=1)
            if sharded:
                fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
                trained = model
            else:
                trained = nn.parallel.DistributedDataParallel(model)
            optimizer: Any = torch.optim.Adam(model.parameters(), foreach=False)
            if wrap:
                device = CountedDevice(1 << 40, SLOW, LINK)
                optimizer = hmd.torch.offloaded(optimizer, 8_000, device=device)
            torch.manual_seed(rank)
            for number in range(3):
                optimizer.zero_grad()
                language_step(trained, number, 2).backward()
                optimizer.step()
            local = [getattr(each, "_local_tensor", each) for each in model.parameters()]
            found.append([each.detach().clone() for each in local])
        assert all(map(torch.equal, *found))
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("sharded", [False, True], ids=["ddp", "fsdp2"])
def test_offloaded_with_two_processes_is_identical(sharded: bool, free_port: int) -> None:
    torch.multiprocessing.spawn(_parallel, (free_port, sharded), nprocs=2)
