# SPDX-License-Identifier: MIT
"""``offloaded``: an optimizer whose state lies in host memory and streams through the device.

After Myelin (Singh and Bhatele, IPDPS 2022): parameters are in buckets, and a bucket's update is
message-driven: it begins when its gradients are there. While one bucket is updated, the state of
the next is copied in and that of the one before is copied out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.optim import LBFGS, Optimizer

from hmd.base.errors import UsageError
from hmd.torch.device import Device, HostPool
from hmd.torch.fitting import Size, size_bytes, training_device

_UNLIMITED: Final = 1 << 60


def offloaded(
    optimizer: Optimizer,
    bucket: Size = "64MiB",
    *,
    in_backward: bool | None = None,
    passes: int = 1,
    device: Device | None = None,
) -> OffloadedOptimizer:
    """Return an optimizer that updates as ``optimizer`` does, bit for bit, with its state away.

    ``bucket`` is the size of the parameters that are updated together. ``in_backward``: updates
    begin during the last of the ``passes`` calls of ``backward`` before each ``step``, so that
    nothing may change gradients in between, as clipping and unscaling do; False where they do. By
    default updates begin in backward, unless a process group is initialized: it averages gradients
    after they are there. Raises UsageError for an optimizer that evaluates the loss again (LBFGS).
    """
    if isinstance(optimizer, LBFGS):
        raise UsageError("hmd.torch.offloaded: LBFGS evaluates the loss within its step")
    size = size_bytes("offloaded: bucket", bucket)
    if in_backward is None:
        distributed = torch.distributed
        in_backward = not (distributed.is_available() and distributed.is_initialized())
    return OffloadedOptimizer(
        optimizer, size, in_backward, passes, device or training_device(_UNLIMITED)
    )


class _Bucket:
    """Parameters that are updated together, and their state: on the host, or on its way."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.parameters = parameters
        self.missing = self.passes = 0
        self.inside: list[tuple[torch.Tensor, str, torch.Tensor]] = []
        self.arrived: Any = None
        self.left: Any = None
        self.sample: torch.Tensor | None = None


class OffloadedOptimizer(Optimizer):
    """The wrapper; ``state``, ``param_groups`` and ``state_dict`` are those of the optimizer.

    State of as many dimensions as its parameter lies in host memory; counters stay where they are.
    """

    def __init__(
        self, optimizer: Optimizer, bucket: int, in_backward: bool, passes: int, device: Device
    ) -> None:
        self._inner, self._device, self._bucket_bytes = optimizer, device, bucket
        self._in_backward, self._passes = in_backward, passes
        self._in, self._out = device.new_stream(), device.new_stream()
        self._buckets: list[_Bucket] = []
        self._waiting: list[_Bucket] = []
        self._leaving: list[_Bucket] = []
        self._done: set[_Bucket] = set()
        self._pool = HostPool(_UNLIMITED, device.chunk_bytes, device.host_empty)
        self._hosts: dict[tuple[torch.Tensor, str], torch.Tensor] = {}
        self._handles: list[Any] = []
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._adopt()
        self._fill_buckets()
        self._to_host()

    def _adopt(self) -> None:
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    def _fill_buckets(self) -> None:
        """Put parameters into buckets in the reverse of their order, as gradients arrive."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._buckets, filled = [], [], self._bucket_bytes
        for parameter in reversed([each for g in self.param_groups for each in g["params"]]):
            size = parameter.nbytes
            filled += size
            if filled > self._bucket_bytes:
                self._buckets.append(_Bucket([]))
                filled = size
            self._buckets[-1].parameters.append(parameter)
        for bucket in self._buckets:
            trained = [each for each in bucket.parameters if each.requires_grad]
            bucket.missing = len(trained)
            if self._in_backward:
                self._handles += [
                    each.register_post_accumulate_grad_hook(self._arrival(bucket))
                    for each in trained
                    if each.is_leaf
                ]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as to any optimizer."""
        if not self._buckets:  # the base class adds what the optimizer has
            super().add_param_group(param_group)
            return
        self._inner.add_param_group(param_group)
        self._fill_buckets()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Let go of gradients, as any optimizer."""
        self._inner.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update what has not been updated yet; all buckets have been when it returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for bucket in self._done:
            now = _gradient_sample(bucket)
            if bucket.sample is not None and (now is None or not torch.equal(bucket.sample, now)):
                raise UsageError(
                    "gradients changed after their update began: call offloaded(...,"
                    " in_backward=False) where they are clipped or unscaled"
                )
        with torch.no_grad():
            for bucket in self._buckets:
                if bucket not in self._done and bucket not in self._waiting:
                    self._begin(bucket)
            while self._waiting:
                self._update(self._waiting.pop(0))
            while self._leaving:
                self._retire(self._leaving.pop(0))
        for bucket in self._buckets:
            bucket.missing = sum(each.requires_grad for each in bucket.parameters)
            bucket.passes = 0
        self._done.clear()
        return loss

    def _arrival(self, bucket: _Bucket) -> Callable[[torch.Tensor], None]:
        def arrived(parameter: torch.Tensor) -> None:
            if bucket in self._done or bucket in self._waiting:
                raise UsageError(
                    "a gradient arrived after its update began: call offloaded(..., passes=N) for N"
                    " calls of backward before each step()"
                )
            bucket.missing -= 1
            if bucket.missing:
                return
            bucket.passes += 1
            if bucket.passes < self._passes:
                bucket.missing = sum(each.requires_grad for each in bucket.parameters)
                return
            with torch.no_grad():
                self._begin(bucket)

        return arrived

    def _begin(self, bucket: _Bucket) -> None:
        """Copy a bucket's state in; update the bucket before, copy out the one before that."""
        device = self._device
        if bucket.left is not None:
            device.wait(self._in, bucket.left)
        moves = []
        for parameter in bucket.parameters:
            for name, held in self.state.get(parameter, {}).items():
                host = self._hosts.get((parameter, name))
                if host is not None and _local(held) is host:
                    inside = device.empty(host.nbytes)
                    bucket.inside.append((parameter, name, inside))
                    moves.append((inside, _as_bytes(host)))
        device.wait(self._in, device.record(device.current_stream()))
        for inside, source in moves:
            device.copy(inside, source, self._in)
        bucket.arrived = device.record(self._in)
        while self._waiting:
            self._update(self._waiting.pop(0))
        while len(self._leaving) > 1:
            self._retire(self._leaving.pop(0))
        self._waiting.append(bucket)

    def _update(self, bucket: _Bucket) -> None:
        """Update a bucket's parameters and begin to copy its state out."""
        self._device.wait(self._device.current_stream(), bucket.arrived)
        for parameter, name, inside in bucket.inside:
            held = self.state[parameter][name]
            host = self._hosts[parameter, name]
            view = _shaped(inside, host)
            self.state[parameter][name] = _like(held, view)
        bucket.inside.clear()
        bucket.sample = _gradient_sample(bucket) if self._in_backward else None
        chosen, groups = set(bucket.parameters), [each["params"] for each in self.param_groups]
        try:
            for group in self.param_groups:
                group["params"] = [each for each in group["params"] if each in chosen]
            _plain_step(self._inner)
        finally:
            for group, parameters in zip(self.param_groups, groups, strict=True):
                group["params"] = parameters
        self._done.add(bucket)
        self._copy_out(bucket)
        self._leaving.append(bucket)

    def _copy_out(self, bucket: _Bucket) -> None:
        device, copies = self._device, []
        for parameter in bucket.parameters:
            for name, held in self.state.get(parameter, {}).items():
                local = _local(held)
                if not self._streams(local):
                    continue
                local = local if _is_dense(local) else local.contiguous()
                host = self._hosts.get((parameter, name))
                if host is None or host.stride() != local.stride() or host.dtype != local.dtype:
                    buffer = self._pool.take(local.nbytes)
                    assert buffer is not None and buffer.data is not None
                    host = _shaped(buffer.data[: local.nbytes], local)
                    self._hosts[parameter, name] = host
                copies.append((_as_bytes(host), _as_bytes(local)))
                bucket.inside.append((parameter, name, local))
                self.state[parameter][name] = _like(held, host)
        device.wait(self._out, device.record(device.current_stream()))
        for target, source in copies:
            device.copy(target, source, self._out)
        bucket.left = device.record(self._out)

    def _streams(self, held: object) -> bool:
        """Return whether a part of the state is worth a copy: no counter, on the device."""
        if not isinstance(held, torch.Tensor) or not held.dim():
            return False
        return held.nbytes >= self._device.min_bytes and self._device.holds(held)

    def _retire(self, bucket: _Bucket) -> None:
        """Give the device's memory back, once the copies out have ended."""
        self._device.wait(self._device.current_stream(), bucket.left)
        bucket.inside.clear()

    def _to_host(self) -> None:
        """Bring all state to the host, bucket by bucket, and wait for it."""
        with torch.no_grad():
            for bucket in self._buckets:
                self._copy_out(bucket)
                self._device.finish(bucket.left)
                self._retire(bucket)

    def synchronize(self) -> None:
        """Return when the state in host memory is that of the last step."""
        for bucket in self._buckets:
            if bucket.left is not None:
                self._device.finish(bucket.left)

    def state_dict(self) -> dict[str, Any]:
        """Return what the plain optimizer returns; its tensors are in host memory."""
        self.synchronize()
        found = self._inner.state_dict()
        return {**found, "state": dict(sorted(found["state"].items()))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what any such optimizer returned, a bucket at a time, and wait for it."""
        self.synchronize()
        state = state_dict["state"]
        numbers = [n for group in state_dict["param_groups"] for n in group["params"]]
        parameters = [each for group in self.param_groups for each in group["params"]]
        places = dict(zip(parameters, numbers, strict=False))
        known = set(numbers)
        whole: dict[Any, Any] = {}
        rest = {key: value for key, value in state.items() if key not in known}
        self._inner.load_state_dict({**state_dict, "state": rest})
        whole.update(self._inner.state)
        self._hosts.clear()
        for bucket in self._buckets:
            part = {
                places[each]: state[places[each]]
                for each in bucket.parameters
                if places.get(each) in state
            }
            self._inner.load_state_dict({**state_dict, "state": part})
            self._adopt()
            with torch.no_grad():
                self._copy_out(bucket)
                self._device.finish(bucket.left)
                self._retire(bucket)
            whole.update(self.state)
        self._inner.state.update(whole)
        self._adopt()


def _plain_step(optimizer: Optimizer) -> None:
    """Run an optimizer's step without the hooks of steps, which a part of one is not."""
    step = type(optimizer).step
    getattr(step, "__wrapped__", step)(optimizer)


def _gradient_sample(bucket: _Bucket) -> torch.Tensor | None:
    """Return some of a bucket's gradients; versions do not count what foreach kernels change."""
    found = [_local(each.grad) for each in bucket.parameters if each.grad is not None]
    if not found:
        return None
    return max(found, key=torch.numel).detach().flatten()[:1024].clone()


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements fill its memory, in any order of dimensions."""
    return bool(torch.empty_like(tensor, device="meta").stride() == tensor.stride())


def _local(held: Any) -> Any:
    """Return a tensor, or this process's part of a distributed one."""
    return getattr(held, "_local_tensor", held)


def _like(held: Any, local: torch.Tensor) -> torch.Tensor:
    """Return a tensor as ``held`` is, with other memory."""
    if not hasattr(held, "_local_tensor"):
        return local
    return type(held).from_local(
        local,
        held.device_mesh,
        held.placements,
        run_check=False,
        shape=held.shape,
        stride=held.stride(),
    )


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _shaped(data: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return data.view(like.dtype).as_strided(like.shape, like.stride())
