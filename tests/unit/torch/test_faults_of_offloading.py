# SPDX-License-Identifier: MIT
"""Faults that others' offloading had, each silent or late, by name; skipped without PyTorch.

A fault is made by hand first, to show that the counted device turns it into wrong numbers or an
error. Then hmd.torch is shown to be free of it.
"""

from __future__ import annotations

import copy
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("no PyTorch", allow_module_level=True)

import torch
from torch.nn import functional

import hmd.torch
from hmd.torch.counted_device import CountedDevice, StreamRaceError
from hmd.torch.device import HostMemoryError, HostPool
from hmd.torch.saved_tensors import SavedTensors
from tests.unit.torch.training import (
    LINK,
    SLOW,
    Run,
    Transformer,
    hooks,
    language_step,
    tensors,
    train,
)


@pytest.fixture
def device() -> CountedDevice:
    return CountedDevice(1 << 30, SLOW, LINK)


@pytest.fixture(scope="module")
def plain() -> Run:
    return train(Transformer, language_step)


def as_bytes(tensor: Any) -> Any:
    return tensor.view(torch.uint8)


def out(device: CountedDevice, host: Any, source: Any, stream: Any) -> Any:
    """Copy to the host as it should be done; return the event of its end."""
    device.wait(stream, device.record(device.current_stream()))
    device.copy(host, as_bytes(source), stream)
    return device.record(stream)


def test_compute_stream_cached_at_construction_is_not_the_current_one(
    device: CountedDevice, plain: Run
) -> None:
    side, own = device.new_stream(), device.new_stream()
    cached = device.current_stream()
    with device, device.stream(own):
        target = device.empty(64)
        device.wait(side, device.record(own))
        device.copy(target, device.host_empty(64), side)
        device.wait(cached, device.record(side))
        with pytest.raises(StreamRaceError, match="reads what stream side 1 may still use"):
            target + 1
    other = CountedDevice(plain.peaks[-1], SLOW, LINK)
    with other.stream(other.new_stream()):
        fitted = train(Transformer, language_step, gpu=plain.peaks[-1] // 2, device=other)
    assert fitted.same(plain)


def test_clone_of_strided_tensor_after_the_wait_that_orders_its_copy(
    device: CountedDevice,
) -> None:
    side = device.new_stream()
    with device:
        strided = torch.arange(64.0).view(8, 8).t()
        device.wait(side, device.record(device.current_stream()))
        dense = strided.contiguous().view(-1)
        with pytest.raises(StreamRaceError, match="reads what stream compute may still use"):
            device.copy(device.host_empty(256), as_bytes(dense), side)
        weight = torch.randn(8, 8, requires_grad=True)
        whole = torch.randn(100)
        odd = whole[3:67].view(8, 8).t()
        with hooks(device):
            made = (odd * weight).sum()
        alone = odd.detach().clone()
        made.backward()
        assert torch.equal(weight.grad, alone)
        seen = []
        with hooks(device):
            first = odd * 2
            del whole, odd

            class Look(torch.autograd.Function):
                @staticmethod
                def forward(context: Any, each: Any) -> Any:
                    context.save_for_backward(first)
                    return each.sum()

                @staticmethod
                def backward(context: Any, gradient: Any) -> Any:
                    seen.append(context.saved_tensors[0])
                    return gradient.expand(8, 8)

            Look.apply(weight).backward()
        assert seen[0].stride() == first.stride()
        assert seen[0].data_ptr() % 64 == first.data_ptr() % 64 == 0
        assert seen[0].data_ptr() != first.data_ptr()
        assert torch.equal(seen[0], first)


def test_wait_within_the_stream_itself_is_none_and_buffer_is_overwritten(
    device: CountedDevice,
) -> None:
    leaving, coming = device.new_stream(), device.new_stream()
    with device:
        for properly in (False, True):
            pool = HostPool(1 << 12, 1 << 12, device.host_empty)
            buffer = pool.take(4096)
            assert buffer is not None
            assert buffer.data is not None
            first, second = torch.ones(1024), torch.full((1024,), 2.0)
            left = out(device, buffer.data, first, leaving)
            back = device.empty(4096)
            device.wait(coming, device.record(device.current_stream()))
            device.wait(coming, left)
            device.copy(back, buffer.data, coming)
            read = device.record(coming)
            pool.give(buffer, read)
            again = pool.take(4096)
            assert again is not None
            assert again.data is not None
            with device.stream(leaving):
                event = again.after if properly else device.record(leaving)
                device.wait(device.current_stream(), event)
            device.finish(out(device, again.data, second, leaving))
            device.synchronize()
            assert bool((back.view(torch.float32) == 1).all()) == properly


def test_buffers_of_a_full_pool_are_not_overwritten(plain: Run) -> None:
    fitted = train(Transformer, language_step, gpu=plain.peaks[-1] // 3, steps=8)
    assert fitted.losses[:5] == plain.losses
    # Each buffer is used again in each step: the pool has no byte more than one step needs.
    assert fitted.host_bytes == fitted.plans[0].host_bytes


def test_saved_tensor_freed_while_its_copy_is_under_way(device: CountedDevice) -> None:
    side = device.new_stream()
    with device:
        host, source = device.host_empty(4096), torch.ones(1024)
        event = out(device, host, source, side)
        del source
        device.wait(device.current_stream(), event)
        with device.beside():
            assert host.view(torch.float32).isnan().all()
        with pytest.raises(StreamRaceError, match="was freed while stream side 1 may use it"):
            torch.ones(1)
        weight = torch.randn(64, requires_grad=True)
        with hooks(device):
            made = (weight * 2).square().sum()
        made.backward()
        assert torch.equal(weight.grad, 8 * weight.detach())


def test_reload_before_its_own_copy_out_has_ended(device: CountedDevice) -> None:
    leaving, coming = device.new_stream(), device.new_stream()
    with device:
        for properly in (False, True):
            host, source = device.host_empty(4096), torch.ones(1024)
            left = out(device, host, source, leaving)
            back = device.empty(4096)
            device.wait(coming, device.record(device.current_stream()))
            if properly:
                device.wait(coming, left)
            device.copy(back, host, coming)
            device.wait(device.current_stream(), device.record(coming))
            assert bool((back.view(torch.float32) == 1).all()) == properly
            device.wait(device.current_stream(), left)
            assert source.sum() == 1024


def test_memory_allocated_on_the_copy_stream_is_used_again_too_early(
    device: CountedDevice, plain: Run
) -> None:
    side = device.new_stream()
    with device:
        with device.stream(side):
            back = device.empty(4096)
            device.copy(back, device.host_empty(4096), side)
        device.wait(device.current_stream(), device.record(side))
        back.sum()
        del back
        with pytest.raises(StreamRaceError, match="of stream side 1 was freed while"):
            torch.ones(1)
    assert train(Transformer, language_step, gpu=plain.peaks[-1] // 2).same(plain)


def test_pinned_memory_is_allocated_before_planned_steps(plain: Run) -> None:
    class Noting(CountedDevice):
        allocations = 0

        def host_empty(self, size: int) -> Any:
            Noting.allocations += 1
            return super().host_empty(size)

    device = Noting(plain.peaks[-1] // 2, SLOW, LINK)
    counts: list[int] = []

    def step(model: Any, number: int) -> Any:
        counts.append(Noting.allocations)
        return language_step(model, number)

    fitted = train(Transformer, step, gpu=plain.peaks[-1] // 2, device=device, steps=6)
    assert fitted.plans[0].moved_bytes > 0
    assert 0 < counts[1] < counts[2] == counts[3] == counts[4] == counts[5] == Noting.allocations


def test_tensor_on_the_host_stays_on_the_host(device: CountedDevice) -> None:
    with device:
        table = device.host_empty(4096).view(torch.float32).fill_(2.0)
        weight = torch.randn(1024, requires_grad=True)
        copied = device.copied_bytes
        with hooks(device):
            made = (weight * table).sum()
            saved = made.grad_fn.next_functions[0][0]._saved_other
        assert saved.data_ptr() == table.data_ptr()
        assert not device.holds(saved)
        made.backward()
        assert device.copied_bytes == copied
        assert (weight.grad == 2).all()


def test_scalar_step_counters_are_not_copied(device: CountedDevice) -> None:
    model = torch.nn.Linear(32, 32)
    with device:
        optimizer = hmd.torch.offloaded(torch.optim.Adam(model.parameters()), device=device)
        for _ in range(2):
            model(torch.ones(4, 32)).sum().backward()
            copied = device.copied_bytes
            optimizer.step()
    counters = [each for each in tensors(optimizer) if each.dim() == 0]
    assert [each.item() for each in counters] == [2, 2]
    assert all(device.holds(each) for each in counters)
    # The weight's state is worth copies, to the device and from it; the bias and counters not.
    assert device.copied_bytes - copied <= 2 * 2 * 32 * 32 * 4
    assert sum(not device.holds(each) for each in tensors(optimizer)) == 2


def test_load_state_dict_ends_after_its_copies(device: CountedDevice) -> None:
    def made() -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(32, 32)
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    def updated(model: Any, optimizer: Any) -> None:
        model(torch.ones(4, 32)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    model, optimizer = made()
    updated(model, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    updated(model, optimizer)
    other, inner = made()
    with device:
        wrapped = hmd.torch.offloaded(inner, device=device)
        wrapped.load_state_dict(saved)  # before the first step, where there is no state yet
        loaded = wrapped.state_dict()["state"]
        for number, state in saved["state"].items():
            assert all(torch.equal(each, loaded[number][name]) for name, each in state.items())
        assert len(list(tensors(wrapped))) == 6
        other.load_state_dict(model.state_dict())
        wrapped.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # and where there is
        updated(other, wrapped)
    updated(model, optimizer)
    assert all(map(torch.equal, other.parameters(), model.parameters()))


def test_state_before_the_first_step_is_none(device: CountedDevice) -> None:
    model = torch.nn.Linear(32, 32)
    plain_state = torch.optim.Adam(model.parameters()).state_dict()
    wrapped = hmd.torch.offloaded(torch.optim.Adam(model.parameters()), device=device)
    assert wrapped.state_dict() == plain_state
    wrapped.load_state_dict(plain_state)
    assert wrapped.state_dict() == plain_state


def test_tied_weights_and_shared_tensors_leave_once(device: CountedDevice) -> None:
    with device:
        weight = torch.randn(1024, requires_grad=True)
        saved = hooks(device)
        with saved:
            made = weight * 2
            result = (made.sin() + made.cos() + made.exp()).sum()
        assert device.copied_bytes == 4096 * 3  # once per operation, to be compared,
        used = [gap.size for gaps in saved.pool._free for gap in gaps]
        assert saved.pool.bytes - sum(used) == 4096 * 2  # and kept once: made, and exp's result
        result.backward()
        assert sum(gap.size for gaps in saved.pool._free for gap in gaps) == saved.pool.bytes


def test_saved_tensors_are_freed(plain: Run) -> None:
    device = CountedDevice(plain.peaks[-1], SLOW, LINK)
    found: list[int] = []

    def step(model: Any, number: int) -> Any:
        found.append(device.allocated)
        return language_step(model, number)

    train(Transformer, step, gpu=plain.peaks[-1] // 2, device=device, steps=8)
    assert len(set(found[1:])) == 1


def test_graph_that_is_never_run_backward_gives_its_memory_back(device: CountedDevice) -> None:
    with device:
        saved: SavedTensors = hooks(device)
        weight = torch.randn(1024, requires_grad=True)
        with saved:
            made = functional.gelu(weight * 2).sum()
            del made
            torch.ones(1)  # nothing was freed while its copy was under way
        assert sum(gap.size for gaps in saved.pool._free for gap in gaps) == saved.pool.bytes


def test_host_memory_is_bounded_known_and_refused_before_the_run(plain: Run) -> None:
    fitted = train(Transformer, language_step, gpu=plain.peaks[-1] // 3)
    need = fitted.plans[0].host_bytes
    assert fitted.host_bytes == need
    with pytest.raises(HostMemoryError, match="of host memory, and has"):
        device = CountedDevice(plain.peaks[-1] // 2, SLOW, LINK)
        hmd.torch.schedule.plan_step(
            fitted.plans[0].step, limits(device, plain.peaks[-1] // 3, need // 2)
        )
    with pytest.raises(HostMemoryError, match=r"saves more than the host's .* bytes: give host="):
        device = CountedDevice(2 * plain.peaks[-1], SLOW, LINK)
        train(Transformer, language_step, gpu=need, host=need // 4, device=device)


def limits(device: CountedDevice, gpu: int, host: int) -> Any:
    return hmd.torch.schedule.Limits(gpu, host, 0, *device.rates(), 1e9, device.chunk_bytes)
